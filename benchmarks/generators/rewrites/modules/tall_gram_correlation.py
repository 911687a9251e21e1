"""The correlation matrix of the columns of a tall and skinny matrix."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GRAM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def moments_kernel(x_ptr, gram_ptr, total_ptr, n, features, rows_each,
                   BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    first = tl.program_id(0) * rows_each
    cols = tl.arange(0, BLOCK_COLS)
    acc = tl.zeros((BLOCK_COLS, BLOCK_COLS), dtype=tl.float32)
    total = tl.zeros((BLOCK_COLS,), dtype=tl.float32)
    for start in range(0, rows_each, BLOCK_ROWS):
        rows = first + start + tl.arange(0, BLOCK_ROWS)
        keep = (rows[:, None] < n) & (cols[None, :] < features)
        tile = tl.load(x_ptr + rows[:, None] * features + cols[None, :], mask=keep, other=0.0)
        acc += tl.dot(tl.trans(tile), tile, input_precision="ieee")
        total += tl.sum(tile, axis=0)
    inside = (cols[:, None] < features) & (cols[None, :] < features)
    tl.atomic_add(gram_ptr + cols[:, None] * features + cols[None, :], acc, mask=inside)
    tl.atomic_add(total_ptr + cols, total, mask=cols < features)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

constexpr int D = 48;
constexpr int ROWS = 32;

// Each block of 16 x 16 threads keeps the whole 48 x 48 Gram matrix of its share of rows in registers.
__global__ void moments(const float* __restrict__ x, float* __restrict__ sums, long n, int rows_each) {
    __shared__ float tile[ROWS][D];
    int tx = threadIdx.x % 16;
    int ty = threadIdx.x / 16;
    float acc[3][3] = {};
    float total = 0.0f;
    long first = blockIdx.x * (long)rows_each;
    long last = first + rows_each < n ? first + rows_each : n;
    for (long r = first; r < last; r += ROWS) {
        for (int i = threadIdx.x; i < ROWS * D; i += 256) {
            long row = r + i / D;
            tile[i / D][i % D] = row < last ? x[row * D + i % D] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 8
        for (int k = 0; k < ROWS; ++k) {
            float a[3], b[3];
            #pragma unroll
            for (int j = 0; j < 3; ++j) {
                a[j] = tile[k][ty + 16 * j];
                b[j] = tile[k][tx + 16 * j];
            }
            #pragma unroll
            for (int p = 0; p < 3; ++p)
                #pragma unroll
                for (int q = 0; q < 3; ++q) acc[p][q] += a[p] * b[q];
            if (threadIdx.x < D) total += tile[k][threadIdx.x];
        }
        __syncthreads();
    }
    for (int p = 0; p < 3; ++p)
        for (int q = 0; q < 3; ++q) atomicAdd(&sums[(ty + 16 * p) * D + tx + 16 * q], acc[p][q]);
    if (threadIdx.x < D) atomicAdd(&sums[D * D + threadIdx.x], total);
}

torch::Tensor gram_and_sums(torch::Tensor x) {
    TORCH_CHECK(x.is_contiguous() && x.size(1) == D, "expected contiguous rows of 48");
    auto sums = torch::zeros({D + 1, D}, x.options());
    long n = x.size(0);
    int rows_each = 256;
    int blocks = (int)((n + rows_each - 1) / rows_each);
    moments<<<blocks, 256>>>(x.data_ptr<float>(), sums.data_ptr<float>(), n, rows_each);
    return sums;
}
"""
gram_module = load_inline(
    name="tall_gram_correlation_moments",
    cpp_sources="torch::Tensor gram_and_sums(torch::Tensor x);",
    cuda_sources=source,
    functions=["gram_and_sums"],
)
'''

_CUDA_PAIRS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define THREADS 256

__device__ float block_sum(float value) {
    __shared__ float shared[THREADS];
    int tid = threadIdx.x;
    shared[tid] = value;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (tid < s) shared[tid] += shared[tid + s];
        __syncthreads();
    }
    float total = shared[0];
    __syncthreads();
    return total;
}

// One block per column
__global__ void column_mean_kernel(const float* x, float* mean, int n, int features) {
    int f = blockIdx.x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += x[i * features + f];
    sum = block_sum(sum);
    if (threadIdx.x == 0) mean[f] = sum / n;
}

// One block per pair of columns; the lower triangle is mirrored
__global__ void covariance_kernel(const float* x, const float* mean, float* cov, int n, int features) {
    int a = blockIdx.y;
    int b = blockIdx.x;
    if (b < a) return;
    float ma = mean[a];
    float mb = mean[b];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        sum += (x[i * features + a] - ma) * (x[i * features + b] - mb);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        cov[a * features + b] = sum / (n - 1);
        cov[b * features + a] = sum / (n - 1);
    }
}

__global__ void normalize_kernel(const float* cov, float* out, int features) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= features * features) return;
    int a = idx / features;
    int b = idx % features;
    out[idx] = cov[idx] / (sqrtf(cov[a * features + a]) * sqrtf(cov[b * features + b]));
}

torch::Tensor correlation(torch::Tensor x) {
    int n = x.size(0);
    int features = x.size(1);
    auto mean = torch::empty({features}, x.options());
    auto cov = torch::empty({features, features}, x.options());
    auto out = torch::empty({features, features}, x.options());
    column_mean_kernel<<<features, THREADS>>>(x.data_ptr<float>(), mean.data_ptr<float>(), n, features);
    dim3 grid(features, features);
    covariance_kernel<<<grid, THREADS>>>(x.data_ptr<float>(), mean.data_ptr<float>(), cov.data_ptr<float>(), n,
                                         features);
    normalize_kernel<<<(features * features + 255) / 256, 256>>>(cov.data_ptr<float>(), out.data_ptr<float>(),
                                                                 features);
    return out;
}
"""

correlation_ext = load_inline(
    name="tall_gram_correlation_pairs",
    cpp_sources="torch::Tensor correlation(torch::Tensor x);",
    cuda_sources=source,
    functions=["correlation"],
    verbose=False,
)
'''

