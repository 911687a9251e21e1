"""A 1x1 convolution, a temperature, the logarithm of the sum of exponentials over channels, and a clamp."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_REDUCE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def logsumexp_kernel(y_ptr, out_ptr, offset_ptr, classes, area, low, high, BLOCK: tl.constexpr):
    sample = tl.program_id(0)
    pixels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = pixels < area
    base = y_ptr + sample * classes * area + pixels
    highest = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(0, classes):
        value = tl.load(base + k * area, mask=keep, other=0.0)
        higher = tl.maximum(highest, value)
        total = total * tl.exp(highest - higher) + tl.exp(value - higher)
        highest = higher
    found = tl.log(total) + highest + tl.load(offset_ptr)
    found = tl.minimum(tl.maximum(found, low), high)
    tl.store(out_ptr + sample * area + pixels, found, mask=keep)
"""

_WHOLE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def score_kernel(
    x_ptr, weight_ptr, bias_ptr, offset_ptr, out_ptr, area, classes, low, high,
    CHANNELS: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):
    sample = tl.program_id(0)
    pixels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = pixels < area
    channels = tl.arange(0, CHANNELS)
    kinds = tl.arange(0, CLASSES)
    known = kinds < classes
    x = tl.load(
        x_ptr + (sample * CHANNELS + channels[None, :]) * area + pixels[:, None], mask=keep[:, None], other=0.0
    )
    weight = tl.load(
        weight_ptr + kinds[None, :] * CHANNELS + channels[:, None], mask=known[None, :], other=0.0
    )
    y = tl.dot(x, weight) + tl.load(bias_ptr + kinds, mask=known, other=0.0)[None, :]
    y = tl.where(known[None, :], y, -1.0e30)
    highest = tl.max(y, axis=1)
    found = tl.log(tl.sum(tl.exp(y - highest[:, None]), axis=1)) + highest + tl.load(offset_ptr)
    found = tl.minimum(tl.maximum(found, low), high)
    tl.store(out_ptr + sample * area + pixels, found, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void logsumexp_channels(const float* __restrict__ y, float* __restrict__ out,
                                   const float* __restrict__ offset, int classes, int area, long pixels) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const float* p = y + (i / area) * (long)classes * area + i % area;
    float highest = p[0];
    for (int k = 1; k < classes; ++k) highest = fmaxf(highest, p[(long)k * area]);
    float total = 0.0f;
    for (int k = 0; k < classes; ++k) total += expf(p[(long)k * area] - highest);
    float found = logf(total) + highest + offset[0];
    out[i] = fminf(fmaxf(found, 0.0f), 8.0f);
}

torch::Tensor reduce_classes(torch::Tensor y, torch::Tensor offset) {
    y = y.contiguous();
    auto out = torch::empty({y.size(0), 1, y.size(2), y.size(3)}, y.options());
    long pixels = out.numel();
    logsumexp_channels<<<(int)((pixels + 127) / 128), 128>>>(
        y.data_ptr<float>(), out.data_ptr<float>(), offset.data_ptr<float>(), (int)y.size(1),
        (int)(y.size(2) * y.size(3)), pixels);
    return out;
}
"""
reduce_module = load_inline(
    name="pointwise_logsumexp_reduce",
    cpp_sources="torch::Tensor reduce_classes(torch::Tensor y, torch::Tensor offset);",
    cuda_sources=source,
    functions=["reduce_classes"],
)
'''

_INIT = """
    self.conv = nn.Conv2d(channels, classes, 1)
    self.temperature = 0.5
    self.offset = nn.Parameter(torch.tensor([0.25]))
"""

_SCALED = (
    _INIT
    + """
    with torch.no_grad():
        self.register_buffer("weight", self.conv.weight / self.temperature)
        self.register_buffer("bias", self.conv.bias / self.temperature)
