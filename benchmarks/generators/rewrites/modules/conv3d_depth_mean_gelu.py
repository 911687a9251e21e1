"""A 3-D convolution, its mean over depth, a bias and GELU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depth_mean_gelu_kernel(y_ptr, bias_ptr, out_ptr, channels, depth, area, BLOCK: tl.constexpr):
    plane = tl.program_id(1)
    pixels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixels < area
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for level in range(0, depth):
        total += tl.load(y_ptr + (plane * depth + level) * area + pixels, mask=keep, other=0.0)
    mean = total / depth + tl.load(bias_ptr + plane % channels)
    out = 0.5 * mean * (1.0 + tl.erf(mean * 0.7071067811865476))
    tl.store(out_ptr + plane * area + pixels, out, mask=keep)
"""

_INIT = """
    self.conv = nn.Conv3d(channels, width, 3)
    self.bias = nn.Parameter(torch.randn(width, 1, 1))
"""

_FLAT = (
    _INIT
    + """
    with torch.no_grad():
        self.register_buffer("flat_weight", self.conv.weight.flatten(1, 2).clone())
        self.register_buffer("flat_bias", self.conv.bias + self.bias.flatten())
"""
)

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def mean_bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    y = y.mean(dim=[2]) + bias
    return y * 0.5 * (1.0 + torch.erf(y * 0.7071067811865476))
""")
'''

_CUDA_NAIVE = '''
from torch.utils.cpp_extension import load_inline

naive_source = r"""
#include <torch/extension.h>

__global__ void conv3d_mean_gelu_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                        const float* __restrict__ conv_bias, const float* __restrict__ bias,
                                        float* __restrict__ out, int batch, int channels, int width, int depth,
                                        int height, int breadth) {
    int out_d = depth - 2, out_h = height - 2, out_w = breadth - 2;
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= batch * width * out_h * out_w) return;
    int col = idx % out_w;
    int row = (idx / out_w) % out_h;
    int o = (idx / (out_w * out_h)) % width;
    int n = idx / (out_w * out_h * width);

    float sum = 0.0f;
    for (int d = 0; d < out_d; d++) {
        for (int c = 0; c < channels; c++) {
            const float* volume = x + ((long)n * channels + c) * depth * height * breadth;
            const float* taps = weight + (o * channels + c) * 27;
#pragma unroll
            for (int kd = 0; kd < 3; kd++)
#pragma unroll
                for (int kh = 0; kh < 3; kh++)
#pragma unroll
                    for (int kw = 0; kw < 3; kw++)
                        sum += volume[((d + kd) * height + row + kh) * breadth + col + kw] *
                               taps[(kd * 3 + kh) * 3 + kw];
        }
    }
    float y = sum / out_d + conv_bias[o] + bias[o];
    out[idx] = 0.5f * y * (1.0f + erff(y * 0.70710678f));
}

