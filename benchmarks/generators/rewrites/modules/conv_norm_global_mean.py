"""A convolution, batch normalisation, a scale per channel, the mean over space and leaky ReLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MEAN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def plane_mean_kernel(y_ptr, factor_ptr, shift_ptr, out_ptr, channels, area, slope, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        total += tl.load(y_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
    mean = tl.sum(total, axis=0) / area
    channel = plane % channels
    mean = mean * tl.load(factor_ptr + channel) + tl.load(shift_ptr + channel)
    tl.store(out_ptr + plane, tl.where(mean >= 0.0, mean, mean * slope))
"""

_BORDER_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def window_sums_kernel(x_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    area = height * width
    whole = tl.zeros((BLOCK,), dtype=tl.float32)
    top = tl.zeros((BLOCK,), dtype=tl.float32)
    bottom = tl.zeros((BLOCK,), dtype=tl.float32)
    left = tl.zeros((BLOCK,), dtype=tl.float32)
    right = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
        row = pixels // width
        column = pixels % width
        whole += x
        top += tl.where(row == 0, x, 0.0)
        bottom += tl.where(row == height - 1, x, 0.0)
        left += tl.where(column == 0, x, 0.0)
        right += tl.where(column == width - 1, x, 0.0)
    s = tl.sum(whole, axis=0)
    t = tl.sum(top, axis=0)
    b = tl.sum(bottom, axis=0)
    lf = tl.sum(left, axis=0)
    r = tl.sum(right, axis=0)
    first = x_ptr + plane * area
    tl_corner = tl.load(first)
    tr_corner = tl.load(first + width - 1)
    bl_corner = tl.load(first + area - width)
    br_corner = tl.load(first + area - 1)
    out = out_ptr + plane * 9
    tl.store(out + 0, s - b - r + br_corner)
    tl.store(out + 1, s - b)
    tl.store(out + 2, s - b - lf + bl_corner)
    tl.store(out + 3, s - r)
    tl.store(out + 4, s)
    tl.store(out + 5, s - lf)
    tl.store(out + 6, s - t - r + tr_corner)
    tl.store(out + 7, s - t)
    tl.store(out + 8, s - t - lf + tl_corner)
"""

_INIT = """
    self.conv = nn.Conv2d(channels, width, 3, padding=1)
    self.bn = nn.BatchNorm2d(width)
    nn.init.uniform_(self.bn.weight, 0.5, 1.5)
    nn.init.normal_(self.bn.bias, std=0.3)
    self.bn.running_mean.normal_(0.0, 0.1)
    self.bn.running_var.uniform_(0.3, 1.0)
    self.scale = nn.Parameter(torch.randn(width, 1, 1))
"""

_FOLDED = (
    _INIT
    + """
    with torch.no_grad():
        factor = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        shift = self.bn.bias + (self.conv.bias - self.bn.running_mean) * factor
        scale = self.scale.flatten()
        self.register_buffer("weight", self.conv.weight * (factor * scale).view(-1, 1, 1, 1))
        self.register_buffer("bias", shift * scale)
        self.register_buffer("factor", factor * scale)
"""
)

_CUDA_PLANES = '''
from torch.utils.cpp_extension import load_inline

planes_source = r"""
#include <torch/extension.h>

// One block per sample and output channel: the threads walk over all pixels, convolve, and add up.
__global__ void conv_mean_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                 const float* __restrict__ bias, float* __restrict__ out, int channels, int width,
                                 int height, int breadth, float slope) {
    extern __shared__ float taps[];
    __shared__ float partial[256];
    int n = blockIdx.x / width;
    int o = blockIdx.x % width;
    for (int i = threadIdx.x; i < channels * 9; i += blockDim.x) taps[i] = weight[o * channels * 9 + i];
    __syncthreads();

    float total = 0.0f;
    for (int p = threadIdx.x; p < height * breadth; p += blockDim.x) {
        int row = p / breadth;
        int col = p % breadth;
        float sum = 0.0f;
        for (int c = 0; c < channels; c++) {
            const float* plane = x + ((long)n * channels + c) * height * breadth;
            for (int k = 0; k < 9; k++) {
                int r = row + k / 3 - 1;
                int q = col + k % 3 - 1;
                if (r >= 0 && r < height && q >= 0 && q < breadth) sum += plane[r * breadth + q] * taps[c * 9 + k];
            }
        }
        total += sum;
    }
    partial[threadIdx.x] = total;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        float y = partial[0] / (height * breadth) + bias[o];
        out[n * width + o] = y > 0.0f ? y : slope * y;
    }
}

