"""A linear layer with a wide output, GELU, a learned scale per feature and a sum over pairs of features."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def tail_kernel(y_ptr, scale_ptr, out_ptr, n, half, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < half
    left = tl.load(y_ptr + row * n + 2 * cols, mask=keep, other=0.0)
    right = tl.load(y_ptr + row * n + 2 * cols + 1, mask=keep, other=0.0)
    left_scale = tl.load(scale_ptr + 2 * cols, mask=keep, other=0.0)
    right_scale = tl.load(scale_ptr + 2 * cols + 1, mask=keep, other=0.0)
    left = 0.5 * left * (1.0 + tl.erf(left * 0.7071067811865476)) * left_scale
    right = 0.5 * right * (1.0 + tl.erf(right * 0.7071067811865476)) * right_scale
    tl.store(out_ptr + row * half + cols, left + right, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void tail(const float* __restrict__ y, const float* __restrict__ scale, float* __restrict__ out,
                     int half, long total) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < total; i += gridDim.x * (long)blockDim.x) {
        float2 v = reinterpret_cast<const float2*>(y)[i];
        float2 s = reinterpret_cast<const float2*>(scale)[i % half];
        float left = 0.5f * v.x * (1.0f + erff(v.x * 0.70710678f));
        float right = 0.5f * v.y * (1.0f + erff(v.y * 0.70710678f));
        out[i] = left * s.x + right * s.y;
    }
}

torch::Tensor fused_tail(torch::Tensor y, torch::Tensor scale) {
    int half = y.size(1) / 2;
    auto out = torch::empty({y.size(0), half}, y.options());
    long total = out.numel();
    tail<<<(int)std::min((total + 255) / 256, 8192L), 256>>>(
        y.data_ptr<float>(), scale.data_ptr<float>(), out.data_ptr<float>(), half, total);
    return out;
}
"""
tail_module = load_inline(
    name="linear_gelu_scale_tail",
    cpp_sources="torch::Tensor fused_tail(torch::Tensor y, torch::Tensor scale);",
    cuda_sources=source,
    functions=["fused_tail"],
)
'''

_INIT = """
    self.linear = nn.Linear(features, width)
    self.scale = nn.Parameter(torch.randn(width))
"""

_CUDA_GEMM = '''
from torch.utils.cpp_extension import load_inline

gemm_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define BM 64
#define BN 64
#define BK 16

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.7071067811865475f)); }

// Tiles of 64 x 64 with 4 x 4 results per thread. The four columns of a thread make two outputs.
__global__ void linear_gelu_pairs(const float* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ bias, const float* __restrict__ scale,
                                  float* __restrict__ out, int rows, int features, int width) {
    __shared__ __align__(16) float xs[BK][BM + 4];
    __shared__ __align__(16) float ws[BK][BN + 4];
    const int tx = threadIdx.x % 16;
    const int ty = threadIdx.x / 16;
    const int first_row = blockIdx.y * BM;
    const int first_col = blockIdx.x * BN;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < features; k0 += BK) {
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK; i += 256) {
            const int m = i / BK;
            const int k = i % BK;
            const bool inside = k0 + k < features;
            xs[k][m] = inside && first_row + m < rows ? x[(long)(first_row + m) * features + k0 + k] : 0.0f;
            ws[k][m] = inside && first_col + m < width ? weight[(long)(first_col + m) * features + k0 + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            const float4 a = *reinterpret_cast<const float4*>(&xs[k][ty * 4]);
            const float4 b = *reinterpret_cast<const float4*>(&ws[k][tx * 4]);
            const float av[4] = {a.x, a.y, a.z, a.w};
            const float bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(av[i], bv[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = first_row + ty * 4 + i;
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const int col = first_col + tx * 4 + j;
            if (col + 1 >= width) continue;
            const float left = gelu(acc[i][j] + bias[col]) * scale[col];
            const float right = gelu(acc[i][j + 1] + bias[col + 1]) * scale[col + 1];
            out[(long)row * (width / 2) + col / 2] = left + right;
        }
    }
}

torch::Tensor linear_gelu_pair_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor scale) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && weight.is_contiguous(), "contiguous CUDA tensors expected");
    const int rows = x.size(0), features = x.size(1), width = weight.size(0);
    TORCH_CHECK(width % 2 == 0, "an even width expected");
    auto out = torch::empty({rows, width / 2}, x.options());
    dim3 grid((width + BN - 1) / BN, (rows + BM - 1) / BM);
    linear_gelu_pairs<<<grid, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), scale.data_ptr<float>(),
        out.data_ptr<float>(), rows, features, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
