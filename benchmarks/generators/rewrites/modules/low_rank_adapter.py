"""A linear layer with a scaled low-rank correction beside it."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_UP_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def up_kernel(y_ptr, h_ptr, up_ptr, rows_count, width, scale,
              RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rank = tl.arange(0, RANK)
    h = tl.load(h_ptr + rows[:, None] * RANK + rank[None, :], mask=rows[:, None] < rows_count, other=0.0)
    up = tl.load(up_ptr + cols[None, :] * RANK + rank[:, None], mask=cols[None, :] < width, other=0.0)
    keep = (rows[:, None] < rows_count) & (cols[None, :] < width)
    at = y_ptr + rows[:, None] * width + cols[None, :]
    y = tl.load(at, mask=keep, other=0.0)
    tl.store(at, y + scale * tl.dot(h, up, input_precision="ieee"), mask=keep)
"""

_INIT = """
    self.base = nn.Linear(features, width)
    self.down = nn.Linear(features, rank, bias=False)
    self.up = nn.Linear(rank, width, bias=False)
    self.scale = 32.0 / rank
"""

_CUDA_SQUARE_TILES = '''
from torch.utils.cpp_extension import load_inline

adapter_source = r"""
#include <torch/extension.h>

#define TILE 16
#define MAX_RANK 64

// one thread per row and rank
__global__ void down_kernel(const float* __restrict__ x, const float* __restrict__ down, float* __restrict__ h,
                            int tokens, int features, int rank) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= tokens * rank) return;
    int row = idx / rank;
    int r = idx % rank;
    float sum = 0.0f;
    for (int k = 0; k < features; k++) sum += x[row * features + k] * down[r * features + k];
    h[idx] = sum;
}

// base product in tiles of 16 x 16, and the adapter's part behind it
__global__ void base_up_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                               const float* __restrict__ bias, const float* __restrict__ h,
                               const float* __restrict__ up, float* __restrict__ out, int tokens, int features,
                               int width, int rank, float scale) {
    __shared__ float xs[TILE][TILE];
    __shared__ float ws[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < features; k0 += TILE) {
        int k = k0 + threadIdx.x;
        int o = blockIdx.x * TILE + threadIdx.y;
        xs[threadIdx.y][threadIdx.x] = (row < tokens && k < features) ? x[row * features + k] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = (o < width && k < features) ? weight[o * features + k] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILE; j++) sum += xs[threadIdx.y][j] * ws[threadIdx.x][j];
        __syncthreads();
    }
    if (row < tokens && col < width) {
        float correction = 0.0f;
        for (int r = 0; r < rank; r++) correction += h[row * rank + r] * up[col * rank + r];
        out[row * width + col] = sum + bias[col] + scale * correction;
    }
}

torch::Tensor adapter_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor down,
                              torch::Tensor up, double scale) {
    int tokens = x.size(0), features = x.size(1), width = weight.size(0), rank = down.size(0);
    auto h = torch::empty({tokens, rank}, x.options());
    auto out = torch::empty({tokens, width}, x.options());
    down_kernel<<<(tokens * rank + 255) / 256, 256>>>(x.data_ptr<float>(), down.data_ptr<float>(),
                                                      h.data_ptr<float>(), tokens, features, rank);
    dim3 block(TILE, TILE);
    dim3 grid((width + TILE - 1) / TILE, (tokens + TILE - 1) / TILE);
    base_up_kernel<<<grid, block>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                    h.data_ptr<float>(), up.data_ptr<float>(), out.data_ptr<float>(), tokens,
                                    features, width, rank, (float)scale);
    return out;
}
"""
adapter_module = load_inline(
    name="low_rank_adapter_tiles",
    cpp_sources="torch::Tensor adapter_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor down, torch::Tensor up, double scale);",
    cuda_sources=adapter_source,
    functions=["adapter_forward"],
)
'''

