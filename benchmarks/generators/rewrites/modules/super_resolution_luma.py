"""A convolution and pixel shuffle to a colour image of three times the side, its luminance, and a clamp."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def luma_kernel(y_ptr, luma_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
    # y: (batch, 27, height, width) before the shuffle; out: (batch, 1, 3 height, 3 width)
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = height * width
    keep = at < 9 * pixels
    row = at // (3 * width)
    col = at % (3 * width)
    part = (row % 3) * 3 + col % 3
    source = y_ptr + (image * 27 + part) * pixels + (row // 3) * width + col // 3
    red = tl.load(source, mask=keep, other=0.0) * tl.load(luma_ptr)
    green = tl.load(source + 9 * pixels, mask=keep, other=0.0) * tl.load(luma_ptr + 1)
    blue = tl.load(source + 18 * pixels, mask=keep, other=0.0) * tl.load(luma_ptr + 2)
    y = (red + green + blue) * 219.0 + 16.0
    tl.store(out_ptr + image * 9 * pixels + at, tl.minimum(tl.maximum(y, 16.0), 235.0), mask=keep)
"""

_WHOLE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def conv_luma_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
    # One coarse row per program, all nine parts of its pixels; weight is (channels, 3, 3, 16), padded from 9.
    image = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    part = tl.arange(0, 16)
    acc = tl.zeros((16, BLOCK), dtype=tl.float32) + tl.load(bias_ptr + part)[:, None]
    for k in range(channels):
        for dy in range(3):
            r = row + dy - 1
            for dx in range(3):
                c = col + dx - 1
                keep = (r >= 0) & (r < height) & (c >= 0) & (c < width)
                v = tl.load(x_ptr + ((image * channels + k) * height + r) * width + c, mask=keep, other=0.0)
                w = tl.load(weight_ptr + ((k * 3 + dy) * 3 + dx) * 16 + part)
                acc += w[:, None] * v[None, :]
    acc = tl.minimum(tl.maximum(acc, 16.0), 235.0)
    fine_row = row * 3 + part // 3
    fine_col = col[None, :] * 3 + (part % 3)[:, None]
    keep = (part[:, None] < 9) & (col[None, :] < width)
    at = image * 9 * height * width + fine_row[:, None] * (3 * width) + fine_col
    tl.store(out_ptr + at, acc, mask=keep)
"""

_INIT = """
    self.conv = nn.Conv2d(features, 27, 3, padding=1)
    self.shuffle = nn.PixelShuffle(3)
    self.register_buffer("luma", torch.tensor([0.299, 0.587, 0.114]))
"""

_FOLDED = """
    # Luminance is linear: it goes into the convolution, which then has nine outputs instead of 27.
    with torch.no_grad():
        weight = torch.einsum("c,cp...->p...", self.luma, self.conv.weight.unflatten(0, (3, 9)))
        bias = self.luma @ self.conv.bias.view(3, 9)
        self.register_buffer("weight", weight * 219.0)
        self.register_buffer("bias", bias * 219.0 + 16.0)
