"""Squeeze and excitation of large images inside a residual, followed by ReLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_PLANE_KERNELS = """
import triton
import triton.language as tl


@triton.jit
def plane_mean_kernel(x_ptr, out_ptr, pixels, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, pixels, BLOCK):
        at = start + cols
        acc += tl.load(x_ptr + plane * pixels + at, mask=at < pixels, other=0.0)
    tl.store(out_ptr + plane, tl.sum(acc, axis=0) / pixels)


@triton.jit
def excite_kernel(x_ptr, logit_ptr, out_ptr, pixels, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < pixels
    factor = 1.0 + tl.sigmoid(tl.load(logit_ptr + plane))
    x = tl.load(x_ptr + plane * pixels + at, mask=keep, other=0.0)
    tl.store(out_ptr + plane * pixels + at, tl.maximum(x * factor, 0.0), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void squeeze(const float4* __restrict__ x, float* __restrict__ means, int quads) {
    __shared__ float parts[32];
    const float4* plane = x + (long)blockIdx.x * quads;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = plane[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int w = 0; w < (int)blockDim.x / 32; ++w) total += parts[w];
        means[blockIdx.x] = total / (4.0f * quads);
    }
}

// a block per sample; a warp per unit
__global__ void gates(const float* __restrict__ means, const float* __restrict__ w1, const float* __restrict__ b1,
                      const float* __restrict__ w2, const float* __restrict__ b2, float* __restrict__ factors,
                      int channels, int squeezed) {
    extern __shared__ float units[];
    const float* row = means + (long)blockIdx.x * channels;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int j = warp; j < squeezed; j += warps) {
        float sum = 0.0f;
        for (int i = lane; i < channels; i += 32) sum += row[i] * w1[(long)j * channels + i];
        for (int o = 16; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
        if (lane == 0) units[j] = fmaxf(sum + b1[j], 0.0f);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        float sum = b2[c];
        for (int j = 0; j < squeezed; ++j) sum += units[j] * w2[(long)c * squeezed + j];
        factors[(long)blockIdx.x * channels + c] = 1.0f + 1.0f / (1.0f + expf(-sum));
    }
}

__global__ void excite(const float4* __restrict__ x, const float* __restrict__ factors, float4* __restrict__ out,
                       int quads) {
    float f = factors[blockIdx.x];
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = x[(long)blockIdx.x * quads + i];
        v.x = fmaxf(v.x * f, 0.0f);
        v.y = fmaxf(v.y * f, 0.0f);
        v.z = fmaxf(v.z * f, 0.0f);
        v.w = fmaxf(v.w * f, 0.0f);
        out[(long)blockIdx.x * quads + i] = v;
    }
}

torch::Tensor squeeze_excite(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2,
                             torch::Tensor b2) {
    int batch = x.size(0), channels = x.size(1), pixels = x.size(2) * x.size(3), squeezed = w1.size(0);
    TORCH_CHECK(pixels % 4 == 0, "planes must be multiples of 4 pixels");
    auto out = torch::empty_like(x);
    auto means = torch::empty({batch, channels}, x.options());
    auto factors = torch::empty({batch, channels}, x.options());
    const float4* in = reinterpret_cast<const float4*>(x.data_ptr<float>());
    squeeze<<<batch * channels, 256>>>(in, means.data_ptr<float>(), pixels / 4);
    gates<<<batch, 256, squeezed * sizeof(float)>>>(
        means.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(),
        b2.data_ptr<float>(), factors.data_ptr<float>(), channels, squeezed);
    excite<<<batch * channels, 256>>>(
        in, factors.data_ptr<float>(), reinterpret_cast<float4*>(out.data_ptr<float>()), pixels / 4);
    return out;
}
"""
excite_module = load_inline(
    name="squeeze_excite_residual_planes",
    cpp_sources="torch::Tensor squeeze_excite(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, "
    "torch::Tensor w2, torch::Tensor b2);",
    cuda_sources=source,
    functions=["squeeze_excite"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def excite(x: Tensor, logits: Tensor) -> Tensor:
    return torch.relu(x * (1.0 + torch.sigmoid(logits)))
""")
'''

_INIT = """
    self.pool = nn.AdaptiveAvgPool2d(1)
    self.reduce = nn.Conv2d(channels, channels // ratio, 1)
    self.expand = nn.Conv2d(channels // ratio, channels, 1)
"""

_LOGITS = '''
    def _logits(self, means):
        """What the sigmoid is taken of, (batch, channels), from the means of all planes."""
        h = F.relu(F.linear(means, self.reduce.weight.flatten(1), self.reduce.bias))
        return F.linear(h, self.expand.weight.flatten(1), self.expand.bias)