_CUDA_UP = '''
from torch.utils.cpp_extension import load_inline

up_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define ROWS 16

// y += scale * h U^T, in place. A thread keeps its column of the up projection in registers for 16 rows; their few
// values per row come from shared memory.
template <int RANK>
__global__ void add_up_kernel(float* __restrict__ y, const float* __restrict__ h, const float* __restrict__ up,
                              int tokens, int width, float scale) {
    __shared__ float sh[ROWS][RANK];
    const int first = blockIdx.y * ROWS;
    for (int i = threadIdx.x; i < ROWS * RANK; i += blockDim.x) {
        const int r = i / RANK;
        sh[r][i % RANK] = first + r < tokens ? h[(long)(first + r) * RANK + i % RANK] : 0.0f;
    }
    __syncthreads();
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= width) return;
    float u[RANK];
#pragma unroll
    for (int k = 0; k < RANK; ++k) u[k] = up[(long)col * RANK + k] * scale;
    for (int r = 0; r < ROWS && first + r < tokens; ++r) {
        const long at = (long)(first + r) * width + col;
        float sum = y[at];
#pragma unroll
        for (int k = 0; k < RANK; ++k) sum = fmaf(sh[r][k], u[k], sum);
        y[at] = sum;
    }
}

torch::Tensor add_up_(torch::Tensor y, torch::Tensor h, torch::Tensor up, double scale) {
    TORCH_CHECK(y.is_cuda() && h.is_cuda() && up.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(y.is_contiguous() && h.is_contiguous() && up.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(y.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(h.size(1) == 16 && up.size(1) == 16, "the kernel is made for rank 16");
    const int tokens = y.size(0), width = y.size(1);
    dim3 grid((width + 255) / 256, (tokens + ROWS - 1) / ROWS);
    add_up_kernel<16><<<grid, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<float>(), h.data_ptr<float>(), up.data_ptr<float>(), tokens, width, (float)scale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
up_module = load_inline(
    name="low_rank_adapter_up",
    cpp_sources="torch::Tensor add_up_(torch::Tensor y, torch::Tensor h, torch::Tensor up, double scale);",
    cuda_sources=up_source,
    functions=["add_up_"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="low_rank_adapter",
    sizes="""
        tokens = 3072
        features = 1024
        width = 1024
        rank = 16
    """,
    arguments=("features", "width", "rank"),
    takes="x",
    inputs="[torch.randn(tokens, features)]",
    reference=Body(
        summary="A frozen linear layer plus a low-rank adapter: W x + b + scale * U (D x).",
        init=_INIT,
        forward="""
            y = self.base(x)
            correction = self.up(self.down(x)) * self.scale
            return y + correction
        """,
    ),
    rewrites={
        "merged_each_call": Body(
            forward="""
                weight = self.base.weight + self.scale * (self.up.weight @ self.down.weight)
                return F.linear(x, weight, self.base.bias)
            """
        ),
        "merged_once": Body(
            summary="The adapter is merged into the weight on first use and again whenever a weight has changed.",
            init=_INIT
            + """
    self.merged = None
    self.merged_for = None
""",
            forward="return F.linear(x, self.merged_weight(), self.base.bias)",
            methods='''
                def merged_weight(self):
                    """The sum of the weights, from the cache where it is still right."""
                    sources = (self.base.weight, self.down.weight, self.up.weight)
                    state = tuple((weight.data_ptr(), weight._version, weight.device) for weight in sources)
                    if self.merged is None or self.merged_for != state:
                        self.merged = torch.addmm(
                            self.base.weight, self.up.weight, self.down.weight, alpha=self.scale
                        ).contiguous()
                        self.merged_for = state
                    return self.merged
            ''',
        ),
        "accumulating_product": Body(
            forward="""
                y = torch.addmm(self.base.bias, x, self.base.weight.t())
                return y.addmm_(x @ self.down.weight.t(), self.up.weight.t(), alpha=self.scale)
            """
        ),
        "stacked_down": Body(
            summary="Base and down projections read the input once, as one product with stacked weights.",
            init=_INIT
            + """
    self.width = width
    with torch.no_grad():
        self.register_buffer("stacked", torch.cat([self.base.weight, self.down.weight * self.scale]))
        self.register_buffer("stacked_bias", torch.cat([self.base.bias, torch.zeros(rank)]))
""",
            forward="""
                both = F.linear(x, self.stacked, self.stacked_bias)
                return torch.addmm(both[:, : self.width], both[:, self.width :], self.up.weight.t())
            """,
        ),
        "joined_inputs": Body(
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("joined", torch.cat([self.base.weight, self.scale * self.up.weight], dim=1))
""",
            forward="return F.linear(torch.cat([x, self.down(x)], dim=1), self.joined, self.base.bias)",
        ),
        "dense_correction": Body(
            forward="""
                # Form the correction matrix first so that only two products touch the activations.
                delta = torch.mm(self.down.weight.t(), self.up.weight.t()).mul_(self.scale)
                return torch.addmm(F.linear(x, self.base.weight, self.base.bias), x, delta)
            """
        ),
        "rank_by_rank": Body(
            forward="""
                y = self.base(x)
                h = self.down(x) * self.scale
                for r in range(h.shape[1]):
                    y.addcmul_(h[:, r : r + 1], self.up.weight[:, r])
                return y
            """
        ),
        "triton_up": Body(
            before=_UP_KERNEL,
            forward="""
                y = self.base(x)
                h = self.down(x)
                n, width = y.shape
                grid = (triton.cdiv(n, 32), triton.cdiv(width, 128))
                up_kernel[grid](y, h, self.up.weight, n, width, self.scale,
                                RANK=h.shape[1], BLOCK_R=32, BLOCK_C=128, num_warps=4)
                return y
            """,
        ),
        "cuda_square_tiles": Body(
            before=_CUDA_SQUARE_TILES,
            forward="""
                return adapter_module.adapter_forward(
                    x.contiguous(), self.base.weight, self.base.bias, self.down.weight, self.up.weight, self.scale
                )
            """,
        ),
        "cuda_up_in_place": Body(
            summary="Base and down projections by the library; a kernel adds the scaled up projection in place.",
            before=_CUDA_UP,
            init=_INIT,
            methods='''
                def _add_correction(self, y, h):
                    """y + scale * U h."""
                    if y.is_cuda and y.dtype == torch.float32 and y.dim() == 2 and h.shape[1] == 16:
                        return up_module.add_up_(y.contiguous(), h.contiguous(), self.up.weight, self.scale)
                    return torch.add(y, self.up(h), alpha=self.scale)
            ''',
            forward="return self._add_correction(self.base(x), self.down(x))",
        ),
    },
    carries_on="merged_once",
)
