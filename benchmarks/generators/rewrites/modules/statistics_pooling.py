"""Mean, deviation and maximum of each feature over time, side by side."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def time_statistics(x_ptr, out_ptr, steps, features, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = cols < features
    sums = tl.zeros([ROWS, COLS], dtype=tl.float32)
    squares = tl.zeros([ROWS, COLS], dtype=tl.float32)
    highest = tl.full([ROWS, COLS], -float("inf"), dtype=tl.float32)
    base = x_ptr + sample * steps * features
    for start in range(0, steps, ROWS):
        rows = start + tl.arange(0, ROWS)
        keep = (rows < steps)[:, None] & inside[None, :]
        x = tl.load(base + rows[:, None] * features + cols[None, :], mask=keep, other=0.0)
        sums += x
        squares += x * x
        highest = tl.maximum(highest, tl.where(keep, x, -float("inf")))
    mean = tl.sum(sums, axis=0) / steps
    var = tl.maximum(tl.sum(squares, axis=0) / steps - mean * mean, 0.0)
    out_ptr += sample * 3 * features
    tl.store(out_ptr + cols, mean, mask=inside)
    tl.store(out_ptr + features + cols, tl.sqrt(var + eps), mask=inside)
    tl.store(out_ptr + 2 * features + cols, tl.max(highest, axis=0), mask=inside)
"""

_CUDA_STRIPES = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

constexpr int COLS = 32;
constexpr int ROWS = 16;

