"""A strided convolution of small images, softplus, the minimum over channels and average pooling."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def min_softplus_pool_kernel(
    y_ptr, out_ptr, channels, height, width, total, scale, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    columns = width // 2
    per_sample = (height // 2) * columns
    sample = at // per_sample
    row = (at % per_sample) // columns
    column = at % columns
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for corner in tl.static_range(4):
        pixel = (2 * row + corner // 2) * width + 2 * column + corner % 2
        lowest = tl.full((BLOCK,), 1.0e30, dtype=tl.float32)
        for channel in range(0, channels):
            y = tl.load(y_ptr + (sample * channels + channel) * height * width + pixel, mask=keep, other=0.0)
            lowest = tl.minimum(lowest, y)
        mean += tl.where(lowest > 20.0, lowest, tl.log(1.0 + tl.exp(tl.minimum(lowest, 20.0))))
    tl.store(out_ptr + at, mean * 0.25 * scale, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

// A thread per output: four positions of the convolution, all channels of each.
__global__ void whole(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      float* __restrict__ out, int n, int in_channels, int out_channels, int height, int width,
                      float scale) {
    extern __shared__ float held[];
    int weights = out_channels * in_channels * 9;
    for (int i = threadIdx.x; i < weights + out_channels; i += blockDim.x)
        held[i] = i < weights ? weight[i] : bias[i - weights];
    __syncthreads();
    int rows = height / 4, columns = width / 4;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * rows * columns) return;
    int column = i % columns;
    int row = (i / columns) % rows;
    int sample = i / (columns * rows);
    float mean = 0.0f;
    for (int corner = 0; corner < 4; ++corner) {
        int top = (2 * row + corner / 2) * 2 - 1;
        int left = (2 * column + corner % 2) * 2 - 1;
        float lowest = 1e30f;
        for (int o = 0; o < out_channels; ++o) {
            float total = held[weights + o];
            for (int c = 0; c < in_channels; ++c)
                for (int r = 0; r < 3; ++r)
                    for (int s = 0; s < 3; ++s) {
                        int gy = top + r, gx = left + s;
                        if (gy >= 0 && gy < height && gx >= 0 && gx < width)
                            total += held[(o * in_channels + c) * 9 + r * 3 + s]
                                * x[((sample * in_channels + c) * height + gy) * width + gx];
                    }
            lowest = fminf(lowest, total);
        }
        mean += lowest > 20.0f ? lowest : log1pf(expf(lowest));
    }
    out[i] = 0.25f * mean * scale;
}

torch::Tensor conv_min_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale) {
    x = x.contiguous();
    int n = x.size(0), height = x.size(2), width = x.size(3);
    auto out = torch::empty({n, 1, height / 4, width / 4}, x.options());
    int total = out.numel();
    size_t bytes = (weight.numel() + bias.numel()) * sizeof(float);
    whole<<<(total + 63) / 64, 64, bytes, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), n,
        (int)x.size(1), (int)weight.size(0), height, width, (float)scale);
    return out;
}
"""
conv_min_module = load_inline(
    name="tiny_conv_softplus_min_pool_whole",
    cpp_sources="torch::Tensor conv_min_pool(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale);",
    cuda_sources=source,
    functions=["conv_min_pool"],
)
'''

_INIT = """
    self.conv = nn.Conv2d(channels, width, 3, stride=2, padding=1)
    self.pool = nn.AvgPool2d(2)
    self.scale = scale
"""

_CUDA_CHANNEL_THREADS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// A block per pooled row: threadIdx.x is the pooled column, threadIdx.y the channel.
__global__ void conv_softplus_min_pool(const float* __restrict__ x, const float* __restrict__ weight,
                                       const float* __restrict__ bias, float* __restrict__ out, int in_channels,
                                       int height, int width, float scale) {
    extern __shared__ float values[];
    const int column = threadIdx.x, channel = threadIdx.y;
    const int columns = blockDim.x, channels = blockDim.y;
    const int rows = height / 4;
    const int sample = blockIdx.x / rows, row = blockIdx.x % rows;
    const float* w = weight + channel * in_channels * 9;
    #pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
        const int top = 2 * (2 * row + corner / 2) - 1;
        const int left = 2 * (2 * column + corner % 2) - 1;
        float sum = bias[channel];
        for (int c = 0; c < in_channels; ++c) {
            const float* plane = x + (sample * in_channels + c) * height * width;
            #pragma unroll
            for (int k = 0; k < 9; ++k) {
                const int gy = top + k / 3, gx = left + k % 3;
                if (gy >= 0 && gy < height && gx >= 0 && gx < width)
                    sum = fmaf(__ldg(w + c * 9 + k), plane[gy * width + gx], sum);
            }
        }
        const float soft = sum > 20.0f ? sum : log1pf(expf(sum));
        values[(corner * channels + channel) * columns + column] = soft * scale;
    }
    __syncthreads();
    if (channel != 0) return;
    float mean = 0.0f;
    for (int corner = 0; corner < 4; ++corner) {
        float lowest = values[corner * channels * columns + column];
        for (int o = 1; o < channels; ++o)
            lowest = fminf(lowest, values[(corner * channels + o) * columns + column]);
        mean += lowest;
    }
    out[blockIdx.x * columns + column] = 0.25f * mean;
}

torch::Tensor tiny_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale) {
    const int n = x.size(0), in_channels = x.size(1), height = x.size(2), width = x.size(3);
    const int channels = weight.size(0);
    TORCH_CHECK(height % 4 == 0 && width % 4 == 0, "sides must be multiples of four");
    TORCH_CHECK(channels * (width / 4) <= 1024, "too many threads");
    auto out = torch::empty({n, 1, height / 4, width / 4}, x.options());
    dim3 block(width / 4, channels);
    size_t shared = 4 * channels * (width / 4) * sizeof(float);
    conv_softplus_min_pool<<<n * (height / 4), block, shared, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), in_channels,
        height, width, (float)scale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
tiny_module = load_inline(
    name="tiny_conv_softplus_min_pool_channel_threads",
    cpp_sources="torch::Tensor tiny_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double scale);",
    cuda_sources=source,
    functions=["tiny_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_MINIMUM = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

__global__ void softplus_min_kernel(const float* y, float* out, int channels, int area, int total, float scale) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int sample = idx / area;
    int pixel = idx % area;
    float lowest = INFINITY;
    for (int c = 0; c < channels; c++) {
        float v = y[(sample * channels + c) * area + pixel];
        float soft = v > 20.0f ? v : log1pf(expf(v));
        lowest = fminf(lowest, soft * scale);
    }
    out[idx] = lowest;
}

torch::Tensor softplus_min(torch::Tensor y, double scale) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.is_contiguous(), "y must be contiguous");
    TORCH_CHECK(y.dim() == 4, "y must have four dimensions");
    int n = y.size(0), channels = y.size(1), h = y.size(2), w = y.size(3);
    auto out = torch::empty({n, 1, h, w}, y.options());
    int total = n * h * w;
    softplus_min_kernel<<<(total + 31) / 32, 32>>>(y.data_ptr<float>(), out.data_ptr<float>(), channels, h * w,
                                                   total, (float)scale);
    return out;
}
"""

softplus_min_ext = load_inline(
    name="tiny_conv_softplus_min_pool_minimum",
    cpp_sources="torch::Tensor softplus_min(torch::Tensor y, double scale);",
    cuda_sources=cuda_source,
    functions=["softplus_min"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="tiny_conv_softplus_min_pool",
    sizes="""
        batch_size = 4
        channels = 3
        width = 16
        side = 32
        scale = 3.0
    """,
    arguments=("channels", "width", "scale"),
    takes="x",
    inputs="[torch.rand(batch_size, channels, side, side)]",
    reference=Body(
        summary="Strided convolution, softplus, a scale, minimum over channels, average pooling.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = F.softplus(x)
            x = x * self.scale
            x = torch.min(x, dim=1, keepdim=True)[0]
            return self.pool(x)
        """,
    ),
    rewrites={
        "minimum_first": Body(
            summary="Softplus and a positive scale grow, so the minimum may be taken before them.",
            forward="""
                x = torch.amin(self.conv(x), dim=1, keepdim=True)
                return F.avg_pool2d(F.softplus(x), 2).mul_(self.scale)
            """,
        ),
        "softplus_beta": Body(
            summary="The scale goes into softplus: s softplus(x) is softplus with beta 1 / s of s x.",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weight", self.conv.weight * scale)
        self.register_buffer("bias", self.conv.bias * scale)
""",
            forward="""
                x = F.conv2d(x, self.weight, self.bias, stride=2, padding=1).amin(dim=1, keepdim=True)
                return F.avg_pool2d(F.softplus(x, beta=1.0 / self.scale), 2)
            """,
        ),
        "minimum_by_pooling": Body(
            summary="The minimum over channels as a maximum pooling of the negative.",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weight", -self.conv.weight)
        self.register_buffer("bias", -self.conv.bias)
""",
            forward="""
                y = F.conv2d(x, self.weight, self.bias, stride=2, padding=1)
                n, c, h, w = y.shape
                y = F.max_pool2d(y.view(n, 1, c, h * w), (c, 1)).view(n, 1, h, w)
                return F.avg_pool2d(F.softplus(-y), 2) * self.scale
            """,
        ),
        "unfolded_product": Body(
            forward="""
                n, c, h, w = x.shape
                columns = F.unfold(x, 3, stride=2, padding=1)
                y = torch.matmul(self.conv.weight.view(-1, 9 * c), columns)
                y = (y + self.conv.bias[:, None]).amin(dim=1)
                y = F.softplus(y).view(n, h // 4, 2, w // 4, 2)
                return y.mean(dim=(2, 4)).unsqueeze(1) * self.scale
            """
        ),
        "functional_calls": Body(
            forward="""
                x = F.conv2d(x, self.conv.weight, self.conv.bias, stride=2, padding=1)
                x = torch.log1p(torch.exp(x)) * self.scale
                return F.avg_pool2d(x.amin(1, keepdim=True), 2)
            """
        ),
        "checked_and_buffered": Body(
            summary="Reuses its intermediate tensors as long as inputs keep their shape.",
            init=_INIT + "    self._shape = None\n    self._lowest = None\n",
            methods='''
                def _prepare(self, y):
                    """Allocates the buffer of minima anew whenever shape, device or type change."""
                    wanted = (y.shape[0], 1, y.shape[2], y.shape[3])
                    stale = (
                        self._lowest is None
                        or self._shape != wanted
                        or self._lowest.device != y.device
                        or self._lowest.dtype != y.dtype
                    )
                    if stale:
                        self._lowest = torch.empty(wanted, device=y.device, dtype=y.dtype)
                        self._shape = wanted
                    return self._lowest

                def _validate(self, x):
                    if x.dim() != 4:
                        raise ValueError(f"expected four dimensions, got {x.dim()}")
                    if x.shape[1] != self.conv.in_channels:
                        raise ValueError(f"expected {self.conv.in_channels} channels, got {x.shape[1]}")
                    return x if x.is_contiguous() else x.contiguous()
            ''',
            forward="""
                y = self.conv(self._validate(x))
                if self.scale < 0:
                    return self.pool((F.softplus(y) * self.scale).amin(dim=1, keepdim=True))
                lowest = torch.amin(y, dim=1, keepdim=True, out=self._prepare(y))
                return F.avg_pool2d(F.softplus(lowest), 2).mul_(self.scale)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.conv(x).contiguous()
                n, c, h, w = y.shape
                out = torch.empty((n, 1, h // 2, w // 2), device=y.device, dtype=y.dtype)
                total = out.numel()
                min_softplus_pool_kernel[(triton.cdiv(total, 64),)](
                    y, out, c, h, w, total, self.scale, BLOCK=64, num_warps=2
                )
                return out
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA,
            forward="return conv_min_module.conv_min_pool(x, self.conv.weight, self.conv.bias, self.scale)",
        ),
        "cuda_channel_threads": Body(
            before=_CUDA_CHANNEL_THREADS,
            forward="""
                return tiny_module.tiny_forward(x.contiguous(), self.conv.weight, self.conv.bias, self.scale)
            """,
        ),
        "cuda_minimum": Body(
            summary="Convolution and pooling by the library, softplus, scale and minimum by a kernel.",
            before=_CUDA_MINIMUM,
            methods='''
                def _lowest(self, y):
                    """Minimum over channels of the scaled softplus, (batch, 1, height, width)."""
                    if y.is_cuda and y.dtype == torch.float32:
                        return softplus_min_ext.softplus_min(y.contiguous(), self.scale)
                    return torch.min(F.softplus(y) * self.scale, dim=1, keepdim=True)[0]
            ''',
            forward="return self.pool(self._lowest(self.conv(x)))",
        ),
    },
    images=True,
    carries_on="minimum_first",
)
