"""A small linear layer, layer normalisation by hand, SiLU and a residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ROW_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def tail_kernel(h_ptr, x_ptr, weight_ptr, bias_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    h = tl.load(h_ptr + row * width + cols, mask=keep, other=0.0)
    mean = tl.sum(h, axis=0) / width
    centred = tl.where(keep, h - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    weight = tl.load(weight_ptr + cols, mask=keep, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=keep, other=0.0)
    y = centred / tl.sqrt(variance + eps) * weight + bias
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * width + cols, y * tl.sigmoid(y) + x, mask=keep)
"""

_WHOLE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def whole_kernel(x_ptr, columns_ptr, shift_ptr, weight_ptr, bias_ptr, out_ptr, eps,
                 WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, WIDTH)
    h = tl.load(shift_ptr + cols)
    for start in range(0, WIDTH, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * WIDTH + k)
        w = tl.load(columns_ptr + k[:, None] * WIDTH + cols[None, :])
        h += tl.sum(x[:, None] * w, axis=0)
    h -= tl.sum(h, axis=0) / WIDTH
    h *= tl.rsqrt(tl.sum(h * h, axis=0) / WIDTH + eps)
    y = h * tl.load(weight_ptr + cols) + tl.load(bias_ptr + cols)
    out = y * tl.sigmoid(y) + tl.load(x_ptr + row * WIDTH + cols)
    tl.store(out_ptr + row * WIDTH + cols, out)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One warp per row. Lanes stride over the row three times; it stays in the first-level cache.
__global__ void norm_silu(const float* __restrict__ h, const float* __restrict__ x, const float* __restrict__ weight,
                          const float* __restrict__ bias, float* __restrict__ out, int rows, int width, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float* line = h + (long)row * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += 32) sum += line[i];
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    float mean = sum / width;
    float square = 0.0f;
    for (int i = threadIdx.x; i < width; i += 32) square += (line[i] - mean) * (line[i] - mean);
    for (int offset = 16; offset > 0; offset >>= 1) square += __shfl_xor_sync(0xffffffff, square, offset);
    float inverse = rsqrtf(square / width + eps);
    for (int i = threadIdx.x; i < width; i += 32) {
        float y = (line[i] - mean) * inverse * weight[i] + bias[i];
        out[(long)row * width + i] = y / (1.0f + expf(-y)) + x[(long)row * width + i];
    }
}

torch::Tensor norm_silu_forward(torch::Tensor h, torch::Tensor x, torch::Tensor weight, torch::Tensor bias,
                                double eps) {
    auto out = torch::empty_like(h);
    int rows = h.size(0);
    dim3 threads(32, 4);
    norm_silu<<<(rows + 3) / 4, threads>>>(h.data_ptr<float>(), x.data_ptr<float>(), weight.data_ptr<float>(),
                                           bias.data_ptr<float>(), out.data_ptr<float>(), rows, (int)h.size(1),
                                           (float)eps);
    return out;
}
"""
norm_module = load_inline(
    name="linear_layernorm_silu_tail",
    cpp_sources="torch::Tensor norm_silu_forward(torch::Tensor h, torch::Tensor x, torch::Tensor weight, "
    "torch::Tensor bias, double eps);",
    cuda_sources=source,
    functions=["norm_silu_forward"],
)
'''

_INIT = """
    self.linear = nn.Linear(width, width)
    self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(width))
    self.bias = nn.Parameter(0.1 * torch.randn(width))
    self.width = width
    self.eps = 1e-5
"""

_CENTRED = """
    with torch.no_grad():
        # Without the mean over outputs in weight and bias, what comes out has mean zero.
        self.register_buffer("centred_weight", self.linear.weight - self.linear.weight.mean(dim=0, keepdim=True))
        self.register_buffer("centred_bias", self.linear.bias - self.linear.bias.mean())
"""

_CUDA_ROW_BLOCKS = '''
from torch.utils.cpp_extension import load_inline

row_source = r"""
#include <torch/extension.h>

