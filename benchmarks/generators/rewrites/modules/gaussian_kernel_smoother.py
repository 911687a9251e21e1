"""Kernel regression: Gaussian weights from pairwise distances to learned anchors, and a weighted mean of values."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SMOOTH_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def smooth_kernel(x_ptr, anchor_ptr, shift_ptr, value_ptr, out_ptr, n, anchors, gamma,
                  BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    v = tl.arange(0, V)
    x = tl.load(x_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    best = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_N, V), dtype=tl.float32)
    for start in range(0, anchors, BLOCK_M):
        at = start + tl.arange(0, BLOCK_M)
        near = at < anchors
        anchor = tl.load(anchor_ptr + at[None, :] * D + d[:, None], mask=near[None, :], other=0.0)
        shift = tl.load(shift_ptr + at, mask=near, other=float("-inf"))
        score = 2.0 * gamma * tl.dot(x, anchor, input_precision="tf32x3") + shift[None, :]
        top = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, axis=1)
        value = tl.load(value_ptr + at[:, None] * V + v[None, :], mask=near[:, None], other=0.0)
        acc = acc * fade[:, None] + tl.dot(weight, value, input_precision="tf32x3")
        best = top
    tl.store(out_ptr + rows[:, None] * V + v[None, :], acc / total[:, None], mask=rows[:, None] < n)
"""

_INIT = """
    self.anchors = nn.Parameter(torch.randn(anchors, dim))
    self.values = nn.Parameter(torch.randn(anchors, width))
    self.gamma = 0.5 / dim
"""

_CUDA_QUERIES = '''
from torch.utils.cpp_extension import load_inline

queries_source = r"""
#include <torch/extension.h>

#define DIM 64
#define WIDTH 32
#define BLOCK 64
#define TILE 32

// Each thread has a query. Anchors and values come in tiles through shared memory.
__global__ void smoother_kernel(const float* __restrict__ x, const float* __restrict__ anchors,
                                const float* __restrict__ values, float* __restrict__ out, int queries, int count,
                                float gamma) {
    __shared__ float sa[TILE][DIM];
    __shared__ float sv[TILE][WIDTH];
    int q = blockIdx.x * BLOCK + threadIdx.x;
    float mine[DIM];
    for (int d = 0; d < DIM; d++) mine[d] = q < queries ? x[q * DIM + d] : 0.0f;
    float acc[WIDTH];
    for (int v = 0; v < WIDTH; v++) acc[v] = 0.0f;
    float total = 0.0f;
    for (int start = 0; start < count; start += TILE) {
        int here = min(TILE, count - start);
        for (int i = threadIdx.x; i < here * DIM; i += BLOCK) sa[i / DIM][i % DIM] = anchors[start * DIM + i];
        for (int i = threadIdx.x; i < here * WIDTH; i += BLOCK) sv[i / WIDTH][i % WIDTH] = values[start * WIDTH + i];
        __syncthreads();
        for (int m = 0; m < here; m++) {
            float distance = 0.0f;
#pragma unroll
            for (int d = 0; d < DIM; d++) {
                float diff = mine[d] - sa[m][d];
                distance += diff * diff;
            }
            float k = expf(-gamma * distance);
            total += k;
#pragma unroll
            for (int v = 0; v < WIDTH; v++) acc[v] += k * sv[m][v];
        }
        __syncthreads();
    }
    if (q < queries) {
        for (int v = 0; v < WIDTH; v++) out[q * WIDTH + v] = acc[v] / total;
    }
}

torch::Tensor smooth(torch::Tensor x, torch::Tensor anchors, torch::Tensor values, double gamma) {
    TORCH_CHECK(x.size(1) == DIM && values.size(1) == WIDTH, "the kernel is made for 64 and 32 features");
    int queries = x.size(0);
    auto out = torch::empty({queries, WIDTH}, x.options());
    smoother_kernel<<<(queries + BLOCK - 1) / BLOCK, BLOCK>>>(x.data_ptr<float>(), anchors.data_ptr<float>(),
                                                              values.data_ptr<float>(), out.data_ptr<float>(),
                                                              queries, (int)anchors.size(0), (float)gamma);
    return out;
}
"""
smooth_module = load_inline(
    name="gaussian_kernel_smoother_queries",
    cpp_sources="torch::Tensor smooth(torch::Tensor x, torch::Tensor anchors, torch::Tensor values, double gamma);",
    cuda_sources=queries_source,
    functions=["smooth"],
)
'''