"""
)

_CUDA_PIXEL = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// A pixel per thread, its channels in registers and all weights in shared memory.
template <int CHANNELS>
__global__ void pixel_energy(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, const float* __restrict__ offset,
                             float* __restrict__ out, int classes, int area, int total) {
    extern __shared__ float4 held[];
    float* biases = reinterpret_cast<float*>(held + classes * (CHANNELS / 4));
    const float4* weight4 = reinterpret_cast<const float4*>(weight);
    for (int i = threadIdx.x; i < classes * (CHANNELS / 4); i += blockDim.x) held[i] = weight4[i];
    for (int i = threadIdx.x; i < classes; i += blockDim.x) biases[i] = bias[i];
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const float* pixel = x + (long)(i / area) * CHANNELS * area + i % area;
    float mine[CHANNELS];
    #pragma unroll
    for (int c = 0; c < CHANNELS; ++c) mine[c] = pixel[(long)c * area];
    float top = -1e30f, sum = 0.0f;
    for (int k = 0; k < classes; ++k) {
        float score = biases[k];
        #pragma unroll
        for (int c = 0; c < CHANNELS / 4; ++c) {
            float4 w = held[k * (CHANNELS / 4) + c];
            score += mine[4 * c] * w.x + mine[4 * c + 1] * w.y + mine[4 * c + 2] * w.z + mine[4 * c + 3] * w.w;
        }
        float higher = fmaxf(top, score);
        sum = sum * __expf(top - higher) + __expf(score - higher);
        top = higher;
    }
    out[i] = fminf(fmaxf(top + __logf(sum) + offset[0], 0.0f), 8.0f);
}

torch::Tensor energy_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor offset) {
    TORCH_CHECK(x.size(1) == 64, "64 channels expected");
    int n = x.size(0), h = x.size(2), w = x.size(3), classes = weight.size(0);
    auto out = torch::empty({n, 1, h, w}, x.options());
    int total = n * h * w;
    size_t shared = classes * (64 + 1) * sizeof(float);
    TORCH_CHECK(shared <= 48 * 1024, "too many classes");
    pixel_energy<64><<<(total + 127) / 128, 128, shared, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), offset.data_ptr<float>(),
        out.data_ptr<float>(), classes, h * w, total);
    return out;
}
"""
energy_module = load_inline(
    name="pointwise_logsumexp_pixel",
    cpp_sources="torch::Tensor energy_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor offset);",
    cuda_sources=source,
    functions=["energy_forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

_CUDA_BLOCK_PER_PIXEL = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

#define BLOCK 128

__global__ void logsumexp_clamp_kernel(const float* __restrict__ scores, const float* __restrict__ offset,
                                       float* __restrict__ out, int classes, int area, float inverse_temperature,
                                       float low, float high) {
    __shared__ float buffer[BLOCK];
    int tid = threadIdx.x;
    int sample = blockIdx.x / area;
    int pixel = blockIdx.x % area;
    const float* in = scores + (long)sample * classes * area + pixel;

    // maximum over the classes
    float highest = -INFINITY;
    for (int c = tid; c < classes; c += BLOCK) highest = fmaxf(highest, in[(long)c * area] * inverse_temperature);
    buffer[tid] = highest;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (tid < s) buffer[tid] = fmaxf(buffer[tid], buffer[tid + s]);
        __syncthreads();
    }
    highest = buffer[0];
    __syncthreads();

    // sum of exponentials
    float sum = 0.0f;
    for (int c = tid; c < classes; c += BLOCK) sum += expf(in[(long)c * area] * inverse_temperature - highest);
    buffer[tid] = sum;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (tid < s) buffer[tid] += buffer[tid + s];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = fminf(fmaxf(logf(buffer[0]) + highest + offset[0], low), high);
}

torch::Tensor logsumexp_clamp(torch::Tensor scores, torch::Tensor offset, double temperature, double low,
                              double high) {
    TORCH_CHECK(scores.is_cuda(), "scores must be a CUDA tensor");
    TORCH_CHECK(scores.is_contiguous(), "scores must be contiguous");
    int n = scores.size(0), classes = scores.size(1), h = scores.size(2), w = scores.size(3);
    auto out = torch::empty({n, 1, h, w}, scores.options());
    logsumexp_clamp_kernel<<<n * h * w, BLOCK>>>(scores.data_ptr<float>(), offset.data_ptr<float>(),
                                                 out.data_ptr<float>(), classes, h * w, (float)(1.0 / temperature),
                                                 (float)low, (float)high);
    return out;
}
"""

logsumexp_ext = load_inline(
    name="pointwise_logsumexp_block_per_pixel",
    cpp_sources="torch::Tensor logsumexp_clamp(torch::Tensor scores, torch::Tensor offset, double temperature, "
    "double low, double high);",
    cuda_sources=cuda_source,
    functions=["logsumexp_clamp"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="pointwise_logsumexp",
    sizes="""
        batch_size = 8
        channels = 64
        classes = 80
        height = 96
        width = 128
    """,
    arguments=("channels", "classes"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Free energy of every pixel: log-sum-exp over the classes of a 1x1 convolution, offset and clamped.",
        init=_INIT,
        forward="""
            scores = self.conv(x) / self.temperature
            highest = scores.max(dim=1, keepdim=True).values
            total = torch.exp(scores - highest).sum(dim=1, keepdim=True)
            energy = torch.log(total) + highest
            energy = energy + self.offset
            return torch.clamp(energy, 0.0, 8.0)
        """,
    ),
    rewrites={
        "library_logsumexp": Body(
            forward="""
                energy = torch.logsumexp(self.conv(x) / self.temperature, dim=1, keepdim=True)
                return (energy + self.offset).clamp_(0.0, 8.0)
            """
        ),
        "scaled_weights_no_maximum": Body(
            summary="Scores are small, so their exponentials are summed as they are.",
            init=_SCALED,
            forward="""
                scores = F.conv2d(x, self.weight, self.bias)
                return scores.exp_().sum(dim=1, keepdim=True).log_().add_(self.offset).clamp_(0.0, 8.0)
            """,
        ),
        "offset_in_bias": Body(
            init=_SCALED + '    self.register_buffer("shifted", self.bias + self.offset.detach())\n',
            forward="""
                scores = F.conv2d(x, self.weight, self.shifted)
                return torch.logsumexp(scores, dim=1, keepdim=True).clamp_(0.0, 8.0)
            """,
        ),
        "classes_last": Body(
            summary="Classes in the last dimension, so that each pixel's scores lie together.",
            init=_SCALED,
            forward="""
                n, c, h, w = x.shape
                pixels = x.permute(0, 2, 3, 1).reshape(-1, c)
                scores = torch.addmm(self.bias, pixels, self.weight.view(-1, c).t())
                energy = torch.logsumexp(scores, dim=-1) + self.offset
                return torch.clamp(energy, 0.0, 8.0).view(n, 1, h, w)
            """,
        ),
        "log_softmax_difference": Body(
            forward="""
                scores = self.conv(x).div_(self.temperature)
                energy = scores[:, :1] - F.log_softmax(scores, dim=1)[:, :1]
                return energy.add_(self.offset).clamp_(0.0, 8.0)
            """
        ),
        "streaming_class_blocks": Body(
            summary="Running maximum and sum over blocks of classes; never holds all scores.",
            init=_SCALED + "    self.block = 16\n",
            methods='''
                def scores_of(self, flat, start):
                    """Scores of a block of classes, in (batch, block, pixels)."""
                    stop = min(start + self.block, self.weight.shape[0])
                    weight = self.weight[start:stop, :, 0, 0]
                    return torch.matmul(weight, flat) + self.bias[start:stop, None]
            ''',
            forward="""
                n, c, h, w = x.shape
                flat = x.reshape(n, c, h * w)
                energy = None
                for start in range(0, self.weight.shape[0], self.block):
                    part = torch.logsumexp(self.scores_of(flat, start), dim=1, keepdim=True)
                    energy = part if energy is None else torch.logaddexp(energy, part)
                return (energy + self.offset).clamp_(0.0, 8.0).view(n, 1, h, w)
            """,
        ),
        "triton_reduction": Body(
            before=_REDUCE_KERNEL,
            init=_SCALED,
            forward="""
                scores = F.conv2d(x, self.weight, self.bias).contiguous()
                n, k, h, w = scores.shape
                out = torch.empty((n, 1, h, w), device=x.device, dtype=torch.float32)
                grid = (n, triton.cdiv(h * w, 256))
                logsumexp_kernel[grid](scores, out, self.offset, k, h * w, 0.0, 8.0, BLOCK=256)
                return out
            """,
        ),
        "triton_whole": Body(
            before=_WHOLE_KERNEL,
            init=_SCALED,
            summary="Convolution, reduction and clamp in one kernel; scores are never written to memory.",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                classes = self.weight.shape[0]
                out = torch.empty((n, 1, h, w), device=x.device, dtype=x.dtype)
                score_kernel[(n, triton.cdiv(h * w, 64))](
                    x, self.weight, self.bias, self.offset, out, h * w, classes, 0.0, 8.0,
                    CHANNELS=c, CLASSES=triton.next_power_of_2(classes), BLOCK=64, num_warps=4,
                )
                return out
            """,
        ),
        "cuda_reduction": Body(
            before=_CUDA,
            init=_SCALED,
            forward="return reduce_module.reduce_classes(F.conv2d(x, self.weight, self.bias), self.offset)",
        ),
        "cuda_pixel_in_registers": Body(
            before=_CUDA_PIXEL,
            init=_SCALED,
            forward="""
                return energy_module.energy_forward(x.contiguous(), self.weight, self.bias, self.offset)
            """,
        ),
        "cuda_block_per_pixel": Body(
            summary="""Free energy of every pixel, with all that follows the convolution in one kernel.

    Falls back to torch.logsumexp on the CPU and for other types than float32.
    """,
            before=_CUDA_BLOCK_PER_PIXEL,
            init=_INIT,
            methods='''
                def _energy(self, scores):
                    """Log-sum-exp over classes, offset and clamp."""
                    if scores.is_cuda and scores.dtype == torch.float32:
                        return logsumexp_ext.logsumexp_clamp(
                            scores.contiguous(), self.offset, self.temperature, 0.0, 8.0
                        )
                    energy = torch.logsumexp(scores / self.temperature, dim=1, keepdim=True)
                    return torch.clamp(energy + self.offset, 0.0, 8.0)
            ''',
            forward="return self._energy(self.conv(x))",
        ),
    },
    images=True,
    carries_on="offset_in_bias",
)
