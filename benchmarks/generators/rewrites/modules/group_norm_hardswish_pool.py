"""Group normalisation and hard swish of feature maps, both written out, and 2x2 average pooling."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scale_hardswish_pool(x_ptr, factor_ptr, offset_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    half_height = height // 2
    half_width = width // 2
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < half_height * half_width
    row = at // half_width
    col = at % half_width
    factor = tl.load(factor_ptr + plane)
    offset = tl.load(offset_ptr + plane)
    corner = x_ptr + plane * height * width + row * 2 * width + col * 2
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(4):
        y = tl.load(corner + (k // 2) * width + k % 2, mask=keep, other=0.0) * factor + offset
        total += y * tl.minimum(tl.maximum(y + 3.0, 0.0), 6.0)
    tl.store(out_ptr + plane * half_height * half_width + at, total / 24.0, mask=keep)
"""

_INIT = """
    self.groups = groups
    self.eps = 1e-5
    self.weight = nn.Parameter(1 + 0.2 * torch.randn(channels))
    self.bias = nn.Parameter(0.2 * torch.randn(channels))
"""

_FOLDED = """
    def _factor_and_offset(self, x):
        n, c = x.shape[:2]
        var, mean = torch.var_mean(x.reshape(n, self.groups, -1), dim=-1, correction=0)
        size = c // self.groups
        factor = torch.rsqrt(var + self.eps).repeat_interleave(size, dim=1) * self.weight
        offset = self.bias - mean.repeat_interleave(size, dim=1) * factor
        return factor, offset
"""

_CUDA_GROUP = '''
from torch.utils.cpp_extension import load_inline

group_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define THREADS 512

__device__ __forceinline__ float block_total(float v, float* scratch) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) sum += scratch[i];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ float hardswish(float y) { return y * fminf(fmaxf(y + 3.0f, 0.0f), 6.0f); }

// One block per group of a sample: mean, squares around it, then norm, hard swish and pooling in a third pass.
__global__ void norm_swish_pool_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                       const float* __restrict__ bias, float* __restrict__ out, int channels,
                                       int groups, int height, int width, float eps) {
    __shared__ float scratch[THREADS / 32];
    const int sample = blockIdx.x / groups;
    const int group = blockIdx.x % groups;
    const int each = channels / groups;
    const int area = height * width;
    const int size = each * area;
    const float* base = x + ((long)sample * channels + group * each) * area;
    const float4* quads = reinterpret_cast<const float4*>(base);

    float sum = 0.0f;
    for (int i = threadIdx.x; i < size / 4; i += THREADS) {
        const float4 v = quads[i];
        sum += v.x + v.y + v.z + v.w;
    }
    const float mean = block_total(sum, scratch) / size;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < size / 4; i += THREADS) {
        const float4 v = quads[i];
        const float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
        squares += a * a + b * b + c * c + d * d;
    }
    const float inverse = rsqrtf(block_total(squares, scratch) / size + eps);

    const int out_w = width / 2;
    const int out_area = (height / 2) * out_w;
    for (int i = threadIdx.x; i < each * out_area; i += THREADS) {
        const int k = i / out_area;
        const int p = i % out_area;
        const int c = group * each + k;
        const float factor = inverse * weight[c];
        const float offset = bias[c] - mean * factor;
        const float* corner = base + (long)k * area + (p / out_w) * 2 * width + (p % out_w) * 2;
        const float2 top = *reinterpret_cast<const float2*>(corner);
        const float2 low = *reinterpret_cast<const float2*>(corner + width);
        const float total = hardswish(fmaf(top.x, factor, offset)) + hardswish(fmaf(top.y, factor, offset)) +
                            hardswish(fmaf(low.x, factor, offset)) + hardswish(fmaf(low.y, factor, offset));
        out[((long)sample * channels + c) * out_area + p] = total * (1.0f / 24.0f);
    }
}

torch::Tensor norm_swish_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups, double eps) {
    const int n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    TORCH_CHECK(width % 2 == 0 && height % 2 == 0, "even sides expected");
    auto out = torch::empty({n, channels, height / 2, width / 2}, x.options());
    norm_swish_pool_kernel<<<n * groups, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), channels,
        (int)groups, height, width, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
group_module = load_inline(
    name="group_norm_hardswish_pool_group",
    cpp_sources="torch::Tensor norm_swish_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "int64_t groups, double eps);",
    cuda_sources=group_source,
    functions=["norm_swish_pool"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_POOL = '''
from torch.utils.cpp_extension import load_inline