torch::Tensor conv_mean(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double slope) {
    int n = x.size(0), channels = x.size(1), height = x.size(2), breadth = x.size(3), width = weight.size(0);
    auto out = torch::empty({n, width}, x.options());
    conv_mean_kernel<<<n * width, 256, channels * 9 * sizeof(float)>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), channels, width,
        height, breadth, (float)slope);
    return out;
}
"""
planes_module = load_inline(
    name="conv_norm_global_mean_planes",
    cpp_sources="torch::Tensor conv_mean(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double slope);",
    cuda_sources=planes_source,
    functions=["conv_mean"],
)
'''

_CUDA_POOL = '''
from torch.utils.cpp_extension import load_inline

pool_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}

// Mean of a plane, then the affine map that stands for norm and scale, then leaky ReLU.
template <int THREADS>
__global__ void plane_mean_affine_leaky(const float* __restrict__ y, const float* __restrict__ factor,
                                        const float* __restrict__ offset, float* __restrict__ out, int channels,
                                        int quads, float slope) {
    __shared__ float warps[THREADS / 32];
    const int plane = blockIdx.x;
    const float4* line = reinterpret_cast<const float4*>(y) + (long)plane * quads;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < quads; i += THREADS) {
        const float4 v = line[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) {
            const int c = plane % channels;
            const float v = fmaf(sum / (4.0f * quads), factor[c], offset[c]);
            out[plane] = v > 0.0f ? v : slope * v;
        }
    }
}

torch::Tensor mean_affine_leaky(torch::Tensor y, torch::Tensor factor, torch::Tensor offset, double slope) {
    TORCH_CHECK(y.is_cuda() && y.is_contiguous(), "y must be a contiguous CUDA tensor");
    const int n = y.size(0), channels = y.size(1), area = y.size(2) * y.size(3);
    TORCH_CHECK(area % 4 == 0, "planes must be a multiple of four pixels");
    auto out = torch::empty({n, channels}, y.options());
    plane_mean_affine_leaky<256><<<n * channels, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<float>(), factor.data_ptr<float>(), offset.data_ptr<float>(), out.data_ptr<float>(), channels,
        area / 4, (float)slope);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
pool_module = load_inline(
    name="conv_norm_global_mean_pool",
    cpp_sources="torch::Tensor mean_affine_leaky(torch::Tensor y, torch::Tensor factor, torch::Tensor offset, "
    "double slope);",
    cuda_sources=pool_source,
    functions=["mean_affine_leaky"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="conv_norm_global_mean",
    sizes="""
        batch_size = 64
        channels = 32
        width = 64
        height = width_of_image = 64
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.rand(batch_size, channels, height, width_of_image)]",
    reference=Body(
        summary="Convolution, batch normalisation, a scale, global average pooling, leaky ReLU.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.bn(x)
            x = x * self.scale
            x = x.mean(dim=(2, 3))
            return F.leaky_relu(x, 0.01)
        """,
    ),
    rewrites={
        "folded_into_weights": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                return F.leaky_relu(y.mean(dim=(2, 3)), 0.01, inplace=True)
            """,
        ),
        "norm_after_mean": Body(
            summary="Everything between convolution and activation is affine: do it after the mean.",
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.conv.weight, padding=1)
                y = F.adaptive_avg_pool2d(y, 1).flatten(1)
                return F.leaky_relu(torch.addcmul(self.bias, y, self.factor), 0.01)
            """,
        ),
        "window_sums": Body(
            summary="The mean of a convolution is a product of its weights with nine sums over the input.",
            init=_FOLDED + '    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())\n',
            methods='''
                def sums_under_taps(self, x):
                    """(batch, channels, 3, 3): the sum of the pixels that each tap meets, from the padded image."""
                    total = x.sum(dim=(2, 3))
                    top, bottom = x[:, :, 0].sum(dim=-1), x[:, :, -1].sum(dim=-1)
                    left, right = x[:, :, :, 0].sum(dim=-1), x[:, :, :, -1].sum(dim=-1)
                    rows = (bottom, None, top)
                    columns = (right, None, left)
                    corners = {(0, 0): (-1, -1), (0, 2): (-1, 0), (2, 0): (0, -1), (2, 2): (0, 0)}
                    found = []
                    for i in range(3):
                        for j in range(3):
                            here = total
                            if rows[i] is not None:
                                here = here - rows[i]
                            if columns[j] is not None:
                                here = here - columns[j]
                            if (i, j) in corners:
                                row, column = corners[i, j]
                                here = here + x[:, :, row, column]
                            found.append(here)
                    return torch.stack(found, dim=-1)
            ''',
            forward="""
                sums = self.sums_under_taps(x).flatten(1) / (x.shape[2] * x.shape[3])
                return F.leaky_relu(torch.addmm(self.bias, sums, self.flat), 0.01)
            """,
        ),
        "row_and_column_masks": Body(
            summary="Sums under the nine taps as two small products with constant matrices.",
            init=_FOLDED
            + """
    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())
    self._masks = {}