// A block has a row, a thread a feature.
__global__ void linear_norm_silu_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                        const float* __restrict__ b, const float* __restrict__ gamma,
                                        const float* __restrict__ beta, float* __restrict__ out, int width,
                                        float eps) {
    extern __shared__ float shared[];
    float* row = shared;
    float* h = shared + width;
    __shared__ float mean, inverse;
    int j = threadIdx.x;
    row[j] = x[blockIdx.x * width + j];
    __syncthreads();
    float sum = b[j];
    for (int k = 0; k < width; k++) sum += row[k] * w[j * width + k];
    h[j] = sum;
    __syncthreads();
    if (j == 0) {
        float total = 0.0f;
        for (int k = 0; k < width; k++) total += h[k];
        mean = total / width;
        float squares = 0.0f;
        for (int k = 0; k < width; k++) squares += (h[k] - mean) * (h[k] - mean);
        inverse = 1.0f / sqrtf(squares / width + eps);
    }
    __syncthreads();
    float y = (h[j] - mean) * inverse * gamma[j] + beta[j];
    out[blockIdx.x * width + j] = row[j] + y / (1.0f + expf(-y));
}

torch::Tensor linear_norm_silu(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor gamma,
                               torch::Tensor beta, double eps) {
    int rows = x.size(0), width = x.size(1);
    TORCH_CHECK(width <= 1024, "width must fit into a block");
    auto out = torch::empty_like(x);
    linear_norm_silu_kernel<<<rows, width, 2 * width * sizeof(float)>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), gamma.data_ptr<float>(),
        beta.data_ptr<float>(), out.data_ptr<float>(), width, (float)eps);
    return out;
}
"""
row_module = load_inline(
    name="linear_layernorm_silu_rows",
    cpp_sources="torch::Tensor linear_norm_silu(torch::Tensor x, torch::Tensor w, torch::Tensor b, "
    "torch::Tensor gamma, torch::Tensor beta, double eps);",
    cuda_sources=row_source,
    functions=["linear_norm_silu"],
)
'''

_CUDA_STATISTICS = '''
from torch.utils.cpp_extension import load_inline

statistics_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define THREADS 128

__global__ void row_statistics_kernel(const float* __restrict__ h, float* __restrict__ mean,
                                      float* __restrict__ inverse, int width, float eps) {
    __shared__ float buffer[THREADS];
    const float* row = h + (long)blockIdx.x * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += row[i];
    buffer[threadIdx.x] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
        __syncthreads();
    }
    const float m = buffer[0] / width;
    __syncthreads();
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += THREADS) squares += (row[i] - m) * (row[i] - m);
    buffer[threadIdx.x] = squares;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = m;
        inverse[blockIdx.x] = rsqrtf(buffer[0] / width + eps);
    }
}

__global__ void apply_kernel(const float* __restrict__ h, const float* __restrict__ x,
                             const float* __restrict__ mean, const float* __restrict__ inverse,
                             const float* __restrict__ gamma, const float* __restrict__ beta,
                             float* __restrict__ out, int width, long total) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int col = i % width;
    const long row = i / width;
    const float y = (h[i] - mean[row]) * inverse[row] * gamma[col] + beta[col];
    out[i] = x[i] + y / (1.0f + expf(-y));
}

torch::Tensor norm_silu_add(torch::Tensor h, torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    TORCH_CHECK(h.is_cuda() && x.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(h.is_contiguous() && x.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(h.sizes() == x.sizes() && h.dim() == 2, "matrices of the same shape expected");
    const int rows = h.size(0), width = h.size(1);
    auto mean = torch::empty({rows}, h.options());
    auto inverse = torch::empty({rows}, h.options());
    auto out = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    row_statistics_kernel<<<rows, THREADS, 0, stream>>>(h.data_ptr<float>(), mean.data_ptr<float>(),
                                                        inverse.data_ptr<float>(), width, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const long total = h.numel();
    apply_kernel<<<(total + 255) / 256, 256, 0, stream>>>(
        h.data_ptr<float>(), x.data_ptr<float>(), mean.data_ptr<float>(), inverse.data_ptr<float>(),
        gamma.data_ptr<float>(), beta.data_ptr<float>(), out.data_ptr<float>(), width, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
statistics_module = load_inline(
    name="linear_layernorm_silu_statistics",
    cpp_sources="torch::Tensor norm_silu_add(torch::Tensor h, torch::Tensor x, torch::Tensor gamma, "
    "torch::Tensor beta, double eps);",
    cuda_sources=statistics_source,
    functions=["norm_silu_add"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="linear_layernorm_silu",
    sizes="""
        batch_size = 32
        width = 256
    """,
    arguments=("width",),
    takes="x",
    inputs="[torch.randn(batch_size, width)]",
    reference=Body(
        summary="x + silu(layer_norm(linear(x))), written out.",
        init=_INIT,
        forward="""
            h = self.linear(x)
            mean = h.mean(dim=-1, keepdim=True)
            variance = ((h - mean) ** 2).mean(dim=-1, keepdim=True)
            h = (h - mean) / torch.sqrt(variance + self.eps)
            h = h * self.weight + self.bias
            return x + h * torch.sigmoid(h)
        """,
    ),
    rewrites={
        "library_norm": Body(
            forward="""
                h = F.layer_norm(self.linear(x), (self.width,), self.weight, self.bias, self.eps)
                return x + F.silu(h)
            """
        ),
        "library_norm_in_place": Body(
            summary="Library calls with their results written over intermediate values.",
            init=_INIT
            + '\n    self.register_buffer("columns", self.linear.weight.detach().t().contiguous())\n',
            forward="""
                if x.dim() != 2 or x.shape[1] != self.width:
                    raise ValueError(f"expected rows of {self.width}, got {tuple(x.shape)}")
                h = torch.addmm(self.linear.bias, x, self.columns)
                h = torch.layer_norm(h, [self.width], self.weight, self.bias, self.eps)
                return F.silu(h, inplace=True).add_(x)
            """,
        ),
        "centred_weights": Body(
            summary="The mean is taken out of the weights; what remains is a root-mean-square norm.",
            init=_INIT + _CENTRED,
            forward="""
                h = F.linear(x, self.centred_weight, self.centred_bias)
                h = F.rms_norm(h, (self.width,), self.weight, self.eps) + self.bias
                return x + F.silu(h)
            """,
        ),
        "centred_by_hand": Body(
            init=_INIT + _CENTRED,
            forward="""
                h = torch.addmm(self.centred_bias, x, self.centred_weight.t())
                inverse = torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + self.eps)
                h = torch.addcmul(self.bias, h * inverse, self.weight)
                return torch.addcmul(x, h, h.sigmoid())
            """,
        ),
        "scripted_tail": Body(
            before="""