torch::Tensor conv3d_mean_gelu(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias) {
    int batch = x.size(0), channels = x.size(1), depth = x.size(2), height = x.size(3), breadth = x.size(4);
    int width = weight.size(0);
    auto out = torch::empty({batch, width, height - 2, breadth - 2}, x.options());
    int total = out.numel();
    const int threads = 256;
    conv3d_mean_gelu_kernel<<<(total + threads - 1) / threads, threads>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), conv_bias.data_ptr<float>(), bias.data_ptr<float>(),
        out.data_ptr<float>(), batch, channels, width, depth, height, breadth);
    return out;
}
"""
naive_module = load_inline(
    name="conv3d_depth_mean_gelu_naive",
    cpp_sources="torch::Tensor conv3d_mean_gelu(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, "
    "torch::Tensor bias);",
    cuda_sources=naive_source,
    functions=["conv3d_mean_gelu"],
    verbose=False,
)
'''

_CUDA_MEAN = '''
from torch.utils.cpp_extension import load_inline

mean_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// y: (planes, depth, area). A thread has four neighbouring pixels and walks through the depth.
__global__ void depth_mean_gelu_kernel(const float4* __restrict__ y, const float* __restrict__ bias,
                                       float4* __restrict__ out, int width, int depth, int quads, float inverse) {
    const int plane = blockIdx.y;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    const float4* column = y + (long)plane * depth * quads + i;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int d = 0; d < depth; ++d) {
        const float4 v = column[(long)d * quads];
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
    }
    const float b = bias[plane % width];
    float r[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float v = fmaf(r[k], inverse, b);
        r[k] = 0.5f * v * (1.0f + erff(v * 0.7071067811865475f));
    }
    out[(long)plane * quads + i] = make_float4(r[0], r[1], r[2], r[3]);
}

torch::Tensor depth_mean_gelu(torch::Tensor y, torch::Tensor bias) {
    TORCH_CHECK(y.is_cuda() && y.dim() == 5 && y.is_contiguous(), "a contiguous CUDA tensor (N, C, D, H, W) expected");
    TORCH_CHECK(y.scalar_type() == torch::kFloat32, "float32 expected");
    const int planes = y.size(0) * y.size(1), depth = y.size(2), area = y.size(3) * y.size(4);
    TORCH_CHECK(area % 4 == 0 && planes <= 65535, "unsupported shape");
    auto out = torch::empty({y.size(0), y.size(1), y.size(3), y.size(4)}, y.options());
    dim3 grid((area / 4 + 127) / 128, planes);
    depth_mean_gelu_kernel<<<grid, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(y.data_ptr<float>()), bias.data_ptr<float>(),
        reinterpret_cast<float4*>(out.data_ptr<float>()), (int)y.size(1), depth, area / 4, 1.0f / depth);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
mean_module = load_inline(
    name="conv3d_depth_mean_gelu_mean",
    cpp_sources="torch::Tensor depth_mean_gelu(torch::Tensor y, torch::Tensor bias);",
    cuda_sources=mean_source,
    functions=["depth_mean_gelu"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="conv3d_depth_mean_gelu",
    sizes="""
        batch_size = 16
        channels = 8
        width = 24
        depth, height, breadth = 16, 48, 48
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, depth, height, breadth)]",
    reference=Body(
        summary="3-D convolution, mean over depth, a bias per channel, GELU.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = x.mean(dim=2)
            x = x + self.bias
            return F.gelu(x)
        """,
    ),
    rewrites={
        "window_means_then_conv2d": Body(
            summary="The mean over depth goes through the convolution: 2-D, on three means of the input per channel.",
            init=_FLAT,
            forward="""
                levels = x.shape[2] - 2
                means = [x[:, :, start : start + levels].mean(dim=2) for start in range(3)]
                y = torch.stack(means, dim=2).flatten(1, 2)
                return F.gelu(F.conv2d(y, self.flat_weight, self.flat_bias))
            """,
        ),
        "pooled_input": Body(
            init=_FLAT,
            forward="""
                means = F.avg_pool3d(x, (x.shape[2] - 2, 1, 1), stride=1)
                return F.gelu(F.conv2d(means.flatten(1, 2), self.flat_weight, self.flat_bias))
            """,
        ),
        "one_sum_and_corrections": Body(
            summary="One sum over all levels; the three windows differ from it in two levels each.",
            init=_FLAT,
            methods='''
                def window_means(self, x):
                    """Means over the depths that the first, second and third tap see, as (batch, 3 * channels, ...)."""
                    depth = x.shape[2]
                    levels = depth - 2
                    total = x.sum(dim=2)
                    first, second = x[:, :, 0], x[:, :, 1]
                    last, before_last = x[:, :, depth - 1], x[:, :, depth - 2]
                    means = x.new_empty(x.shape[0], x.shape[1], 3, x.shape[3], x.shape[4])
                    means[:, :, 0] = total - last - before_last
                    means[:, :, 1] = total - first - last
                    means[:, :, 2] = total - first - second
                    return means.div_(levels).flatten(1, 2)
            ''',
            forward="return F.gelu(F.conv2d(self.window_means(x), self.flat_weight, self.flat_bias))",
        ),
        "means_as_product": Body(
            summary="Window means as a product with a constant matrix of three rows.",
            init=_FLAT + '    self.register_buffer("windows", torch.empty(0, 0), persistent=False)\n',
            forward="""
                n, c, d, h, w = x.shape
                if self.windows.shape[-1] != d or self.windows.device != x.device:
                    windows = torch.zeros(3, d, device=x.device)
                    for tap in range(3):
                        windows[tap, tap : tap + d - 2] = 1.0 / (d - 2)
                    self.windows = windows
                y = torch.matmul(self.windows, x.reshape(n, c, d, h * w))
                return F.gelu(F.conv2d(y.view(n, 3 * c, h, w), self.flat_weight, self.flat_bias))
            """,
        ),
        "folded_bias": Body(
            init=_FLAT,
            forward="return F.gelu(F.conv3d(x, self.conv.weight, self.flat_bias).mean(dim=2))",
        ),
        "level_by_level": Body(
            summary="A 2-D convolution per depth of the output, added up.",
            init=_FLAT,
            forward="""
                levels = x.shape[2] - 2
                total = 0
                for level in range(levels):
                    part = x[:, :, level : level + 3].flatten(1, 2)
                    total = total + F.conv2d(part, self.flat_weight)
                return F.gelu(total / levels + self.flat_bias.view(-1, 1, 1))
            """,
        ),
        "scripted_tail": Body(
            before=_SCRIPTED, forward="return scripted.mean_bias_gelu(self.conv(x), self.bias)"
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_FLAT,
            forward="""
                y = F.conv3d(x, self.conv.weight).contiguous()
                n, c, d, h, w = y.shape
                out = torch.empty((n, c, h, w), device=y.device, dtype=y.dtype)
                depth_mean_gelu_kernel[(triton.cdiv(h * w, 512), n * c)](
                    y, self.flat_bias, out, c, d, h * w, BLOCK=512
                )
                return out
            """,
        ),
        "cuda_direct_convolution": Body(
            before=_CUDA_NAIVE,
            forward="""
                return naive_module.conv3d_mean_gelu(
                    x.contiguous(), self.conv.weight.contiguous(), self.conv.bias, self.bias.contiguous()
                )
            """,
        ),
        "cuda_depth_mean": Body(
            summary="The convolution from the library, everything after it in one kernel.",
            before=_CUDA_MEAN,
            init=_INIT,
            methods='''
                def _tail(self, y):
                    """Mean over depth, bias and GELU, by the kernel if it takes y."""
                    area = y.shape[-2] * y.shape[-1]
                    if y.is_cuda and y.dtype == torch.float32 and area % 4 == 0:
                        return mean_module.depth_mean_gelu(y.contiguous(), self.bias.contiguous())
                    return F.gelu(y.mean(dim=2) + self.bias)
            ''',
            forward="return self._tail(self.conv(x))",
        ),
    },
    carries_on="window_means_then_conv2d",
)