""",
            methods='''
                def masks_of(self, size, device):
                    """(3, size): which positions each of three taps meets when it moves over a padded line."""
                    key = (size, device)
                    if key not in self._masks:
                        masks = torch.ones(3, size, device=device)
                        masks[0, -1] = 0.0
                        masks[2, 0] = 0.0
                        self._masks[key] = masks / size
                    return self._masks[key]
            ''',
            forward="""
                rows = self.masks_of(x.shape[2], x.device)
                columns = self.masks_of(x.shape[3], x.device)
                sums = torch.matmul(rows, torch.matmul(x, columns.t()))
                return F.leaky_relu_(torch.addmm(self.bias, sums.flatten(1), self.flat), 0.01)
            """,
        ),
        "shifted_pooling": Body(
            summary="Average pooling with a window as large as the image, moved by one pixel each way.",
            init=_FOLDED,
            forward="""
                n, c, h, w = x.shape
                means = F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), (h, w), stride=1)
                y = F.conv2d(means, self.weight, self.bias)
                return F.leaky_relu(y.flatten(1), 0.01)
            """,
        ),
        "two_step_mean": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                y = y.mean(dim=3).mean(dim=2)
                return torch.maximum(y, 0.01 * y)
            """,
        ),
        "triton_mean": Body(
            before=_MEAN_KERNEL,
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.conv.weight, padding=1).contiguous()
                n, c, h, w = y.shape
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                plane_mean_kernel[(n * c,)](y, self.factor, self.bias, out, c, h * w, 0.01, BLOCK=1024)
                return out
            """,
        ),
        "triton_window_sums": Body(
            before=_BORDER_KERNEL,
            init=_FOLDED + '    self.register_buffer("flat", self.weight.view(width, -1).t().contiguous())\n',
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                sums = torch.empty((n, c * 9), device=x.device, dtype=x.dtype)
                window_sums_kernel[(n * c,)](x, sums, h, w, BLOCK=1024)
                y = torch.addmm(self.bias, sums, self.flat, alpha=1.0 / (h * w))
                return F.leaky_relu(y, 0.01, inplace=True)
            """,
        ),
        "cuda_block_per_plane": Body(
            before=_CUDA_PLANES,
            init=_FOLDED,
            forward="return planes_module.conv_mean(x.contiguous(), self.weight.contiguous(), self.bias, 0.01)",
        ),
        "cuda_mean_affine": Body(
            summary="The convolution without bias from the library; mean, norm, scale and leaky ReLU in one kernel.",
            before=_CUDA_POOL,
            init=_FOLDED,
            methods='''
                def _head(self, y):
                    """Everything after the convolution."""
                    if y.is_cuda and y.dtype == torch.float32 and y.shape[2] * y.shape[3] % 4 == 0:
                        return pool_module.mean_affine_leaky(y.contiguous(), self.factor, self.bias, 0.01)
                    return F.leaky_relu(y.mean(dim=(2, 3)) * self.factor + self.bias, 0.01)
            ''',
            forward="return self._head(F.conv2d(x, self.conv.weight, None, padding=1))",
        ),
    },
    images=True,
    carries_on="folded_into_weights",
)