_CUDA_FINISH = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// Correlations from raw second moments and column sums; inverse deviations are made once per block.
__global__ void finish_correlation(const float* __restrict__ gram, const float* __restrict__ sums,
                                   float* __restrict__ out, int features, float n) {
    extern __shared__ float inverse[];
    for (int f = threadIdx.x; f < features; f += blockDim.x)
        inverse[f] = rsqrtf(gram[f * features + f] - sums[f] * sums[f] / n);
    __syncthreads();
    const int a = blockIdx.x;
    const float scaled_sum = sums[a] / n;
    for (int b = threadIdx.x; b < features; b += blockDim.x)
        out[a * features + b] = (gram[a * features + b] - scaled_sum * sums[b]) * inverse[a] * inverse[b];
}

torch::Tensor finish_correlation_cuda(torch::Tensor gram, torch::Tensor sums, int64_t n) {
    TORCH_CHECK(gram.is_cuda() && sums.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(gram.is_contiguous() && sums.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(gram.scalar_type() == torch::kFloat32, "float32 expected");
    const int features = gram.size(0);
    auto out = torch::empty_like(gram);
    finish_correlation<<<features, 64, features * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(
        gram.data_ptr<float>(), sums.data_ptr<float>(), out.data_ptr<float>(), features, (float)n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

finish_ext = load_inline(
    name="tall_gram_correlation_finish",
    cpp_sources="torch::Tensor finish_correlation_cuda(torch::Tensor gram, torch::Tensor sums, int64_t n);",
    cuda_sources=cuda_source,
    functions=["finish_correlation_cuda"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="tall_gram_correlation",
    sizes="""
        samples = 131072
        features = 48
    """,
    arguments=("features",),
    takes="x",
    inputs="[torch.randn(samples, features) @ torch.randn(features, features) + torch.randn(features)]",
    reference=Body(
        summary="The correlations of all pairs of columns, through the covariance of centred data.",
        init="self.features = features",
        forward="""
            n = x.shape[0]
            centred = x - x.mean(dim=0, keepdim=True)
            covariance = torch.matmul(centred.t(), centred) / (n - 1)
            std = torch.sqrt(torch.diagonal(covariance))
            return covariance / (std.unsqueeze(0) * std.unsqueeze(1))
        """,
    ),
    rewrites={
        "raw_moments": Body(
            forward="""
                n = x.shape[0]
                mean = x.mean(dim=0)
                cov = torch.addmm(x.t() @ x, mean[:, None], mean[None, :], alpha=-n)
                inv = cov.diagonal().rsqrt()
                return cov * inv[:, None] * inv[None, :]
            """
        ),
        "normalised_columns": Body(
            forward="""
                # Unit columns make the Gram matrix the correlation matrix at once.
                z = F.normalize(x - x.mean(0), dim=0)
                return z.t() @ z
            """
        ),
        "corrcoef": Body(forward="return torch.corrcoef(x.t())"),
        "split_rows_bmm": Body(
            summary="The Gram matrix by parts: a long inner dimension is cut into pieces that run in parallel.",
            init="""
                self.features = features
                self.pieces = 256
            """,
            forward="""
                n = x.shape[0]
                gram = self.gram(x)
                mean = x.mean(dim=0)
                cov = gram.sub_(torch.outer(mean, mean), alpha=n)
                std = torch.sqrt(torch.diagonal(cov))
                return cov / torch.outer(std, std)
            """,
            methods="""
                def gram(self, x):
                    n = x.shape[0]
                    if n % self.pieces != 0:
                        # Rare: fall back to one product.
                        return x.t() @ x
                    parts = x.view(self.pieces, n // self.pieces, self.features)
                    return torch.bmm(parts.transpose(1, 2), parts).sum(dim=0)
            """,
        ),
        "column_of_ones": Body(
            forward="""
                n = x.shape[0]
                d = self.features
                # One product gives sums of products and sums: the last column is all ones.
                extended = F.pad(x, (0, 1), value=1.0)
                moments = extended.t() @ extended
                total = moments[:d, d]
                cov = moments[:d, :d] - torch.outer(total, total) / n
                inv = torch.rsqrt(cov.diagonal())
                return cov * torch.outer(inv, inv)
            """
        ),
        "accumulated_chunks": Body(
            summary="Goes over the rows in chunks, so that no centred copy of the data is made.",
            init="""
                self.features = features
                self.chunk_rows = 8192
            """,
            forward="""
                mean = x.mean(dim=0, keepdim=True)
                gram = torch.zeros(self.features, self.features, device=x.device, dtype=x.dtype)
                for rows in x.split(self.chunk_rows):
                    centred = rows - mean
                    gram.addmm_(centred.t(), centred)
                return self.to_correlation(gram)
            """,
            methods="""
                @staticmethod
                def to_correlation(gram):
                    scale = gram.diagonal().rsqrt()
                    return gram.mul(scale[None, :]).mul_(scale[:, None])
            """,
        ),
        "triton_moments": Body(
            before=_GRAM_KERNEL,
            forward="""
                n, d = x.shape
                gram = torch.zeros(d, d, device=x.device)
                total = torch.zeros(d, device=x.device)
                rows_each = 512
                moments_kernel[(triton.cdiv(n, rows_each),)](
                    x, gram, total, n, d, rows_each, BLOCK_ROWS=32, BLOCK_COLS=64
                )
                cov = gram - torch.outer(total, total / n)
                inv = cov.diagonal().rsqrt()
                return cov * torch.outer(inv, inv)
            """,
        ),
        "cuda_moments": Body(
            before=_CUDA,
            forward="""
                sums = gram_module.gram_and_sums(x)
                gram, total = sums[:-1], sums[-1]
                cov = gram - torch.outer(total, total) / x.shape[0]
                std = cov.diagonal().sqrt()
                return cov / torch.outer(std, std)
            """,
        ),
        "cuda_block_per_pair": Body(
            before=_CUDA_PAIRS,
            forward="return correlation_ext.correlation(x.contiguous())",
        ),
        "cuda_finish": Body(
            summary="""Correlations from raw moments.

    The long product and the sums are the library's; all that happens to small matrices is one kernel.
    """,
            before=_CUDA_FINISH,
            methods='''
                def _finish(self, gram, sums, n):
                    """The correlation matrix of n rows with these moments."""
                    if gram.is_cuda and gram.dtype == torch.float32:
                        return finish_ext.finish_correlation_cuda(gram.contiguous(), sums.contiguous(), n)
                    cov = gram - torch.outer(sums, sums) / n
                    inverse = cov.diagonal().rsqrt()
                    return cov * torch.outer(inverse, inverse)
            ''',
            forward="return self._finish(torch.mm(x.t(), x), x.sum(dim=0), x.shape[0])",
        ),
    },
    in_half=False,
    carries_on="raw_moments",
)
