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
    },
    images=True,
    carries_on="offset_in_bias",
)
