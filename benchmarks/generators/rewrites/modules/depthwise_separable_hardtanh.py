"""A depthwise and a pointwise convolution, each with batch normalisation and a hard tanh."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DEPTHWISE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, height, width, low, high, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    channel = plane % channels
    pixels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    keep = pixels < area
    row = pixels // width
    column = pixels % width
    total = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias_ptr + channel)
    for tap in tl.static_range(9):
        y = row + tap // 3 - 1
        x = column + tap % 3 - 1
        inside = keep & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        value = tl.load(x_ptr + plane * area + y * width + x, mask=inside, other=0.0)
        total += value * tl.load(weight_ptr + channel * 9 + tap)
    total = tl.minimum(tl.maximum(total, low), high)
    tl.store(out_ptr + plane * area + pixels, total, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

#define TILE_X 32
#define TILE_Y 8

__global__ void depthwise3x3(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, float* __restrict__ out,
                             int channels, int height, int width, float low, float high) {
    __shared__ float tile[TILE_Y + 2][TILE_X + 2];
    int plane = blockIdx.z;
    int channel = plane % channels;
    const float* source = x + (long)plane * height * width;
    int left = blockIdx.x * TILE_X - 1;
    int top = blockIdx.y * TILE_Y - 1;
    int thread = threadIdx.y * TILE_X + threadIdx.x;
    for (int i = thread; i < (TILE_Y + 2) * (TILE_X + 2); i += TILE_X * TILE_Y) {
        int r = i / (TILE_X + 2);
        int c = i % (TILE_X + 2);
        int gy = top + r;
        int gx = left + c;
        bool inside = gy >= 0 && gy < height && gx >= 0 && gx < width;
        tile[r][c] = inside ? source[gy * width + gx] : 0.0f;
    }
    __syncthreads();
    int column = blockIdx.x * TILE_X + threadIdx.x;
    int row = blockIdx.y * TILE_Y + threadIdx.y;
    if (column >= width || row >= height) return;
    float total = bias[channel];
#pragma unroll
    for (int r = 0; r < 3; ++r)
#pragma unroll
        for (int c = 0; c < 3; ++c)
            total += tile[threadIdx.y + r][threadIdx.x + c] * weight[channel * 9 + r * 3 + c];
    out[((long)plane * height + row) * width + column] = fminf(fmaxf(total, low), high);
}

torch::Tensor depthwise(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double low, double high) {
    auto out = torch::empty_like(x);
    int height = x.size(2), width = x.size(3);
    dim3 block(TILE_X, TILE_Y);
    dim3 grid((width + TILE_X - 1) / TILE_X, (height + TILE_Y - 1) / TILE_Y, x.size(0) * x.size(1));
    depthwise3x3<<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(),
        (int)x.size(1), height, width, (float)low, (float)high);
    return out;
}
"""
depthwise_module = load_inline(
    name="depthwise_separable_hardtanh_depthwise",
    cpp_sources=(
        "torch::Tensor depthwise(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double low, double high);"
    ),
    cuda_sources=source,
    functions=["depthwise"],
)
'''

_INIT = """
    self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    self.bn1 = nn.BatchNorm2d(channels)
    self.pointwise = nn.Conv2d(channels, width, 1, bias=False)
    self.bn2 = nn.BatchNorm2d(width)
    for bn in (self.bn1, self.bn2):
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.uniform_(bn.bias, -0.2, 0.2)
        bn.running_mean.normal_(0.0, 0.1)
        bn.running_var.uniform_(0.3, 1.0)
"""

_FOLDED = (
    _INIT
    + """
    with torch.no_grad():
        scale = self.bn1.weight / torch.sqrt(self.bn1.running_var + self.bn1.eps)
        self.register_buffer("weight1", self.depthwise.weight * scale.view(-1, 1, 1, 1))
        self.register_buffer("bias1", self.bn1.bias - self.bn1.running_mean * scale)
        scale = self.bn2.weight / torch.sqrt(self.bn2.running_var + self.bn2.eps)
        self.register_buffer("weight2", self.pointwise.weight * scale.view(-1, 1, 1, 1))
        self.register_buffer("bias2", self.bn2.bias - self.bn2.running_mean * scale)
"""
)

_CUDA_FUSED = '''
from torch.utils.cpp_extension import load_inline