"""

MODULE = Rewritten(
    name="super_resolution_luma",
    sizes="""
        batch_size = 16
        features = 32
        side = 96
    """,
    arguments=("features",),
    takes="x",
    inputs="[torch.randn(batch_size, features, side, side)]",
    reference=Body(
        summary="The head of a super-resolution network, evaluated on luminance in video range.",
        init=_INIT,
        forward="""
            image = self.shuffle(self.conv(x))
            y = (image * self.luma.view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
            y = y * 219.0 + 16.0
            return torch.clamp(y, 16.0, 235.0)
        """,
    ),
    rewrites={
        "luma_in_weights": Body(
            init=_INIT + _FOLDED,
            forward="""
                y = F.conv2d(x, self.weight, self.bias, padding=1)
                return F.pixel_shuffle(y.clamp_(16.0, 235.0), 3)
            """,
        ),
        "luma_before_shuffle": Body(
            summary="The sum over colours first, so that a third of the values is shuffled.",
            forward="""
                y = self.conv(x)
                y = y.reshape(y.shape[0], 3, 9, *y.shape[2:])
                y = torch.einsum("bcphw,c->bphw", y, self.luma)
                y = y.mul_(219.0).add_(16.0).clamp_(16.0, 235.0)
                return F.pixel_shuffle(y, 3)
            """,
        ),
        "luma_as_convolution": Body(
            init=_INIT
            + """
    self.register_buffer("mix", self.luma.view(1, 3, 1, 1) * 219.0)
    self.register_buffer("offset", torch.tensor([16.0]))
""",
            forward="return F.conv2d(self.shuffle(self.conv(x)), self.mix, self.offset).clamp_(16.0, 235.0)",
        ),
        "explicit_channels": Body(
            summary="Colours taken apart by indexing.",
            forward="""
                image = self.shuffle(self.conv(x))
                r, g, b = image[:, 0:1], image[:, 1:2], image[:, 2:3]
                y = 0.299 * r + 0.587 * g + 0.114 * b
                return torch.clamp(16.0 + 219.0 * y, min=16.0, max=235.0)
            """,
        ),
        "strided_writes": Body(
            summary="""The shuffle as nine strided writes into the finished image.

    Each of the nine sub-images is computed by its own convolution, on weights that have the luminance in them.
    """,
            init=_INIT
            + _FOLDED
            + """
    self.factor = 3
""",
            methods='''
                def _sub_image(self, x, index):
                    """One of the nine interleaved images."""
                    weight = self.weight[index : index + 1]
                    bias = self.bias[index : index + 1]
                    return F.conv2d(x, weight, bias, padding=1)
            ''',
            forward="""
                B, _, H, W = x.shape
                r = self.factor
                out = torch.empty(B, 1, r * H, r * W, dtype=x.dtype, device=x.device)
                for i in range(r):
                    for j in range(r):
                        out[:, :, i::r, j::r] = self._sub_image(x, i * r + j)
                return out.clamp_(16.0, 235.0)
            """,
        ),
        "one_transposed_convolution": Body(
            summary="""Convolution, shuffle and luminance as a transposed convolution.

    Its kernel of side nine holds the 3x3 taps of each of the nine interleaved images, in reverse.
    """,
            init=_INIT
            + _FOLDED
            + """
    taps = self.weight.view(3, 3, features, 3, 3).flip(3, 4)
    self.register_buffer("kernel", taps.permute(2, 3, 0, 4, 1).reshape(features, 1, 9, 9).contiguous())
    self.register_buffer("inner_bias", self.bias.view(1, 1, 3, 3))
""",
            forward="""
                y = F.conv_transpose2d(x, self.kernel, stride=3, padding=3)
                y = y + self.inner_bias.repeat(1, 1, x.shape[2], x.shape[3])
                return y.clamp_(16.0, 235.0)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.conv(x).contiguous()
                B, _, H, W = y.shape
                out = torch.empty(B, 1, 3 * H, 3 * W, device=y.device)
                luma_kernel[(B, triton.cdiv(9 * H * W, 1024))](y, self.luma, out, H, W, BLOCK=1024)
                return out
            """,
        ),
        "triton_whole": Body(
            before=_WHOLE_KERNEL,
            init=_INIT
            + _FOLDED
            + """
    taps = self.weight.permute(1, 2, 3, 0)
    self.register_buffer("padded_taps", F.pad(taps, (0, 7)).contiguous())
    self.register_buffer("padded_bias", F.pad(self.bias, (0, 7)))
""",
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                out = torch.empty(B, 1, 3 * H, 3 * W, device=x.device)
                conv_luma_kernel[(H, B)](
                    x, self.padded_taps, self.padded_bias, out, C, H, W,
                    BLOCK=triton.next_power_of_2(W), num_warps=4,
                )
                return out
            """,
        ),
    },
    images=True,
    carries_on="luma_in_weights",
)