_CUDA_WEIGHTS = '''
from torch.utils.cpp_extension import load_inline

weights_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// From products <x, anchor> to normalised weights, in place, a warp per query. |x|^2 cancels out.
__global__ void kernel_weights(float* __restrict__ products, const float* __restrict__ norms, int rows, int count,
                               float gamma) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float* line = products + (long)row * count;
    float best = -INFINITY;
    for (int j = lane; j < count; j += 32) best = fmaxf(best, gamma * (2.0f * line[j] - norms[j]));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, o));
    float sum = 0.0f;
    for (int j = lane; j < count; j += 32) {
        const float e = expf(gamma * (2.0f * line[j] - norms[j]) - best);
        line[j] = e;
        sum += e;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    const float inverse = 1.0f / sum;
    for (int j = lane; j < count; j += 32) line[j] *= inverse;
}

torch::Tensor kernel_weights_(torch::Tensor products, torch::Tensor norms, double gamma) {
    TORCH_CHECK(products.is_cuda() && products.is_contiguous(), "a contiguous CUDA tensor expected");
    TORCH_CHECK(products.size(1) == norms.size(0), "a norm per anchor expected");
    const int rows = products.size(0), count = products.size(1);
    kernel_weights<<<(rows + 3) / 4, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        products.data_ptr<float>(), norms.data_ptr<float>(), rows, count, (float)gamma);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return products;
}
"""
weights_module = load_inline(
    name="gaussian_kernel_smoother_weights",
    cpp_sources="torch::Tensor kernel_weights_(torch::Tensor products, torch::Tensor norms, double gamma);",
    cuda_sources=weights_source,
    functions=["kernel_weights_"],
)
'''