fused_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// Both convolutions in one kernel. A thread has one pixel: its depthwise results stay in registers, and the pointwise
// weights are broadcast from shared memory.
template <int CHANNELS>
__global__ void separable_kernel(const float* __restrict__ x, const float* __restrict__ w1,
                                 const float* __restrict__ b1, const float* __restrict__ w2,
                                 const float* __restrict__ b2, float* __restrict__ out, int width, int rows,
                                 int cols) {
    __shared__ float taps[CHANNELS * 9];
    __shared__ float mix[128 * CHANNELS];
    for (int i = threadIdx.x; i < CHANNELS * 9; i += blockDim.x) taps[i] = w1[i];
    for (int i = threadIdx.x; i < width * CHANNELS; i += blockDim.x) mix[i] = w2[i];
    __syncthreads();
    const int area = rows * cols;
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= area) return;
    const int row = p / cols;
    const int col = p % cols;
    const float* image = x + (long)blockIdx.y * CHANNELS * area;
    float mid[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        float sum = b1[c];
#pragma unroll
        for (int k = 0; k < 9; ++k) {
            const int r = row + k / 3 - 1;
            const int q = col + k % 3 - 1;
            const bool inside = r >= 0 && r < rows && q >= 0 && q < cols;
            if (inside) sum = fmaf(image[c * area + r * cols + q], taps[c * 9 + k], sum);
        }
        mid[c] = fminf(fmaxf(sum, 0.0f), 6.0f);
    }
    float* result = out + (long)blockIdx.y * width * area + p;
    for (int o = 0; o < width; ++o) {
        float sum = b2[o];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) sum = fmaf(mid[c], mix[o * CHANNELS + c], sum);
        result[(long)o * area] = fminf(fmaxf(sum, -2.0f), 2.0f);
    }
}

torch::Tensor separable_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2,
                                torch::Tensor b2) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
    TORCH_CHECK(x.size(1) == 32, "32 input channels expected");
    const int n = x.size(0), rows = x.size(2), cols = x.size(3), width = w2.size(0);
    TORCH_CHECK(width <= 128, "too many output channels");
    auto out = torch::empty({n, width, rows, cols}, x.options());
    dim3 grid((rows * cols + 127) / 128, n);
    separable_kernel<32><<<grid, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(), b2.data_ptr<float>(),
        out.data_ptr<float>(), width, rows, cols);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
