"""A 3x3 convolution, batch normalisation, swish and the input added."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def bn_swish_add_kernel(y_ptr, x_ptr, scale_ptr, shift_ptr, out_ptr, channels, area, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    channel = plane % channels
    pixels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = pixels < area
    at = plane * area + pixels
    scale = tl.load(scale_ptr + channel)
    shift = tl.load(shift_ptr + channel)
    y = tl.load(y_ptr + at, mask=keep, other=0.0) * scale + shift
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    tl.store(out_ptr + at, y * tl.sigmoid(y) + x, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__device__ __forceinline__ float swish(float v) { return v / (1.0f + __expf(-v)); }

__global__ void swish_add(float4* __restrict__ y, const float4* __restrict__ x, const float* __restrict__ bias,
                          int quads, int channels, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    float b = bias[(i / quads) % channels];
    float4 v = y[i];
    float4 r = x[i];
    v.x = swish(v.x + b) + r.x;
    v.y = swish(v.y + b) + r.y;
    v.z = swish(v.z + b) + r.z;
    v.w = swish(v.w + b) + r.w;
    y[i] = v;
}

torch::Tensor swish_add_(torch::Tensor y, torch::Tensor x, torch::Tensor bias) {
    TORCH_CHECK(y.is_contiguous() && x.is_contiguous(), "dense tensors expected");
    int area = y.size(2) * y.size(3);
    TORCH_CHECK(area % 4 == 0, "area must be a multiple of four");
    long total = y.numel() / 4;
    swish_add<<<(int)((total + 255) / 256), 256>>>(
        reinterpret_cast<float4*>(y.data_ptr<float>()), reinterpret_cast<const float4*>(x.data_ptr<float>()),
        bias.data_ptr<float>(), area / 4, (int)y.size(1), total);
    return y;
}
"""
swish_module = load_inline(
    name="conv_bn_swish_residual_tail",
    cpp_sources="torch::Tensor swish_add_(torch::Tensor y, torch::Tensor x, torch::Tensor bias);",
    cuda_sources=source,
    functions=["swish_add_"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def swish_residual(y: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    y = y + bias
    return x + y * torch.sigmoid(y)
""")
'''

_INIT = """
    self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    self.bn = nn.BatchNorm2d(channels)
    nn.init.uniform_(self.bn.weight, 0.5, 1.5)
    nn.init.normal_(self.bn.bias, std=0.1)
    self.bn.running_mean.normal_(0.0, 0.1)
    self.bn.running_var.uniform_(0.5, 1.5)
"""

_FOLDED = (
    _INIT
    + """
    with torch.no_grad():
        scale = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        self.register_buffer("weight", self.conv.weight * scale.view(-1, 1, 1, 1))
        self.register_buffer("bias", self.bn.bias - self.bn.running_mean * scale)
"""
)

_AFFINE = (
    _INIT
    + """
    with torch.no_grad():
        scale = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        self.register_buffer("bn_scale", scale.view(-1, 1, 1))
        self.register_buffer("bn_shift", (self.bn.bias - self.bn.running_mean * scale).view(-1, 1, 1))
"""
)

_CUDA_BLOCK = '''
from torch.utils.cpp_extension import load_inline

block_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define TILE 16
#define IN_CHUNK 8
#define OUT_BLOCK 16

// 16 x 16 pixels and 16 output channels per block; a thread keeps the 16 sums of its pixel in registers.
__global__ void conv3x3_bn_swish_add(const float* __restrict__ x, const float* __restrict__ weight,
                                     const float* __restrict__ scale, const float* __restrict__ shift,
                                     float* __restrict__ out, int channels, int height, int width) {
    __shared__ float tile[IN_CHUNK][TILE + 2][TILE + 2];
    __shared__ float taps[OUT_BLOCK][IN_CHUNK * 9];
    const int slices = channels / OUT_BLOCK;
    const int sample = blockIdx.z / slices;
    const int first = (blockIdx.z % slices) * OUT_BLOCK;
    const int col = blockIdx.x * TILE + threadIdx.x;
    const int row = blockIdx.y * TILE + threadIdx.y;
    const int tid = threadIdx.y * TILE + threadIdx.x;
    const int side = TILE + 2;
    const float* image = x + (long)sample * channels * height * width;
    float acc[OUT_BLOCK];
#pragma unroll
    for (int o = 0; o < OUT_BLOCK; ++o) acc[o] = 0.0f;

    for (int c0 = 0; c0 < channels; c0 += IN_CHUNK) {
        for (int i = tid; i < IN_CHUNK * side * side; i += TILE * TILE) {
            const int c = i / (side * side);
            const int r = (i / side) % side;
            const int q = i % side;
            const int gy = blockIdx.y * TILE + r - 1;
            const int gx = blockIdx.x * TILE + q - 1;
            const bool inside = gy >= 0 && gy < height && gx >= 0 && gx < width;
            tile[c][r][q] = inside ? image[((long)(c0 + c) * height + gy) * width + gx] : 0.0f;
        }
        for (int i = tid; i < OUT_BLOCK * IN_CHUNK * 9; i += TILE * TILE) {
            const int o = i / (IN_CHUNK * 9);
            const int k = i % (IN_CHUNK * 9);
            taps[o][k] = weight[((long)(first + o) * channels + c0) * 9 + k];
        }
        __syncthreads();
        for (int c = 0; c < IN_CHUNK; ++c) {
            float v[9];
#pragma unroll
            for (int k = 0; k < 9; ++k) v[k] = tile[c][threadIdx.y + k / 3][threadIdx.x + k % 3];
#pragma unroll
            for (int o = 0; o < OUT_BLOCK; ++o)
#pragma unroll
                for (int k = 0; k < 9; ++k) acc[o] = fmaf(v[k], taps[o][c * 9 + k], acc[o]);
        }
        __syncthreads();
    }
    if (row >= height || col >= width) return;
#pragma unroll
    for (int o = 0; o < OUT_BLOCK; ++o) {
        const long at = ((long)(sample * channels + first + o) * height + row) * width + col;
        const float y = fmaf(acc[o], scale[first + o], shift[first + o]);
        out[at] = y / (1.0f + expf(-y)) + x[at];
    }
}

torch::Tensor block_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor scale, torch::Tensor shift) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && weight.is_contiguous(), "contiguous CUDA tensors expected");
    const int n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    TORCH_CHECK(channels % OUT_BLOCK == 0, "channels must be a multiple of 16");
    auto out = torch::empty_like(x);
    dim3 block(TILE, TILE);
    dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, n * (channels / OUT_BLOCK));
    conv3x3_bn_swish_add<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), scale.data_ptr<float>(), shift.data_ptr<float>(),
        out.data_ptr<float>(), channels, height, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
block_module = load_inline(
    name="conv_bn_swish_residual_block",
    cpp_sources="torch::Tensor block_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor scale, "
    "torch::Tensor shift);",
    cuda_sources=block_source,
    functions=["block_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_NORM_TAIL = '''
from torch.utils.cpp_extension import load_inline

tail_source = r"""
#include <torch/extension.h>

__global__ void bn_swish_add_kernel(const float* y, const float* x, const float* mean, const float* var,
                                    const float* gamma, const float* beta, float* out, float eps, int channels,
                                    int area, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) {
        int c = (i / area) % channels;
        float normed = (y[i] - mean[c]) / sqrtf(var[c] + eps) * gamma[c] + beta[c];
        float sigmoid = 1.0f / (1.0f + expf(-normed));
        out[i] = normed * sigmoid + x[i];
    }
}

torch::Tensor bn_swish_add(torch::Tensor y, torch::Tensor x, torch::Tensor mean, torch::Tensor var,
                           torch::Tensor gamma, torch::Tensor beta, double eps) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.sizes() == x.sizes(), "y and x must have the same shape");
    auto out = torch::empty_like(y);
    int total = y.numel();
    int threads = 64;
    bn_swish_add_kernel<<<(total + threads - 1) / threads, threads>>>(
        y.data_ptr<float>(), x.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(),
        gamma.data_ptr<float>(), beta.data_ptr<float>(), out.data_ptr<float>(), (float)eps, (int)y.size(1),
        (int)(y.size(2) * y.size(3)), total);
    return out;
}
"""
norm_module = load_inline(
    name="conv_bn_swish_residual_norm_tail",
    cpp_sources="torch::Tensor bn_swish_add(torch::Tensor y, torch::Tensor x, torch::Tensor mean, torch::Tensor var, "
    "torch::Tensor gamma, torch::Tensor beta, double eps);",
    cuda_sources=tail_source,
    functions=["bn_swish_add"],
)
'''

MODULE = Rewritten(
    name="conv_bn_swish_residual",
    sizes="""
        batch_size = 32
        channels = 64
        height = width = 56
    """,
    arguments=("channels",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Residual block of one convolution: x + swish(bn(conv(x))).",
        init=_INIT,
        forward="""
            identity = x
            y = self.conv(x)
            y = self.bn(y)
            y = y * torch.sigmoid(y)
            return y + identity
        """,
    ),
    rewrites={
        "folded_norm": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                return F.silu(y, inplace=True).add_(x)
            """,
        ),
        "folded_addcmul": Body(
            init=_FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                return torch.addcmul(x, y, torch.sigmoid(y))
            """,
        ),
        "affine_then_silu": Body(
            init=_AFFINE,
            forward="""
                y = torch.addcmul(self.bn_shift, self.conv(x), self.bn_scale)
                return F.silu(y) + x
            """,
        ),
        "nine_shifted_products": Body(
            summary="The convolution as a sum of nine 1x1 convolutions of shifted images.",
            init=_FOLDED,
            forward="""
                n, c, h, w = x.shape
                padded = F.pad(x, (1, 1, 1, 1))
                y = self.bias.view(1, -1, 1).expand(n, -1, h * w)
                for row in range(3):
                    for column in range(3):
                        shifted = padded[:, :, row : row + h, column : column + w].reshape(n, c, h * w)
                        y = y + torch.matmul(self.weight[:, :, row, column], shifted)
                return F.silu(y).view(n, c, h, w) + x
            """,
        ),
        "lazy_folding_with_checks": Body(
            summary="Folds batch normalisation into the convolution when it is first called, where that is allowed.",
            init=_INIT
            + """
    self._folded = None
    self._folded_on = None
""",
            methods='''
                def _can_fold(self, x):
                    """Running statistics are only constant outside training."""
                    if self.training or not self.bn.track_running_stats:
                        return False
                    return x.dtype == self.conv.weight.dtype and x.dim() == 4

                def _fold(self, device):
                    if self._folded is None or self._folded_on != device:
                        bn = self.bn
                        scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
                        weight = (self.conv.weight * scale[:, None, None, None]).contiguous()
                        bias = torch.addcmul(bn.bias, bn.running_mean, scale, value=-1.0)
                        self._folded = (weight.detach(), bias.detach())
                        self._folded_on = device
                    return self._folded

                def _fallback(self, x):
                    return F.silu(self.bn(self.conv(x))) + x
            ''',
            forward="""
                if not self._can_fold(x):
                    return self._fallback(x)
                weight, bias = self._fold(x.device)
                y = F.conv2d(x, weight, bias, self.conv.stride, self.conv.padding)
                F.silu(y, inplace=True)
                y += x
                return y
            """,
        ),
        "scripted_tail": Body(
            init=_FOLDED,
            before=_SCRIPTED,
            forward="""
                y = F.conv2d(x, self.weight, None, padding=1)
                return scripted.swish_residual(y, self.bias.view(1, -1, 1, 1), x)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_AFFINE,
            forward="""
                x = x.contiguous()
                y = self.conv(x)
                n, c, h, w = y.shape
                out = torch.empty_like(x)
                grid = (n * c, triton.cdiv(h * w, 1024))
                bn_swish_add_kernel[grid](y, x, self.bn_scale, self.bn_shift, out, c, h * w, BLOCK=1024)
                return out
            """,
        ),
        "cuda_tail_in_place": Body(
            before=_CUDA,
            init=_FOLDED,
            forward="""
                x = x.contiguous()
                y = F.conv2d(x, self.weight, None, padding=1)
                return swish_module.swish_add_(y.contiguous(), x, self.bias)
            """,
        ),
        "cuda_tiled_block": Body(
            before=_CUDA_BLOCK,
            init=_AFFINE,
            forward="""
                return block_module.block_forward(
                    x.contiguous(), self.conv.weight.contiguous(), self.bn_scale, self.bn_shift
                )
            """,
        ),
        "cuda_norm_and_tail": Body(
            summary="""The convolution from cuDNN; batch norm, swish and the residual in a kernel.

    In training mode, on the CPU and for other types the module runs as plain PyTorch.
    """,
            before=_CUDA_NORM_TAIL,
            init=_INIT,
            methods='''
                def _plain(self, x):
                    """The block by library calls."""
                    return x + F.silu(self.bn(self.conv(x)))
            ''',
            forward="""
                if self.training or not x.is_cuda or x.dtype != torch.float32:
                    return self._plain(x)
                x = x.contiguous()
                y = self.conv(x).contiguous()
                bn = self.bn
                return norm_module.bn_swish_add(y, x, bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.eps)
            """,
        ),
    },
    images=True,
    carries_on="folded_norm",
)