MODULE = Rewritten(
    name="gaussian_kernel_smoother",
    sizes="""
        queries = 2048
        anchors = 1024
        dim = 64
        width = 32
    """,
    arguments=("anchors", "dim", "width"),
    takes="x",
    inputs="[torch.randn(queries, dim)]",
    reference=Body(
        summary="Means of the anchors' values, weighted by exp(-gamma |x - anchor|^2).",
        init=_INIT,
        forward="""
            diff = x.unsqueeze(1) - self.anchors.unsqueeze(0)
            distance = (diff ** 2).sum(dim=-1)
            weights = torch.exp(-self.gamma * distance)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            return weights @ self.values
        """,
    ),
    rewrites={
        "cdist": Body(
            forward="""
                distance = torch.cdist(x, self.anchors)
                weights = torch.softmax(distance.square_().mul_(-self.gamma), dim=-1)
                return weights @ self.values
            """
        ),
        "exact_cdist": Body(
            forward="""
                d = torch.cdist(x, self.anchors, compute_mode="donot_use_mm_for_euclid_dist")
                k = torch.exp(-self.gamma * d * d)
                return torch.mm(k, self.values) / k.sum(dim=1, keepdim=True)
            """
        ),
        "expanded_square": Body(
            forward="""
                x2 = x.pow(2).sum(dim=1, keepdim=True)
                a2 = self.anchors.pow(2).sum(dim=1)
                d2 = x2 + a2 - 2 * (x @ self.anchors.t())
                k = torch.exp(-self.gamma * d2.clamp_min(0))
                k = k / k.sum(dim=-1, keepdim=True)
                return k @ self.values
            """
        ),
        "dropped_norm": Body(
            summary="|x|^2 is the same for all anchors and drops out of the normalised weights.",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("shift", -self.gamma * self.anchors.square().sum(dim=1))
        self.register_buffer("scaled", (2 * self.gamma * self.anchors).t().contiguous())
""",
            forward="return torch.addmm(self.shift, x, self.scaled).softmax(dim=-1) @ self.values",
        ),
        "attention": Body(
            summary="The smoother written as attention with a bias per key.",
            init=_INIT,
            forward="""
                bias = -self.gamma * (self.anchors * self.anchors).sum(dim=-1)
                values, width = self.padded_values()
                out = F.scaled_dot_product_attention(
                    x[None, None],
                    self.anchors[None, None],
                    values[None, None],
                    attn_mask=bias.view(1, 1, 1, -1).expand(1, 1, x.shape[0], -1),
                    scale=2 * self.gamma,
                )
                return out[0, 0, :, :width]
            """,
            methods="""
                def padded_values(self):
                    # Fused attention wants values as wide as keys.
                    width = self.values.shape[1]
                    missing = self.anchors.shape[1] - width
                    if missing > 0:
                        return F.pad(self.values, (0, missing)), width
                    return self.values, width
            """,
        ),
        "blocks_of_queries": Body(
            summary="The pairwise differences of a few queries at a time, to save memory.",
            forward="""
                outputs = []
                for rows in x.split(256):
                    diff = rows[:, None, :] - self.anchors
                    k = torch.exp(diff.square_().sum(dim=-1).mul_(-self.gamma))
                    outputs.append(torch.mm(k, self.values).div_(k.sum(dim=-1, keepdim=True)))
                return torch.cat(outputs, dim=0)
            """,
        ),
        "ones_among_values": Body(
            summary="A column of ones beside the values makes the normaliser come out of the same product.",
            init=_INIT
            + """
    self.width = width
    self.register_buffer("extended", F.pad(self.values.detach(), (0, 8), value=1.0))
""",
            forward="""
                # (the eight columns of ones keep the width a multiple of eight)
                a2 = self.anchors.square().sum(dim=1)
                scores = torch.addmm(a2, x, self.anchors.t(), beta=-self.gamma, alpha=2 * self.gamma)
                x2 = torch.linalg.vecdot(x, x).unsqueeze(1)
                sums = torch.exp_(scores.sub_(x2, alpha=self.gamma)) @ self.extended
                return sums[:, : self.width] / sums[:, self.width : self.width + 1]
            """,
        ),
        "triton_online": Body(
            before=_SMOOTH_KERNEL,
            forward="""
                n, d = x.shape
                m, v = self.values.shape
                shift = self.anchors.square().sum(dim=1).mul_(-self.gamma)
                out = torch.empty(n, v, device=x.device)
                smooth_kernel[(triton.cdiv(n, 32),)](
                    x, self.anchors, shift, self.values, out, n, m, self.gamma,
                    BLOCK_N=32, BLOCK_M=64, D=d, V=v, num_warps=4,
                )
                return out
            """,
        ),
        "cuda_thread_per_query": Body(
            before=_CUDA_QUERIES,
            forward="return smooth_module.smooth(x.contiguous(), self.anchors, self.values, self.gamma)",
        ),
        "cuda_weights": Body(
            summary="Both products by the library; the weights between them in one kernel, in place.",
            before=_CUDA_WEIGHTS,
            init=_INIT
            + """
    self.register_buffer("norms", self.anchors.detach().square().sum(dim=1))
""",
            methods='''
                def _weights(self, x):
                    """Normalised Gaussian weights of the anchors."""
                    products = torch.mm(x, self.anchors.t())
                    if products.is_cuda and products.dtype == torch.float32:
                        return weights_module.kernel_weights_(products, self.norms, self.gamma)
                    return torch.softmax(self.gamma * (2.0 * products - self.norms), dim=-1)
            ''',
            forward="return torch.mm(self._weights(x), self.values)",
        ),
    },
    carries_on="dropped_norm",
)