separable_module = load_inline(
    name="depthwise_separable_hardtanh_fused",
    cpp_sources="torch::Tensor separable_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, "
    "torch::Tensor w2, torch::Tensor b2);",
    cuda_sources=fused_source,
    functions=["separable_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_NORMS = '''
from torch.utils.cpp_extension import load_inline

norms_source = r"""
#include <torch/extension.h>

__global__ void norm_hardtanh_kernel(float* x, const float* __restrict__ mean, const float* __restrict__ var,
                                     const float* __restrict__ weight, const float* __restrict__ bias, float eps,
                                     float low, float high, int channels, int area) {
    // grid: (pieces of a plane, planes)
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= area) return;
    int c = blockIdx.y % channels;
    long i = (long)blockIdx.y * area + p;
    float y = (x[i] - mean[c]) / sqrtf(var[c] + eps) * weight[c] + bias[c];
    x[i] = fminf(fmaxf(y, low), high);
}

torch::Tensor norm_hardtanh_(torch::Tensor x, torch::Tensor mean, torch::Tensor var, torch::Tensor weight,
                             torch::Tensor bias, double eps, double low, double high) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
    int planes = x.size(0) * x.size(1), area = x.size(2) * x.size(3);
    TORCH_CHECK(planes <= 65535, "too many planes");
    dim3 grid((area + 255) / 256, planes);
    norm_hardtanh_kernel<<<grid, 256>>>(x.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(),
                                        weight.data_ptr<float>(), bias.data_ptr<float>(), (float)eps, (float)low,
                                        (float)high, (int)x.size(1), area);
    return x;
}
"""
norms_module = load_inline(
    name="depthwise_separable_hardtanh_norms",
    cpp_sources="torch::Tensor norm_hardtanh_(torch::Tensor x, torch::Tensor mean, torch::Tensor var, "
    "torch::Tensor weight, torch::Tensor bias, double eps, double low, double high);",
    cuda_sources=norms_source,
    functions=["norm_hardtanh_"],
)
'''

MODULE = Rewritten(
    name="depthwise_separable_hardtanh",
    sizes="""
        batch_size = 48
        channels = 32
        width = 64
        side = 112
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="Depthwise separable convolution with batch normalisation and hard tanh after both parts.",
        init=_INIT,
        forward="""
            x = self.depthwise(x)
            x = self.bn1(x)
            x = F.hardtanh(x, 0.0, 6.0)
            x = self.pointwise(x)
            x = self.bn2(x)
            return F.hardtanh(x, -2.0, 2.0)
        """,
    ),
    rewrites={
        "both_folded": Body(
            init=_FOLDED,
            forward="""
                x = F.conv2d(x, self.weight1, self.bias1, padding=1, groups=x.shape[1]).clamp_(0.0, 6.0)
                return F.conv2d(x, self.weight2, self.bias2).clamp_(-2.0, 2.0)
            """,
        ),
        "in_place_only": Body(
            forward="""
                x = F.hardtanh(self.bn1(self.depthwise(x)), 0.0, 6.0, inplace=True)
                return F.hardtanh(self.bn2(self.pointwise(x)), -2.0, 2.0, inplace=True)
            """,
        ),
        "pointwise_baddbmm": Body(
            init=_FOLDED,
            forward="""
                n, c, h, w = x.shape
                x = F.conv2d(x, self.weight1, self.bias1, padding=1, groups=c)
                x = F.relu6(x, inplace=True).view(n, c, h * w)
                weight = self.weight2.view(1, -1, c).expand(n, -1, -1)
                y = torch.baddbmm(self.bias2.view(1, -1, 1), weight, x)
                return y.clamp_(-2.0, 2.0).view(n, -1, h, w)
            """,
        ),
        "dense_weights": Body(
            summary="The depthwise convolution as an ordinary one whose weights are zero off the diagonal.",
            init=_FOLDED
            + """
    dense = torch.zeros(channels, channels, 3, 3)
    dense[torch.arange(channels), torch.arange(channels)] = self.weight1[:, 0]
    self.register_buffer("dense1", dense)
""",
            forward="""
                x = F.conv2d(x, self.dense1, self.bias1, padding=1)
                x = torch.clamp(x, 0.0, 6.0)
                x = F.conv2d(x, self.weight2, self.bias2)
                return torch.clamp(x, -2.0, 2.0)
            """,
        ),
        "shifted_multiply_adds": Body(
            init=_FOLDED,
            methods='''
                def filter_planes(self, x):
                    """Nine multiply-adds over shifted views, without a convolution library."""
                    h, w = x.shape[-2:]
                    padded = F.pad(x, (1, 1, 1, 1))
                    taps = self.weight1.view(-1, 9)
                    out = self.bias1.view(1, -1, 1, 1).expand_as(x).contiguous()
                    for tap in range(9):
                        row, column = divmod(tap, 3)
                        view = padded[:, :, row : row + h, column : column + w]
                        out.addcmul_(view, taps[:, tap].view(1, -1, 1, 1))
                    return out.clamp_(0.0, 6.0)

                def mix_channels(self, x):
                    return F.conv2d(x, self.weight2, self.bias2).clamp_(-2.0, 2.0)
            ''',
            forward="return self.mix_channels(self.filter_planes(x))",
        ),
        "samples_in_chunks": Body(
            summary="A few samples at a time, so that what lies between the convolutions stays in cache.",
            init=_FOLDED,
            forward="""
                out = x.new_empty(x.shape[0], self.weight2.shape[0], x.shape[2], x.shape[3])
                for start in range(0, x.shape[0], 4):
                    part = x[start : start + 4]
                    part = F.conv2d(part, self.weight1, self.bias1, padding=1, groups=part.shape[1])
                    part = F.conv2d(part.clamp_(0.0, 6.0), self.weight2, self.bias2)
                    torch.clamp(part, -2.0, 2.0, out=out[start : start + 4])
                return out
            """,
        ),
        "triton_depthwise": Body(
            before=_DEPTHWISE_KERNEL,
            init=_FOLDED,
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                y = torch.empty_like(x)
                grid = (n * c, triton.cdiv(h * w, 1024))
                depthwise_kernel[grid](x, self.weight1, self.bias1, y, c, h, w, 0.0, 6.0, BLOCK=1024, num_warps=4)
                return F.conv2d(y, self.weight2, self.bias2).clamp_(-2.0, 2.0)
            """,
        ),
        "cuda_depthwise_half_pointwise": Body(
            before=_CUDA,
            init=_FOLDED,
            forward="""
                n, c, h, w = x.shape
                y = depthwise_module.depthwise(x.contiguous(), self.weight1, self.bias1, 0.0, 6.0)
                y = torch.matmul(self.weight2.view(-1, c).half(), y.view(n, c, h * w).half())
                y = y.float().add_(self.bias2.view(1, -1, 1)).clamp_(-2.0, 2.0)
                return y.view(n, -1, h, w)
            """,
        ),
        "cuda_one_kernel": Body(
            before=_CUDA_FUSED,
            init=_FOLDED,
            forward="""
                return separable_module.separable_forward(
                    x.contiguous(),
                    self.weight1.contiguous(),
                    self.bias1.contiguous(),
                    self.weight2.contiguous(),
                    self.bias2.contiguous(),
                )
            """,
        ),
        "cuda_norms_in_place": Body(
            summary="Convolutions by cuDNN; after each, norm and hard tanh in place by a kernel.",
            before=_CUDA_NORMS,
            init=_INIT,
            methods='''
                def _norm_clip(self, y, bn, low, high):
                    """Hard tanh of the normalised y, which is overwritten where the kernel applies."""
                    if bn.training or not y.is_cuda or y.dtype != torch.float32:
                        return F.hardtanh(bn(y), low, high)
                    return norms_module.norm_hardtanh_(
                        y.contiguous(), bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.eps, low, high
                    )
            ''',
            forward="""
                h = self._norm_clip(self.depthwise(x), self.bn1, 0.0, 6.0)
                return self._norm_clip(self.pointwise(h), self.bn2, -2.0, 2.0)
            """,
        ),
    },
    images=True,
    carries_on="both_folded",
)