'''

_CUDA_THREE_KERNELS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Kernel 1: average of every plane, one block each
__global__ void pool_kernel(const float* x, float* means, int area) {
    __shared__ float shared[256];
    const float* plane = x + (long)blockIdx.x * area;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < area; i += 256) sum += plane[i];
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) means[blockIdx.x] = shared[0] / area;
}

// Kernel 2: reduce and expand, one block per sample
__global__ void excite_kernel(const float* means, const float* w1, const float* b1, const float* w2, const float* b2,
                              float* gates, int channels, int squeezed) {
    extern __shared__ float hidden[];
    const float* m = means + blockIdx.x * channels;
    for (int j = threadIdx.x; j < squeezed; j += blockDim.x) {
        float sum = b1[j];
        for (int c = 0; c < channels; c++) sum += w1[j * channels + c] * m[c];
        hidden[j] = fmaxf(sum, 0.0f);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        float sum = b2[c];
        for (int j = 0; j < squeezed; j++) sum += w2[c * squeezed + j] * hidden[j];
        gates[blockIdx.x * channels + c] = 1.0f / (1.0f + expf(-sum));
    }
}

// Kernel 3: scale, residual and ReLU
__global__ void apply_kernel(const float* x, const float* gates, float* out, int area, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    float v = x[i];
    out[i] = fmaxf(v * gates[i / area] + v, 0.0f);
}

torch::Tensor se_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, torch::Tensor b2) {
    int n = x.size(0), channels = x.size(1), area = x.size(2) * x.size(3), squeezed = w1.size(0);
    auto means = torch::empty({n, channels}, x.options());
    auto gates = torch::empty({n, channels}, x.options());
    auto out = torch::empty_like(x);
    pool_kernel<<<n * channels, 256>>>(x.data_ptr<float>(), means.data_ptr<float>(), area);
    excite_kernel<<<n, 128, squeezed * sizeof(float)>>>(
        means.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(),
        b2.data_ptr<float>(), gates.data_ptr<float>(), channels, squeezed);
    long total = x.numel();
    apply_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), gates.data_ptr<float>(), out.data_ptr<float>(),
                                               area, total);
    return out;
}
"""

se_module = load_inline(
    name="squeeze_excite_residual_three_kernels",
    cpp_sources="torch::Tensor se_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, "
    "torch::Tensor b2);",
    cuda_sources=source,
    functions=["se_forward"],
    verbose=False,
)
'''

_CUDA_EXCITATION = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// One block per sample. A warp per squeezed channel, then a thread per gate. Returns 1 + gate.
__global__ void excitation(const float* __restrict__ means, const float* __restrict__ w1,
                           const float* __restrict__ b1, const float* __restrict__ w2,
                           const float* __restrict__ b2, float* __restrict__ factors, int channels, int squeezed) {
    extern __shared__ float shared[];
    float* m = shared;
    float* hidden = shared + channels;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) m[c] = means[blockIdx.x * channels + c];
    __syncthreads();
    for (int j = warp; j < squeezed; j += warps) {
        float sum = 0.0f;
        for (int c = lane; c < channels; c += 32) sum = fmaf(w1[j * channels + c], m[c], sum);
        #pragma unroll
        for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane == 0) hidden[j] = fmaxf(sum + b1[j], 0.0f);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        float sum = b2[c];
        for (int j = 0; j < squeezed; ++j) sum = fmaf(w2[c * squeezed + j], hidden[j], sum);
        factors[blockIdx.x * channels + c] = 1.0f + 1.0f / (1.0f + __expf(-sum));
    }
}

