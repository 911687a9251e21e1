"""A step up in a U-Net: a transposed convolution, concatenation with the skipped maps, two convolutions with ReLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_JOIN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def join_kernel(parts_ptr, bias_ptr, skip_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
    # parts: (batch, channels * 4, height * width) of coarse pixels; out: (batch, 2 * channels, 2 height, 2 width)
    item = tl.program_id(0)
    image = (item // (2 * channels)).to(tl.int64)
    channel = item % (2 * channels)
    fine = 4 * height * width
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < fine
    out_at = out_ptr + (image * 2 * channels + channel) * fine + at
    if channel < channels:
        row = at // (2 * width)
        col = at % (2 * width)
        part = channel * 4 + (row % 2) * 2 + col % 2
        pixel = (row // 2) * width + col // 2
        v = tl.load(parts_ptr + (image * 4 * channels + part) * (height * width) + pixel, mask=keep, other=0.0)
        tl.store(out_at, v + tl.load(bias_ptr + channel), mask=keep)
    else:
        v = tl.load(skip_ptr + (image * channels + channel - channels) * fine + at, mask=keep, other=0.0)
        tl.store(out_at, v, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Direct 3x3 convolution with ReLU, one thread per output.
__global__ void direct(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                       float* __restrict__ out, int c_in, int c_out, int height, int width, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    int col = i % width;
    int row = (i / width) % height;
    int o = (i / ((long)width * height)) % c_out;
    long b = i / ((long)width * height * c_out);
    float sum = bias[o];
    for (int k = 0; k < c_in; ++k) {
        const float* plane = x + (b * c_in + k) * height * width;
        const float* w = weight + ((long)o * c_in + k) * 9;
        for (int dy = 0; dy < 3; ++dy) {
            int r = row + dy - 1;
            if (r < 0 || r >= height) continue;
            for (int dx = 0; dx < 3; ++dx) {
                int c = col + dx - 1;
                if (c >= 0 && c < width) sum += plane[r * width + c] * w[dy * 3 + dx];
            }
        }
    }
    out[i] = fmaxf(sum, 0.0f);
}

torch::Tensor conv_relu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    int height = x.size(2), width = x.size(3), c_out = weight.size(0);
    auto out = torch::empty({x.size(0), c_out, height, width}, x.options());
    long total = out.numel();
    direct<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                         out.data_ptr<float>(), x.size(1), c_out, height, width, total);
    return out;
}
"""
direct_module = load_inline(
    name="unet_up_step_direct",
    cpp_sources="torch::Tensor conv_relu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["conv_relu"],
)
'''

_INIT = """
    self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
    self.conv1 = nn.Conv2d(2 * channels, channels, 3, padding=1)
    self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
"""

MODULE = Rewritten(
    name="unet_up_step",
    sizes="""
        batch_size = 8
        channels = 64
        coarse_side = 32
    """,
    arguments=("channels",),
    takes="coarse, skip",
    inputs="""[
        torch.randn(batch_size, 2 * channels, coarse_side, coarse_side),
        torch.randn(batch_size, channels, 2 * coarse_side, 2 * coarse_side),
    ]""",
    reference=Body(
        summary="Upsampling, concatenation and a double convolution.",
        init=_INIT,
        forward="""
            up = self.up(coarse)
            x = torch.cat([up, skip], dim=1)
            x = F.relu(self.conv1(x))
            x = F.relu(self.conv2(x))
            return x
        """,
    ),
    rewrites={
        "in_place_rectifiers": Body(
            forward="""
                x = torch.cat((self.up(coarse), skip), 1)
                x = F.relu_(self.conv1(x))
                return F.relu_(self.conv2(x))
            """
        ),
        "no_concatenation": Body(
            summary="The first convolution is split between its two inputs, so that they need not be joined.",
            init=_INIT
            + """
    w_up, w_skip = self.conv1.weight.detach().chunk(2, dim=1)
    self.register_buffer("w_up", w_up.contiguous())
    self.register_buffer("w_skip", w_skip.contiguous())
""",
            forward="""
                x = F.conv2d(skip, self.w_skip, self.conv1.bias, padding=1)
                x += F.conv2d(self.up(coarse), self.w_up, padding=1)
                return F.relu(self.conv2(x.relu_()))
            """,
        ),
        "composite_transposed": Body(
            summary="""Upsampling and the part of the first convolution that sees it, as one transposed convolution.

    Nothing non-linear is between the two, so that their kernels compose to one of side four and stride two.
    What the bias of the upsampling adds differs only at the border, and is a fixed map.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        w_up, w_skip = self.conv1.weight.chunk(2, dim=1)
        self.register_buffer("w_skip", w_skip.contiguous())
        self.register_buffer("w_composite", F.conv2d(self.up.weight, w_up, padding=2))
        self.register_buffer("w_up", w_up.contiguous())
    self._bias_maps = {}
""",
            methods='''
                def _bias_map(self, height, width, device):
                    """What the biases of both layers add to each pixel."""
                    key = (height, width, device)
                    if key not in self._bias_maps:
                        constant = self.up.bias.view(1, -1, 1, 1).expand(1, -1, height, width)
                        self._bias_maps[key] = F.conv2d(constant, self.w_up, self.conv1.bias, padding=1)
                    return self._bias_maps[key]
            ''',
            forward="""
                x = F.conv_transpose2d(coarse, self.w_composite, stride=2, padding=1)
                x += F.conv2d(skip, self.w_skip, padding=1)
                x += self._bias_map(x.shape[2], x.shape[3], x.device)
                return self.conv2(x.relu_()).relu_()
            """,
        ),
        "upsampling_as_product": Body(
            summary="Stride equals kernel: each coarse pixel makes its four fine ones by a matrix product.",
            init=_INIT
            + """
    # (4 * channels, 2 * channels), rows in the order that pixel_shuffle wants
    self.register_buffer("w_flat", self.up.weight.detach().flatten(1).t().contiguous())
    self.register_buffer("b_flat", self.up.bias.detach().repeat_interleave(4))
""",
            forward="""
                B, C, H, W = coarse.shape
                parts = torch.matmul(self.w_flat, coarse.flatten(2)) + self.b_flat[:, None]
                up = F.pixel_shuffle(parts.view(B, -1, H, W), 2)
                x = torch.cat([up, skip], dim=1)
                return torch.relu(self.conv2(torch.relu(self.conv1(x))))
            """,
        ),
        "kept_buffer": Body(
            summary="""A step up that keeps the joined maps between calls.

    The buffer of the concatenation is made once for each shape; both halves are written into it.
    """,
            init=_INIT
            + """
    self._joined = None
""",
            methods='''
                def _buffer(self, up, skip):
                    """The buffer, remade if shape, device or type have changed."""
                    shape = (up.shape[0], up.shape[1] + skip.shape[1], *up.shape[2:])
                    kept = self._joined
                    if kept is None or kept.shape != shape or kept.device != up.device or kept.dtype != up.dtype:
                        kept = self._joined = torch.empty(shape, device=up.device, dtype=up.dtype)
                    return kept

                def _rectified(self, conv, x):
                    """A convolution and a rectifier that needs no memory of its own."""
                    return F.relu(conv(x), inplace=True)
            ''',
            forward="""
                up = self.up(coarse)
                if up.shape[2:] != skip.shape[2:]:
                    up = F.interpolate(up, size=skip.shape[2:], mode="nearest")
                joined = self._buffer(up, skip)
                joined[:, : up.shape[1]].copy_(up)
                joined[:, up.shape[1] :].copy_(skip)
                return self._rectified(self.conv2, self._rectified(self.conv1, joined))
            """,
        ),
        "image_pairs": Body(
            summary="Two images at a time.",
            forward="""
                outputs = []
                for low, high in zip(coarse.split(2), skip.split(2)):
                    x = torch.cat([self.up(low), high], dim=1)
                    outputs.append(self.conv2(self.conv1(x).relu_()).relu_())
                return torch.cat(outputs)
            """,
        ),
        "triton_join": Body(
            before=_JOIN_KERNEL,
            init=_INIT
            + """
    self.register_buffer("w_flat", self.up.weight.detach().flatten(1).t().contiguous())
""",
            forward="""
                B, C, H, W = coarse.shape
                skip = skip.contiguous()
                parts = torch.matmul(self.w_flat, coarse.reshape(B, C, H * W))
                x = torch.empty(B, C, 2 * H, 2 * W, device=coarse.device)
                grid = (B * C, triton.cdiv(4 * H * W, 1024))
                join_kernel[grid](parts, self.up.bias, skip, x, C // 2, H, W, BLOCK=1024)
                return F.relu_(self.conv2(F.relu_(self.conv1(x))))
            """,
        ),
        "cuda_direct": Body(
            before=_CUDA,
            forward="""
                x = torch.cat([self.up(coarse), skip], dim=1).contiguous()
                x = direct_module.conv_relu(x, self.conv1.weight, self.conv1.bias)
                return direct_module.conv_relu(x, self.conv2.weight, self.conv2.bias)
            """,
        ),
    },
    carries_on="in_place_rectifiers",
)