gemm_module = load_inline(
    name="linear_gelu_scale_gemm",
    cpp_sources="torch::Tensor linear_gelu_pair_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor scale);",
    cuda_sources=gemm_source,
    functions=["linear_gelu_pair_sum"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_ATOMIC = '''
from torch.utils.cpp_extension import load_inline

atomic_source = r"""
#include <torch/extension.h>

__global__ void gelu_scale_sum_kernel(const float* __restrict__ y, const float* __restrict__ scale, float* out,
                                      int width, long total) {
    long idx = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int feature = idx % width;
    float v = y[idx];
    float activated = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    atomicAdd(&out[idx / 2], activated * scale[feature]);
}

torch::Tensor gelu_scale_sum(torch::Tensor y, torch::Tensor scale) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.is_contiguous(), "y must be contiguous");
    TORCH_CHECK(y.size(1) % 2 == 0, "an even number of features expected");
    auto out = torch::zeros({y.size(0), y.size(1) / 2}, y.options());
    long total = y.numel();
    int threads = 256;
    gelu_scale_sum_kernel<<<(total + threads - 1) / threads, threads>>>(
        y.data_ptr<float>(), scale.data_ptr<float>(), out.data_ptr<float>(), (int)y.size(1), total);
    return out;
}
"""
atomic_module = load_inline(
    name="linear_gelu_scale_atomic",
    cpp_sources="torch::Tensor gelu_scale_sum(torch::Tensor y, torch::Tensor scale);",
    cuda_sources=atomic_source,
    functions=["gelu_scale_sum"],
)
'''

MODULE = Rewritten(
    name="linear_gelu_scale",
    sizes="""
        batch_size = 2048
        features = 1024
        width = 4096
    """,
    arguments=("features", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="A linear layer, GELU, a scale per feature, and the sums of neighbouring features.",
        init=_INIT,
        forward="""
            x = self.linear(x)
            x = F.gelu(x)
            x = x * self.scale
            x = x.view(x.shape[0], -1, 2)
            return x.sum(dim=-1)
        """,
    ),
    rewrites={
        "strided_sum": Body(
            forward="""
                x = F.gelu(self.linear(x)).mul_(self.scale)
                return x[:, 0::2] + x[:, 1::2]
            """
        ),
        "einsum": Body(
            forward="""
                y = F.gelu(torch.addmm(self.linear.bias, x, self.linear.weight.t()))
                return torch.einsum("bkp,kp->bk", y.view(y.shape[0], -1, 2), self.scale.view(-1, 2))
            """
        ),
        "split_halves": Body(
            init=_INIT
            + """
    with torch.no_grad():
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        self.register_buffer("sorted_weight", self.linear.weight[order].clone())
        self.register_buffer("sorted_bias", self.linear.bias[order].clone())
        self.register_buffer("sorted_scale", self.scale[order].clone())
""",
            forward="""
                y = F.gelu(F.linear(x, self.sorted_weight, self.sorted_bias)).mul_(self.sorted_scale)
                left, right = y.chunk(2, dim=-1)
                return left + right
            """,
        ),
        "row_by_row": Body(
            forward="""
                outputs = []
                for rows in x.split(128):
                    y = F.gelu(self.linear(rows)) * self.scale
                    outputs.append(y.view(y.shape[0], -1, 2).sum(dim=-1))
                return torch.cat(outputs)
            """
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.linear(x)
                half = y.shape[1] // 2
                out = torch.empty(y.shape[0], half, device=y.device)
                tail_kernel[(y.shape[0], triton.cdiv(half, 1024))](y, self.scale, out, y.shape[1], half, BLOCK=1024)
                return out
            """,
        ),
        "cuda_tail": Body(before=_CUDA, forward="return tail_module.fused_tail(self.linear(x), self.scale)"),
        "cuda_register_tiles": Body(
            before=_CUDA_GEMM,
            forward="""
                linear = self.linear
                return gemm_module.linear_gelu_pair_sum(x.contiguous(), linear.weight, linear.bias, self.scale)
            """,
        ),
        "cuda_atomic_tail": Body(
            summary="The linear layer by the library; GELU, scale and the sums of neighbours in a kernel.",
            before=_CUDA_ATOMIC,
            init=_INIT,
            methods='''
                def _fallback(self, y):
                    """The tail by library calls."""
                    return (F.gelu(y) * self.scale).view(y.shape[0], -1, 2).sum(dim=-1)
            ''',
            forward="""
                y = self.linear(x)
                if not y.is_cuda or y.dtype != torch.float32:
                    return self._fallback(y)
                return atomic_module.gelu_scale_sum(y.contiguous(), self.scale)
            """,
        ),
    },
    carries_on="split_halves",
)