torch::Tensor excitation_forward(torch::Tensor means, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2,
                                 torch::Tensor b2) {
    TORCH_CHECK(means.is_cuda() && means.is_contiguous(), "means must be contiguous and on the GPU");
    const int n = means.size(0), channels = means.size(1), squeezed = w1.size(0);
    auto factors = torch::empty_like(means);
    const size_t shared = (channels + squeezed) * sizeof(float);
    excitation<<<n, 256, shared, at::cuda::getCurrentCUDAStream()>>>(
        means.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(),
        b2.data_ptr<float>(), factors.data_ptr<float>(), channels, squeezed);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return factors;
}
"""

excitation_ext = load_inline(
    name="squeeze_excite_residual_excitation",
    cpp_sources="torch::Tensor excitation_forward(torch::Tensor means, torch::Tensor w1, torch::Tensor b1, "
    "torch::Tensor w2, torch::Tensor b2);",
    cuda_sources=cuda_source,
    functions=["excitation_forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="squeeze_excite_residual",
    sizes="""
        batch_size = 64
        channels = 256
        height = 56
        width = 56
        ratio = 16
    """,
    arguments=("channels", "ratio"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Channels scaled by gates from their means, plus the input itself, and ReLU.",
        init=_INIT,
        forward="""
            s = self.pool(x)
            s = F.relu(self.reduce(s))
            s = torch.sigmoid(self.expand(s))
            return F.relu(x * s + x)
        """,
    ),
    rewrites={
        "one_plus_gate": Body(
            summary="x * s + x is x * (1 + s), and 1 + s is tiny.",
            forward="""
                s = F.relu(self.reduce(self.pool(x)), inplace=True)
                s = self.expand(s).sigmoid_().add_(1.0)
                return torch.mul(x, s).relu_()
            """,
        ),
        "mean_and_linear": Body(
            methods=_LOGITS,
            forward="""
                s = torch.sigmoid(self._logits(x.mean(dim=(2, 3))))
                return torch.addcmul(x, x, s[:, :, None, None]).relu_()
            """,
        ),
        "mean_as_product": Body(
            summary="Means by a product with a vector of equal weights.",
            init=_INIT + "\n    self._weights = None\n",
            methods=_LOGITS,
            forward="""
                B, C, H, W = x.shape
                if self._weights is None or self._weights.numel() != H * W or self._weights.device != x.device:
                    self._weights = torch.full((H * W,), 1.0 / (H * W), device=x.device)
                means = torch.mv(x.reshape(B * C, H * W), self._weights).view(B, C)
                factors = torch.sigmoid(self._logits(means)).add_(1.0)
                return (x * factors.view(B, C, 1, 1)).clamp_(min=0.0)
            """,
        ),
        "expanded_gate": Body(
            summary="Gates are written out to the size of the image before they are used.",
            forward="""
                s = self.pool(x)
                s = torch.sigmoid(self.expand(F.relu(self.reduce(s))))
                s = s.expand_as(x).contiguous()
                out = x.clone()
                out.mul_(s)
                out.add_(x)
                return out.relu_()
            """,
        ),
        "sample_by_sample": Body(
            summary="One sample at a time: the second reading of a sample finds it in the cache.",
            methods=_LOGITS,
            forward="""
                out = torch.empty_like(x)
                for i in range(x.shape[0]):
                    means = x[i].mean(dim=(1, 2)).unsqueeze(0)
                    factors = self._logits(means).sigmoid_().add_(1.0)
                    torch.mul(x[i], factors.view(-1, 1, 1), out=out[i])
                return out.relu_()
            """,
        ),
        "scripted_tail": Body(
            before=_SCRIPTED,
            methods=_LOGITS,
            forward="return scripted.excite(x, self._logits(x.mean(dim=(2, 3)))[:, :, None, None])",
        ),
        "triton_planes": Body(
            before=_PLANE_KERNELS,
            methods=_LOGITS,
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                means = torch.empty(B, C, device=x.device)
                plane_mean_kernel[(B * C,)](x, means, H * W, BLOCK=1024)
                logits = self._logits(means)
                out = torch.empty_like(x)
                excite_kernel[(B * C, triton.cdiv(H * W, 1024))](x, logits, out, H * W, BLOCK=1024)
                return out
            """,
        ),
        "cuda_planes": Body(
            before=_CUDA,
            forward="""
                return excite_module.squeeze_excite(
                    x.contiguous(), self.reduce.weight.flatten(1), self.reduce.bias,
                    self.expand.weight.flatten(1), self.expand.bias
                )
            """,
        ),
        "cuda_three_kernels": Body(
            before=_CUDA_THREE_KERNELS,
            forward="""
                return se_module.se_forward(
                    x.contiguous(), self.reduce.weight, self.reduce.bias, self.expand.weight, self.expand.bias
                )
            """,
        ),
        "cuda_excitation": Body(
            summary="""Squeeze and excitation with the two small layers in one kernel.

    Means and the final scaling are the library's: they read all of the input, and there is little to win there.
    """,
            before=_CUDA_EXCITATION,
            methods='''
                def _factors(self, means):
                    """One plus the gate of every channel."""
                    if means.is_cuda and means.dtype == torch.float32:
                        return excitation_ext.excitation_forward(
                            means.contiguous(), self.reduce.weight, self.reduce.bias, self.expand.weight,
                            self.expand.bias,
                        )
                    h = F.relu(F.linear(means, self.reduce.weight.flatten(1), self.reduce.bias))
                    return torch.sigmoid(F.linear(h, self.expand.weight.flatten(1), self.expand.bias)) + 1
            ''',
            forward="""
                factors = self._factors(x.mean(dim=(2, 3)))
                return F.relu_(x * factors[:, :, None, None])
            """,
        ),
    },
    images=True,
    carries_on="one_plus_gate",
)
