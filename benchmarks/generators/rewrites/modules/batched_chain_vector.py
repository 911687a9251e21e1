"""A chain of two batched small matrices and a vector, scaled and squashed."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_CHAIN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def chain_kernel(a_ptr, b_ptr, v_ptr, out_ptr, scale, D: tl.constexpr):
    item = tl.program_id(0)
    rows = tl.arange(0, D)
    cols = tl.arange(0, D)
    tile = item * D * D + rows[:, None] * D + cols[None, :]
    v = tl.load(v_ptr + item * D + cols)
    b = tl.load(b_ptr + tile)
    a = tl.load(a_ptr + tile)
    inner = tl.sum(b * v[None, :], axis=1)
    y = tl.sum(a * inner[None, :], axis=1) * scale
    # tanh through the logistic function
    tl.store(out_ptr + item * D + rows, 2.0 * tl.sigmoid(2.0 * y) - 1.0)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block per item of the batch, one warp per row of a matrix, twice.
__device__ __forceinline__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_down_sync(0xffffffff, value, offset);
    return value;
}

__global__ void chain(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ v,
                      float* __restrict__ out, int d, float scale) {
    extern __shared__ float shared[];
    float* vec = shared;
    float* inner = shared + d;
    long item = blockIdx.x;
    int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    int warps = blockDim.x / 32;
    for (int i = threadIdx.x; i < d; i += blockDim.x) vec[i] = v[item * d + i];
    __syncthreads();
    for (int row = warp; row < d; row += warps) {
        const float* line = b + (item * d + row) * d;
        float sum = 0.0f;
        for (int k = lane; k < d; k += 32) sum += line[k] * vec[k];
        sum = warp_sum(sum);
        if (lane == 0) inner[row] = sum;
    }
    __syncthreads();
    for (int row = warp; row < d; row += warps) {
        const float* line = a + (item * d + row) * d;
        float sum = 0.0f;
        for (int k = lane; k < d; k += 32) sum += line[k] * inner[k];
        sum = warp_sum(sum);
        if (lane == 0) out[item * d + row] = tanhf(sum * scale);
    }
}

torch::Tensor chain_vector(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale) {
    int batch = a.size(0);
    int d = a.size(1);
    auto out = torch::empty_like(v);
    chain<<<batch, 256, 2 * d * sizeof(float)>>>(a.data_ptr<float>(), b.data_ptr<float>(), v.data_ptr<float>(),
                                                 out.data_ptr<float>(), d, (float)scale);
    return out;
}
"""
chain_module = load_inline(
    name="batched_chain_vector_warps",
    cpp_sources="torch::Tensor chain_vector(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale);",
    cuda_sources=source,
    functions=["chain_vector"],
)
'''

MODULE = Rewritten(
    name="batched_chain_vector",
    sizes="""
        batch_size = 2048
        dim = 64
    """,
    arguments=("dim",),
    takes="a, b, v",
    inputs="""[
        torch.randn(batch_size, dim, dim),
        torch.randn(batch_size, dim, dim),
        torch.randn(batch_size, dim),
    ]""",
    reference=Body(
        summary="tanh(A B v / dim), for a batch of square matrices A and B and vectors v.",
        init="""
            self.dim = dim
            self.scale = 1.0 / dim
        """,
        forward="""
            product = torch.bmm(a, b)
            y = torch.bmm(product, v.unsqueeze(-1)).squeeze(-1)
            y = y * self.scale
            return torch.tanh(y)
        """,
    ),
    rewrites={
        "vector_first": Body(
            forward="""
                y = torch.bmm(a, torch.bmm(b, v.unsqueeze(-1))).squeeze(-1)
                return torch.tanh_(y.mul_(self.scale))
            """
        ),
        "folded_scale": Body(
            summary="The scale rides along in the second product as alpha.",
            forward="""
                inner = torch.bmm(b, v.unsqueeze(2))
                empty = inner.new_empty(())
                return torch.baddbmm(empty.expand(a.shape[0], self.dim, 1), a, inner, beta=0, alpha=self.scale)\\
                    .squeeze(2).tanh_()
            """,
        ),
        "one_einsum": Body(forward='return torch.tanh(torch.einsum("bij,bjk,bk->bi", a, b, v) * self.scale)'),
        "two_einsums": Body(
            forward="""
                inner = torch.einsum("bjk,bk->bj", b, v * self.scale)
                return torch.einsum("bij,bj->bi", a, inner).tanh()
            """
        ),
        "multiply_and_sum": Body(
            forward="""
                inner = (b * v[:, None, :]).sum(dim=-1)
                return torch.tanh((a * inner[:, None, :]).sum(dim=-1) * self.scale)
            """
        ),
        "chunked_batch": Body(
            summary="Works on slices of the batch, to keep the intermediate vectors in cache.",
            init="""
                self.dim = dim
                self.scale = 1.0 / dim
                self.slice = 64
            """,
            forward="""
                out = torch.empty_like(v)
                for start in range(0, a.shape[0], self.slice):
                    stop = min(start + self.slice, a.shape[0])
                    self.one_slice(a[start:stop], b[start:stop], v[start:stop], out[start:stop])
                return out
            """,
            methods="""
                def one_slice(self, a, b, v, out):
                    inner = torch.matmul(b, v.unsqueeze(-1))
                    y = torch.matmul(a, inner).squeeze(-1)
                    torch.tanh(y.mul_(self.scale), out=out)
            """,
        ),
        "triton_chain": Body(
            before=_CHAIN_KERNEL,
            forward="""
                out = torch.empty_like(v)
                chain_kernel[(v.shape[0],)](a, b, v, out, self.scale, D=self.dim, num_warps=4)
                return out
            """,
        ),
        "cuda_warps": Body(
            before=_CUDA,
            forward="return chain_module.chain_vector(a.contiguous(), b.contiguous(), v.contiguous(), self.scale)",
        ),
    },
    carries_on="vector_first",
)