pool_source = r"""
#include <torch/extension.h>

template <typename scalar_t>
__global__ void hardswish_pool_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ out, int height,
                                      int width, long total) {
    long idx = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int out_h = height / 2, out_w = width / 2;
    int col = idx % out_w;
    int row = (idx / out_w) % out_h;
    long plane = idx / (out_w * out_h);
    scalar_t sum = 0;
    for (int dy = 0; dy < 2; dy++) {
        for (int dx = 0; dx < 2; dx++) {
            scalar_t y = x[(plane * height + row * 2 + dy) * width + col * 2 + dx];
            scalar_t gate = y + scalar_t(3);
            if (gate < scalar_t(0)) gate = scalar_t(0);
            if (gate > scalar_t(6)) gate = scalar_t(6);
            sum += y * gate / scalar_t(6);
        }
    }
    out[idx] = sum / scalar_t(4);
}

torch::Tensor hardswish_pool(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous() && x.dim() == 4, "x must be contiguous with four dimensions");
    auto out = torch::empty({x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2}, x.options());
    long total = out.numel();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "hardswish_pool", ([&] {
        hardswish_pool_kernel<scalar_t><<<(total + 255) / 256, 256>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), (int)x.size(2), (int)x.size(3), total);
    }));
    return out;
}
"""
pool_module = load_inline(
    name="group_norm_hardswish_pool_tail",
    cpp_sources="torch::Tensor hardswish_pool(torch::Tensor x);",
    cuda_sources=pool_source,
    functions=["hardswish_pool"],
)
'''

MODULE = Rewritten(
    name="group_norm_hardswish_pool",
    sizes="""
        batch_size = 32
        channels = 128
        groups = 16
        side = 64
    """,
    arguments=("channels", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    images=True,
    reference=Body(
        summary="Normalises groups of channels, applies hard swish and halves the resolution.",
        init=_INIT,
        forward="""
            n, c, h, w = x.shape
            grouped = x.reshape(n, self.groups, -1)
            mean = grouped.mean(dim=-1, keepdim=True)
            var = ((grouped - mean) ** 2).mean(dim=-1, keepdim=True)
            grouped = (grouped - mean) / torch.sqrt(var + self.eps)
            y = grouped.reshape(n, c, h, w) * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
            y = y * torch.clamp(y + 3, 0, 6) / 6
            return F.avg_pool2d(y, kernel_size=2, stride=2)
        """,
    ),
    rewrites={
        "library_calls": Body(
            forward="""
                y = F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
                return F.avg_pool2d(F.hardswish(y, inplace=True), 2)
            """
        ),
        "folded_statistics": Body(
            init=_INIT,
            methods=_FOLDED,
            forward="""
                factor, offset = self._factor_and_offset(x)
                y = torch.addcmul(offset[:, :, None, None], x, factor[:, :, None, None])
                return F.avg_pool2d(F.hardswish(y), 2)
            """,
        ),
        "layer_norm_on_groups": Body(
            forward="""
                n, c, h, w = x.shape
                flat = x.reshape(n * self.groups, -1)
                y = F.layer_norm(flat, flat.shape[1:], eps=self.eps).view(n, c, h, w)
                y = y.mul_(self.weight.view(-1, 1, 1)).add_(self.bias.view(-1, 1, 1))
                return F.avg_pool2d(F.hardswish(y), 2)
            """
        ),
        "batch_norm_on_groups": Body(
            summary="Group normalisation as batch normalisation in which each group of each sample is a channel.",
            forward="""
                n, c, h, w = x.shape
                planes = x.reshape(1, n * self.groups, -1, w)
                y = F.batch_norm(planes, None, None, training=True, eps=self.eps).view(n, c, h, w)
                y = torch.addcmul(self.bias.view(1, c, 1, 1), y, self.weight.view(1, c, 1, 1))
                y = y * F.relu6(y + 3)
                # the division by six goes into the divisor of the pool
                return F.avg_pool2d(y, 2, divisor_override=24)
            """,
        ),
        "strided_pool": Body(
            forward="""
                y = F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
                y = F.hardswish(y)
                rows = y[:, :, 0::2, :] + y[:, :, 1::2, :]
                return (rows[..., 0::2] + rows[..., 1::2]) * 0.25
            """
        ),
        "sample_loop": Body(
            init=_INIT + "    self.norm_shape = None\n",
            methods="""
                def _one(self, image):
                    y = F.group_norm(image, self.groups, self.weight, self.bias, self.eps)
                    y = F.hardswish(y, inplace=True)
                    return F.avg_pool2d(y, kernel_size=2, stride=2)
            """,
            forward="""
                n, c, h, w = x.shape
                out = torch.empty(n, c, h // 2, w // 2, device=x.device, dtype=x.dtype)
                for i in range(n):
                    out[i : i + 1] = self._one(x[i : i + 1])
                return out
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_INIT,
            methods=_FOLDED,
            summary="Statistics by one library reduction; scale, hard swish and pooling in one pass.",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                factor, offset = self._factor_and_offset(x)
                out = torch.empty(n, c, h // 2, w // 2, device=x.device)
                grid = (n * c, triton.cdiv((h // 2) * (w // 2), 512))
                scale_hardswish_pool[grid](x, factor, offset, out, h, w, BLOCK=512, num_warps=4)
                return out
            """,
        ),
        "cuda_block_per_group": Body(
            before=_CUDA_GROUP,
            forward="""
                x = x.contiguous()
                return group_module.norm_swish_pool(x, self.weight, self.bias, self.groups, self.eps)
            """,
        ),
        "cuda_activation_and_pool": Body(
            summary="Group norm by the library; hard swish and pooling in one kernel.",
            before=_CUDA_POOL,
            init=_INIT,
            methods='''
                def _swish_pool(self, y):
                    """Hard swish and 2x2 average pooling."""
                    if not y.is_cuda or y.dtype not in (torch.float32, torch.float64):
                        return F.avg_pool2d(F.hardswish(y), 2)
                    return pool_module.hardswish_pool(y.contiguous())
            ''',
            forward="return self._swish_pool(F.group_norm(x, self.groups, self.weight, self.bias, self.eps))",
        ),
    },
    carries_on="library_calls",
)
