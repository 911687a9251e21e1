"""A grouped 1-D convolution, leaky ReLU, a bias per channel and maximum pooling."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_kernel(y_ptr, bias_ptr, out_ptr, channels, pooled, total, slope, POOL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    taps = tl.arange(0, POOL)
    y = tl.load(y_ptr + at[:, None] * POOL + taps[None, :], mask=keep[:, None], other=0.0)
    y = tl.max(y, axis=1)
    y = tl.where(y >= 0.0, y, y * slope)
    channel = (at // pooled) % channels
    tl.store(out_ptr + at, y + tl.load(bias_ptr + channel, mask=keep, other=0.0), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread per output of the pooling: it computes the four convolution outputs it needs by itself.
template <int TAPS, int POOL>
__global__ void grouped_conv_pool(const float* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ inner, const float* __restrict__ outer,
                                  float* __restrict__ out, int channels, int width, int groups, int length,
                                  float slope) {
    int pooled = length / POOL;
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    int feature = blockIdx.y;
    int sample = blockIdx.z;
    if (p >= pooled) return;
    int each = channels / groups;
    int group = feature / (width / groups);
    float total[POOL];
#pragma unroll
    for (int j = 0; j < POOL; ++j) total[j] = inner[feature];
    for (int c = 0; c < each; ++c) {
        const float* row = x + ((long)sample * channels + group * each + c) * length;
        float window[POOL + TAPS - 1];
#pragma unroll
        for (int i = 0; i < POOL + TAPS - 1; ++i) {
            int at = p * POOL + i - TAPS / 2;
            window[i] = at >= 0 && at < length ? row[at] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
            float w = weight[(feature * each + c) * TAPS + t];
#pragma unroll
            for (int j = 0; j < POOL; ++j) total[j] += w * window[j + t];
        }
    }
    float highest = total[0];
#pragma unroll
    for (int j = 1; j < POOL; ++j) highest = fmaxf(highest, total[j]);
    highest = highest >= 0.0f ? highest : highest * slope;
    out[((long)sample * width + feature) * pooled + p] = highest + outer[feature];
}

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor inner, torch::Tensor outer, int64_t groups) {
    TORCH_CHECK(weight.size(2) == 9, "nine taps expected");
    x = x.contiguous();
    int n = x.size(0), channels = x.size(1), length = x.size(2), width = weight.size(0);
    auto out = torch::empty({n, width, length / 4}, x.options());
    dim3 grid((length / 4 + 127) / 128, width, n);
    grouped_conv_pool<9, 4><<<grid, 128>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), inner.data_ptr<float>(), outer.data_ptr<float>(),
        out.data_ptr<float>(), channels, width, (int)groups, length, 0.2f);
    return out;
}
"""
declaration = (
    "torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor inner, torch::Tensor outer,"
    " int64_t groups);"
)
whole_module = load_inline(
    name="grouped_conv1d_leaky_max_whole",
    cpp_sources=declaration,
    cuda_sources=source,
    functions=["forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

_INIT = """
    self.conv = nn.Conv1d(channels, width, 9, padding=4, groups=groups)
    self.activation = nn.LeakyReLU(0.2)
    self.bias = nn.Parameter(torch.randn(width, 1))
    self.pool = nn.MaxPool1d(4)
"""

_CUDA_TWO_STEPS = '''
from torch.utils.cpp_extension import load_inline

steps_source = r"""
#include <torch/extension.h>

__global__ void grouped_conv1d_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                      const float* __restrict__ conv_bias, const float* __restrict__ bias,
                                      float* __restrict__ out, int batch, int channels, int width, int groups,
                                      int length, int taps, int padding, float slope) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int total = batch * width * length;
    if (idx >= total) return;
    int t = idx % length;
    int o = (idx / length) % width;
    int n = idx / (length * width);
    int in_each = channels / groups;
    int group = o / (width / groups);
    float sum = conv_bias[o];
    for (int c = 0; c < in_each; c++) {
        for (int k = 0; k < taps; k++) {
            int at = t + k - padding;
            if (at >= 0 && at < length) {
                sum += x[(n * channels + group * in_each + c) * length + at] * weight[(o * in_each + c) * taps + k];
            }
        }
    }
    sum = sum > 0.0f ? sum : slope * sum;
    out[idx] = sum + bias[o];
}

__global__ void max_pool1d_kernel(const float* __restrict__ y, float* __restrict__ out, int length, int window,
                                  int total) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int pooled = length / window;
    int p = idx % pooled;
    int row = idx / pooled;
    float best = -INFINITY;
    for (int k = 0; k < window; k++) best = fmaxf(best, y[row * length + p * window + k]);
    out[idx] = best;
}

torch::Tensor conv_leaky_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor bias,
                              int64_t groups, int64_t padding, double slope, int64_t window) {
    int batch = x.size(0), channels = x.size(1), length = x.size(2), width = weight.size(0), taps = weight.size(2);
    auto y = torch::empty({batch, width, length}, x.options());
    auto out = torch::empty({batch, width, length / window}, x.options());
    int total = y.numel();
    grouped_conv1d_kernel<<<(total + 255) / 256, 256>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), conv_bias.data_ptr<float>(), bias.data_ptr<float>(),
        y.data_ptr<float>(), batch, channels, width, (int)groups, length, taps, (int)padding, (float)slope);
    total = out.numel();
    max_pool1d_kernel<<<(total + 255) / 256, 256>>>(y.data_ptr<float>(), out.data_ptr<float>(), length, (int)window,
                                                    total);
    return out;
}
"""
steps_module = load_inline(
    name="grouped_conv1d_leaky_max_two_steps",
    cpp_sources="torch::Tensor conv_leaky_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, "
    "torch::Tensor bias, int64_t groups, int64_t padding, double slope, int64_t window);",
    cuda_sources=steps_source,
    functions=["conv_leaky_pool"],
)
'''

_CUDA_POOLED_TAIL = '''
from torch.utils.cpp_extension import load_inline

tail_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// Leaky ReLU and the bias are monotone, so that they follow the maximum of four neighbours.
__global__ void pool4_leaky_bias(const float4* __restrict__ y, const float* __restrict__ bias,
                                 float* __restrict__ out, int width, int pooled, float slope) {
    const int row = blockIdx.y;
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= pooled) return;
    const float4 v = y[(long)row * pooled + p];
    const float best = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    out[(long)row * pooled + p] = (best > 0.0f ? best : best * slope) + bias[row % width];
}

torch::Tensor pool_leaky_bias(torch::Tensor y, torch::Tensor bias, double slope) {
    TORCH_CHECK(y.is_cuda() && y.is_contiguous(), "y must be a contiguous CUDA tensor");
    TORCH_CHECK(y.scalar_type() == torch::kFloat32, "y must be float32");
    TORCH_CHECK(y.size(2) % 4 == 0, "the length must be a multiple of four");
    const int n = y.size(0), width = y.size(1), pooled = y.size(2) / 4;
    TORCH_CHECK(n * width <= 65535, "too many rows");
    auto out = torch::empty({n, width, pooled}, y.options());
    dim3 grid((pooled + 127) / 128, n * width);
    pool4_leaky_bias<<<grid, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(y.data_ptr<float>()), bias.data_ptr<float>(), out.data_ptr<float>(), width,
        pooled, (float)slope);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
tail_module = load_inline(
    name="grouped_conv1d_leaky_max_tail",
    cpp_sources="torch::Tensor pool_leaky_bias(torch::Tensor y, torch::Tensor bias, double slope);",
    cuda_sources=tail_source,
    functions=["pool_leaky_bias"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="grouped_conv1d_leaky_max",
    sizes="""
        batch_size = 32
        channels = 64
        width = 128
        groups = 4
        length = 1024
    """,
    arguments=("channels", "width", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, length)]",
    reference=Body(
        summary="Grouped 1-D convolution, leaky ReLU, a bias, maximum of four neighbours.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.activation(x)
            x = x + self.bias
            return self.pool(x)
        """,
    ),
    rewrites={
        "pool_first": Body(
            summary="Neither the activation nor the bias changes which of four neighbours is largest.",
            forward="""
                x = F.max_pool1d(self.conv(x), 4)
                return F.leaky_relu(x, 0.2, inplace=True).add_(self.bias)
            """,
        ),
        "amax_of_a_view": Body(
            forward="""
                x = self.conv(x)
                x = x.view(x.shape[0], x.shape[1], -1, 4).amax(dim=-1)
                return F.leaky_relu(x, 0.2) + self.bias
            """
        ),
        "two_maxima": Body(
            summary="Maxima of strided slices in place of a pooling layer.",
            forward="""
                x = self.conv(x)
                x = torch.maximum(x[..., 0::2], x[..., 1::2])
                x = torch.maximum(x[..., 0::2], x[..., 1::2])
                return torch.maximum(x, 0.2 * x) + self.bias
            """,
        ),
        "in_place_tail": Body(
            forward="""
                x = F.leaky_relu_(self.conv(x), 0.2)
                return F.max_pool1d(x.add_(self.bias), kernel_size=4)
            """
        ),
        "as_images_of_height_one": Body(
            summary="2-D convolution and pooling over images of height one, whose kernels are more widely tuned.",
            init=_INIT
            + '    self.register_buffer("weight", self.conv.weight.detach().unsqueeze(2).contiguous())\n',
            forward="""
                y = F.conv2d(x.unsqueeze(2), self.weight, self.conv.bias, padding=(0, 4), groups=self.conv.groups)
                y = F.max_pool2d(y, (1, 4))
                return F.leaky_relu_(y, 0.2).squeeze(2).add_(self.bias)
            """,
        ),
        "group_products": Body(
            summary="Windows of each group as a matrix, all groups multiplied in one batch.",
            methods='''
                def windows_of(self, x, groups):
                    """(batch, groups, channels in group * taps, length) with the padding included."""
                    n, c, length = x.shape
                    taps = self.conv.kernel_size[0]
                    padded = F.pad(x, (taps // 2, taps // 2))
                    windows = padded.unfold(2, taps, 1)
                    windows = windows.permute(0, 1, 3, 2)
                    return windows.reshape(n, groups, (c // groups) * taps, length)
            ''',
            forward="""
                groups = self.conv.groups
                windows = self.windows_of(x, groups)
                weight = self.conv.weight.view(groups, -1, windows.shape[2])
                y = torch.matmul(weight, windows) + self.conv.bias.view(groups, -1, 1)
                y = y.view(x.shape[0], -1, x.shape[2] // 4, 4).amax(dim=3)
                return F.leaky_relu(y, 0.2).add_(self.bias)
            """,
        ),
        "dense_weights": Body(
            init=_INIT
            + """
    with torch.no_grad():
        blocks = self.conv.weight.view(groups, width // groups, channels // groups, 9)
        dense = torch.zeros(groups, width // groups, groups, channels // groups, 9)
        for group in range(groups):
            dense[group, :, group] = blocks[group]
        self.register_buffer("dense", dense.view(width, channels, 9))
""",
            forward="""
                y = F.max_pool1d(F.conv1d(x, self.dense, self.conv.bias, padding=4), 4)
                return F.leaky_relu(y, 0.2).add_(self.bias)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.conv(x).contiguous()
                n, c, length = y.shape
                out = torch.empty((n, c, length // 4), device=y.device, dtype=y.dtype)
                total = out.numel()
                pool_kernel[(triton.cdiv(total, 512),)](
                    y, self.bias, out, c, length // 4, total, 0.2, POOL=4, BLOCK=512
                )
                return out
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA,
            forward="""
                return whole_module.forward(
                    x, self.conv.weight, self.conv.bias, self.bias.view(-1), self.conv.groups
                )
            """,
        ),
        "cuda_conv_then_pool": Body(
            before=_CUDA_TWO_STEPS,
            forward="""
                conv = self.conv
                return steps_module.conv_leaky_pool(
                    x.contiguous(), conv.weight, conv.bias, self.bias.contiguous(), conv.groups, conv.padding[0],
                    self.activation.negative_slope, self.pool.kernel_size
                )
            """,
        ),
        "cuda_pooled_tail": Body(
            summary="""The convolution from the library, the rest in one kernel with vector loads.

    The pooling comes first, as leaky ReLU and the bias keep the order of the values.
    """,
            before=_CUDA_POOLED_TAIL,
            init=_INIT,
            methods='''
                def _tail(self, y):
                    """Maximum of four, leaky ReLU, bias."""
                    if y.is_cuda and y.dtype == torch.float32 and y.shape[2] % 4 == 0:
                        slope = self.activation.negative_slope
                        return tail_module.pool_leaky_bias(y.contiguous(), self.bias.contiguous(), slope)
                    return self.pool(self.activation(y) + self.bias)
            ''',
            forward="return self._tail(self.conv(x))",
        ),
    },
    carries_on="pool_first",
)
