"""A wide linear layer, average pooling over features, their sum, a gain, ELU, and the input added."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TRITON = """
import triton
import triton.language as tl


@triton.jit
def product_sum_kernel(
    x_ptr, w_ptr, b_ptr, sums_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    # A tile of x @ w.T + b, of which only the row sums leave the chip.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(
            x_ptr + rows[:, None] * K + k[None, :],
            mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0,
        )
        w = tl.load(
            w_ptr + cols[None, :] * K + k[:, None],
            mask=(cols[None, :] < N) & (k[:, None] < K), other=0.0,
        )
        acc = tl.dot(a, w, acc, input_precision="ieee")
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[None, :]
    tl.atomic_add(sums_ptr + rows, tl.sum(acc, axis=1), mask=rows < M)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block per row: its product with one vector, ELU, and the row with that value added.
__global__ void row_shift(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                          float* __restrict__ out, int features) {
    __shared__ float partial[32];
    const float* line = x + (long)blockIdx.x * features;
    float* target = out + (long)blockIdx.x * features;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < features; i += blockDim.x) sum += line[i] * w[i];
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    float all = b[0];
    for (int i = 0; i < blockDim.x / 32; ++i) all += partial[i];
    float shift = all > 0.0f ? all : expm1f(all);
    for (int i = threadIdx.x; i < features; i += blockDim.x) target[i] = line[i] + shift;
}

torch::Tensor shift_rows(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    auto out = torch::empty_like(x);
    row_shift<<<(int)x.size(0), 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
                                       out.data_ptr<float>(), (int)x.size(1));
    return out;
}
"""
row_module = load_inline(
    name="linear_pool_sum_elu_rows",
    cpp_sources="torch::Tensor shift_rows(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=source,
    functions=["shift_rows"],
)
'''

_INIT = """
    self.pool_size = pool_size
    self.linear = nn.Linear(features, width)
    self.pool = nn.AvgPool1d(pool_size)
    self.gain = nn.Parameter(torch.rand(1))
"""

_VECTOR = (
    _INIT
    + """
    with torch.no_grad():
        factor = self.gain / pool_size
        self.register_buffer("vector", self.linear.weight.sum(dim=0) * factor)
        self.register_buffer("constant", self.linear.bias.sum() * factor)
"""
)

MODULE = Rewritten(
    name="linear_pool_sum_elu",
    sizes="""
        batch_size = 2048
        features = 2048
        width = 4096
        pool_size = 4
    """,
    arguments=("features", "width", "pool_size"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="A linear layer, average pooling of neighbouring features, their sum, a gain, ELU, a residual.",
        init=_INIT,
        forward="""
            y = self.linear(x)
            y = self.pool(y.unsqueeze(1)).squeeze(1)
            y = torch.sum(y, dim=1, keepdim=True)
            y = y * self.gain
            y = F.elu(y)
            return x + y
        """,
    ),
    rewrites={
        "one_vector": Body(
            summary="Linear up to ELU, so the whole layer is a product with one vector.",
            init=_VECTOR,
            forward="return x + F.elu(torch.mv(x, self.vector) + self.constant).unsqueeze(1)",
        ),
        "one_vector_each_call": Body(
            forward="""
                factor = self.gain / self.pool_size
                vector = self.linear.weight.sum(dim=0)
                y = (x @ vector + self.linear.bias.sum()) * factor
                return x + F.elu_(y)[:, None]
            """
        ),
        "pooled_weights": Body(
            summary="Pools the rows of the weight once, so that the product is narrower by the pool's size.",
            init=_INIT
            + """
    with torch.no_grad():
        weight = self.linear.weight.view(-1, pool_size, features).mean(dim=1)
        bias = self.linear.bias.view(-1, pool_size).mean(dim=1)
        self.register_buffer("pooled_weight", weight.contiguous())
        self.register_buffer("pooled_bias", bias.contiguous())
""",
            forward="""
                y = F.linear(x, self.pooled_weight, self.pooled_bias)
                y = y.sum(dim=1, keepdim=True).mul_(self.gain)
                return F.elu_(y) + x
            """,
        ),
        "mean_of_view": Body(
            forward="""
                y = self.linear(x).view(x.shape[0], -1, self.pool_size).mean(dim=-1)
                return x + F.elu(y.sum(dim=-1, keepdim=True) * self.gain)
            """
        ),
        "no_pooling": Body(
            summary="The sum of averages is the sum over the pool's size.",
            forward="""
                ones = x.new_full((self.linear.out_features, 1), 1.0 / self.pool_size)
                y = torch.addmm(self.linear.bias, x, self.linear.weight.t()) @ ones
                y = F.elu_(y.mul_(self.gain))
                return torch.add(x, y)
            """,
        ),
        "row_chunks": Body(
            summary="Goes over the batch in pieces, with a result allocated once.",
            forward="""
                self._check(x)
                out = torch.empty_like(x)
                for rows, target in zip(x.split(self.rows), out.split(self.rows)):
                    torch.add(rows, self._shift(rows), out=target)
                return out
            """,
            init=_INIT
            + """
    self.rows = 64
""",
            methods="""
                def _check(self, x):
                    if x.dim() != 2 or x.shape[1] != self.linear.in_features:
                        raise ValueError(f"unexpected input of shape {tuple(x.shape)}")

                def _shift(self, rows):
                    y = self.linear(rows)
                    y = F.avg_pool1d(y.unsqueeze(1), self.pool_size).squeeze(1)
                    return F.elu(y.sum(dim=1, keepdim=True) * self.gain)
            """,
        ),
        "triton_product_sum": Body(
            before=_TRITON,
            forward="""
                x = x.contiguous()
                m, k = x.shape
                n = self.linear.out_features
                sums = torch.zeros(m, device=x.device, dtype=x.dtype)
                grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
                product_sum_kernel[grid](
                    x, self.linear.weight, self.linear.bias, sums, m, n, k, BM=128, BN=64, BK=32, num_warps=8
                )
                return x + F.elu(sums * (self.gain / self.pool_size)).unsqueeze(1)
            """,
        ),
        "cuda_row_shift": Body(
            before=_CUDA,
            init=_VECTOR,
            forward="return row_module.shift_rows(x.contiguous(), self.vector, self.constant)",
        ),
    },
    carries_on="one_vector",
)