SOURCE = '''
def norm_silu(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    variance, mean = torch.var_mean(h, dim=[-1], correction=0, keepdim=True)
    y = (h - mean) * torch.rsqrt(variance + eps) * weight + bias
    return x + y * torch.sigmoid(y)
'''
scripted = torch.jit.CompilationUnit(SOURCE)
""",
            forward="return scripted.norm_silu(self.linear(x), x, self.weight, self.bias, self.eps)",
        ),
        "triton_tail": Body(
            before=_ROW_KERNEL,
            forward="""
                h = self.linear(x)
                out = torch.empty_like(h)
                tail_kernel[(h.shape[0],)](
                    h, x, self.weight, self.bias, out, self.width, self.eps,
                    BLOCK=triton.next_power_of_2(self.width), num_warps=2,
                )
                return out
            """,
        ),
        "triton_whole": Body(
            before=_WHOLE_KERNEL,
            init=_INIT
            + '\n    self.register_buffer("columns", self.linear.weight.detach().t().contiguous())\n',
            forward="""
                out = torch.empty_like(x)
                whole_kernel[(x.shape[0],)](
                    x, self.columns, self.linear.bias, self.weight, self.bias, out, self.eps,
                    WIDTH=self.width, BLOCK_K=32, num_warps=8,
                )
                return out
            """,
        ),
        "cuda_tail": Body(
            before=_CUDA,
            forward="""
                return norm_module.norm_silu_forward(self.linear(x), x.contiguous(), self.weight, self.bias, self.eps)
            """,
        ),
        "cuda_block_per_row": Body(
            before=_CUDA_ROW_BLOCKS,
            forward="""
                linear = self.linear
                return row_module.linear_norm_silu(
                    x.contiguous(), linear.weight, linear.bias, self.weight, self.bias, self.eps
                )
            """,
        ),
        "cuda_statistics_then_apply": Body(
            summary="The product by the library, then one kernel for the statistics and one for the rest.",
            before=_CUDA_STATISTICS,
            init=_INIT,
            methods='''
                def _tail(self, h, x):
                    """x + silu(layer_norm(h))."""
                    if not h.is_cuda or h.dtype != torch.float32 or h.dim() != 2:
                        return x + F.silu(F.layer_norm(h, (self.width,), self.weight, self.bias, self.eps))
                    return statistics_module.norm_silu_add(
                        h.contiguous(), x.contiguous(), self.weight, self.bias, self.eps
                    )
            ''',
            forward="return self._tail(self.linear(x), x)",
        ),
    },
    carries_on="library_norm_in_place",
)