// 32 features by 16 lanes of time per block; moments about the first step, so that squares stay small.
__global__ void pool_statistics(const float* __restrict__ x, float* __restrict__ out, int steps, int features,
                                float eps) {
    __shared__ float sums[ROWS][COLS], squares[ROWS][COLS], tops[ROWS][COLS];
    const int f = blockIdx.x * COLS + threadIdx.x;
    const int64_t sample = blockIdx.y;
    const float* base = x + sample * steps * features + f;
    float sum = 0.0f, square = 0.0f, top = -INFINITY, pivot = 0.0f;
    if (f < features) {
        pivot = base[0];
        #pragma unroll 4
        for (int t = threadIdx.y; t < steps; t += ROWS) {
            const float v = base[(int64_t)t * features];
            const float d = v - pivot;
            sum += d;
            square = fmaf(d, d, square);
            top = fmaxf(top, v);
        }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    squares[threadIdx.y][threadIdx.x] = square;
    tops[threadIdx.y][threadIdx.x] = top;
    __syncthreads();
    if (threadIdx.y != 0 || f >= features) return;
    for (int r = 1; r < ROWS; ++r) {
        sum += sums[r][threadIdx.x];
        square += squares[r][threadIdx.x];
        top = fmaxf(top, tops[r][threadIdx.x]);
    }
    const float mean = sum / steps;
    const float var = fmaxf(square / steps - mean * mean, 0.0f);
    float* result = out + sample * 3 * features + f;
    result[0] = mean + pivot;
    result[features] = sqrtf(var + eps);
    result[2 * features] = top;
}

torch::Tensor pool_forward(torch::Tensor x, double eps) {
    const int batch = x.size(0), steps = x.size(1), features = x.size(2);
    auto out = torch::empty({batch, 3 * features}, x.options());
    pool_statistics<<<dim3((features + COLS - 1) / COLS, batch), dim3(COLS, ROWS), 0,
                      at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), out.data_ptr<float>(), steps, features,
                                                          (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
pool_module = load_inline(
    name="statistics_pooling_stripes",
    cpp_sources="torch::Tensor pool_forward(torch::Tensor x, double eps);",
    cuda_sources=source,
    functions=["pool_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_COLUMN_BLOCKS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

#define BLOCK 256

__device__ float reduce_sum(float value, float* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    float total = shared[0];
    __syncthreads();
    return total;
}

// One block per sample and feature.
__global__ void mean_std_kernel(const float* x, float* mean_out, float* std_out, int steps, int features, float eps) {
    __shared__ float shared[BLOCK];
    long n = blockIdx.x / features;
    int f = blockIdx.x % features;
    const float* series = x + n * steps * features + f;
    float sum = 0.0f;
    for (int t = threadIdx.x; t < steps; t += BLOCK) sum += series[(long)t * features];
    float mean = reduce_sum(sum, shared) / steps;
    float square = 0.0f;
    for (int t = threadIdx.x; t < steps; t += BLOCK) {
        float d = series[(long)t * features] - mean;
        square += d * d;
    }
    float var = reduce_sum(square, shared) / steps;
    if (threadIdx.x == 0) {
        mean_out[blockIdx.x] = mean;
        std_out[blockIdx.x] = sqrtf(var + eps);
    }
}

std::vector<torch::Tensor> mean_std(torch::Tensor x, double eps) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    int batch = x.size(0), steps = x.size(1), features = x.size(2);
    auto mean = torch::empty({batch, features}, x.options());
    auto std_out = torch::empty({batch, features}, x.options());
    mean_std_kernel<<<batch * features, BLOCK>>>(x.data_ptr<float>(), mean.data_ptr<float>(),
                                                 std_out.data_ptr<float>(), steps, features, (float)eps);
    return {mean, std_out};
}
"""

mean_std_ext = load_inline(
    name="statistics_pooling_column_blocks",
    cpp_sources="std::vector<torch::Tensor> mean_std(torch::Tensor x, double eps);",
    cuda_sources=cuda_source,
    functions=["mean_std"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="statistics_pooling",
    sizes="""
        batch_size = 96
        steps = 1000
        features = 512
    """,
    arguments=("features",),
    takes="x",
    inputs="[torch.randn(batch_size, steps, features) + 0.5]",
    in_half=False,
    reference=Body(
        summary="Pools a sequence into its mean, standard deviation and maximum per feature.",
        init="""
            self.features = features
            self.eps = 1e-5
        """,
        forward="""
            mean = torch.mean(x, dim=1, keepdim=True)
            var = torch.mean((x - mean) ** 2, dim=1, keepdim=True)
            std = torch.sqrt(var + self.eps)
            highest = torch.max(x, dim=1, keepdim=True)[0]
            return torch.cat([mean, std, highest], dim=-1).squeeze(1)
        """,
    ),
    rewrites={
        "var_mean_amax": Body(
            forward="""
                var, mean = torch.var_mean(x, dim=1, correction=0)
                return torch.cat([mean, (var + self.eps).sqrt_(), x.amax(dim=1)], dim=1)
            """
        ),
        "amax_only": Body(
            forward="""
                mean = x.mean(dim=1, keepdim=True)
                std = torch.sqrt((x - mean).square_().mean(dim=1, keepdim=True) + self.eps)
                return torch.cat([mean, std, torch.amax(x, dim=1, keepdim=True)], dim=-1).squeeze(1)
            """
        ),
        "second_moment": Body(
            forward="""
                mean = x.mean(dim=1)
                second = torch.square(x).mean(dim=1)
                std = torch.addcmul(second, mean, mean, value=-1).clamp_(min=0).add_(self.eps).sqrt_()
                return torch.cat([mean, std, x.amax(dim=1)], dim=1)
            """
        ),
        "moments_by_norm": Body(
            forward="""
                steps = x.shape[1]
                mean = torch.matmul(x.new_full((1, steps), 1.0 / steps), x).squeeze(1)
                norm = torch.linalg.vector_norm(x, dim=1)
                std = torch.sqrt(norm * norm / steps - mean * mean + self.eps)
                return torch.cat([mean, std, x.amax(dim=1)], dim=1)
            """
        ),
        "time_last": Body(
            forward="""
                y = x.transpose(1, 2).contiguous()
                var, mean = torch.var_mean(y, dim=-1, correction=0)
                return torch.cat([mean, torch.sqrt(var + self.eps), y.amax(dim=-1)], dim=1)
            """
        ),
        "library_pools": Body(
            summary="Statistics by one-dimensional pooling over the whole of the time axis.",
            forward="""
                y = x.transpose(1, 2)
                mean = F.adaptive_avg_pool1d(y, 1)
                second = F.adaptive_avg_pool1d(y * y, 1)
                highest = F.adaptive_max_pool1d(y, 1)
                std = torch.sqrt(second - mean * mean + self.eps)
                return torch.cat([mean, std, highest], dim=1).squeeze(-1)
            """,
        ),
        "preallocated_slices": Body(
            summary="""Statistics pooling that writes each part into its place in the result.

    The concatenation is saved; sums run over slabs of time and are merged.
    """,
            init="""
                self.features = features
                self.eps = 1e-5
                self.slab = 250
            """,
            methods="""
                def _merge(self, x, total, squares, highest):
                    for start in range(0, x.shape[1], self.slab):
                        slab = x[:, start : start + self.slab]
                        total += slab.sum(dim=1)
                        squares += (slab * slab).sum(dim=1)
                        torch.maximum(highest, slab.amax(dim=1), out=highest)
            """,
            forward="""
                batch, steps, features = x.shape
                out = x.new_zeros(batch, 3 * features)
                total, squares, highest = out.split(features, dim=1)
                highest.fill_(float("-inf"))
                self._merge(x, total, squares, highest)
                total.div_(steps)
                squares.div_(steps).sub_(total * total).clamp_(min=0).add_(self.eps).sqrt_()
                return out
            """,
        ),
        "triton_one_pass": Body(
            before=_KERNEL,
            forward="""
                batch, steps, features = x.shape
                out = torch.empty(batch, 3 * features, device=x.device)
                grid = (batch, triton.cdiv(features, 64))
                time_statistics[grid](
                    x.contiguous(), out, steps, features, self.eps, ROWS=32, COLS=64, num_warps=4
                )
                return out
            """,
        ),
        "cuda_stripes": Body(
            before=_CUDA_STRIPES,
            forward="return pool_module.pool_forward(x.contiguous(), self.eps)",
        ),
        "cuda_block_per_column": Body(
            summary="Mean and deviation by a kernel, maximum and concatenation by the library.",
            before=_CUDA_COLUMN_BLOCKS,
            methods='''
                def _mean_std(self, x):
                    """Mean and standard deviation over time, both (batch, features)."""
                    if x.is_cuda and x.dtype == torch.float32 and x.dim() == 3:
                        return mean_std_ext.mean_std(x.contiguous(), self.eps)
                    var, mean = torch.var_mean(x, dim=1, correction=0)
                    return mean, torch.sqrt(var + self.eps)
            ''',
            forward="""
                mean, std = self._mean_std(x)
                return torch.cat([mean, std, x.amax(dim=1)], dim=-1)
            """,
        ),
    },
    carries_on="var_mean_amax",
)
