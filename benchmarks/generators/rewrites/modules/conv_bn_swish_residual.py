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
    },
    images=True,
    carries_on="folded_norm",
)
