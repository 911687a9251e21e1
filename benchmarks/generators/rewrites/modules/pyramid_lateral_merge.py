"""A step down a feature pyramid: coarse maps doubled and projected, fine maps projected, their mean, hard swish."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MERGE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def merge_kernel(low_ptr, fine_ptr, out_ptr, width, pixels, BLOCK: tl.constexpr):
    # hardswish((low at half the resolution + fine) / 2)
    plane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < pixels
    row = at // width
    col = at % width
    low = tl.load(low_ptr + plane * (pixels // 4) + (row // 2) * (width // 2) + col // 2, mask=keep, other=0.0)
    y = 0.5 * (low + tl.load(fine_ptr + plane * pixels + at, mask=keep, other=0.0))
    y = y * tl.minimum(tl.maximum(y + 3.0, 0.0), 6.0) / 6.0
    tl.store(out_ptr + plane * pixels + at, y, mask=keep)
"""

_PRODUCT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def lateral_kernel(x_ptr, weight_ptr, bias_ptr, low_ptr, out_ptr, channels, outputs, width, pixels,
                   BLOCK_O: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr):
    # the lateral projection, onto which the projected coarse maps are added before the activation
    image = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    acc = tl.zeros((BLOCK_O, BLOCK_P), dtype=tl.float32)
    for start in range(0, channels, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        w = tl.load(weight_ptr + o[:, None] * channels + k[None, :],
                    mask=(o[:, None] < outputs) & (k[None, :] < channels), other=0.0)
        x = tl.load(x_ptr + (image * channels + k[:, None]) * pixels + p[None, :],
                    mask=(k[:, None] < channels) & (p[None, :] < pixels), other=0.0)
        acc += tl.dot(w, x, input_precision="ieee")
    keep = (o[:, None] < outputs) & (p[None, :] < pixels)
    coarse = (p // width // 2) * (width // 2) + p % width // 2
    low_at = low_ptr + (image * outputs + o[:, None]) * (pixels // 4) + coarse[None, :]
    y = acc + tl.load(bias_ptr + o, mask=o < outputs, other=0.0)[:, None]
    y += tl.load(low_at, mask=keep, other=0.0)
    y = y * tl.minimum(tl.maximum(y + 3.0, 0.0), 6.0) / 6.0
    tl.store(out_ptr + (image * outputs + o[:, None]) * pixels + p[None, :], y, mask=keep)
"""

_INIT = """
    self.top = nn.Conv2d(coarse_channels, channels, 1)
    self.lateral = nn.Conv2d(fine_channels, channels, 1)
"""

_HALVED = """
    with torch.no_grad():
        self.register_buffer("w_top", self.top.weight / 2)
        self.register_buffer("w_lateral", self.lateral.weight / 2)
        self.register_buffer("b_both", (self.top.bias + self.lateral.bias) / 2)
"""

MODULE = Rewritten(
    name="pyramid_lateral_merge",
    sizes="""
        batch_size = 8
        coarse_channels = 512
        fine_channels = 256
        channels = 128
        coarse_side = 32
    """,
    arguments=("coarse_channels", "fine_channels", "channels"),
    takes="coarse, fine",
    inputs="""[
        torch.randn(batch_size, coarse_channels, coarse_side, coarse_side),
        torch.randn(batch_size, fine_channels, 2 * coarse_side, 2 * coarse_side),
    ]""",
    reference=Body(
        summary="Coarse and fine features of a pyramid, brought to the same resolution and width.",
        init=_INIT,
        forward="""
            up = F.interpolate(coarse, scale_factor=2, mode="nearest")
            up = self.top(up)
            side = self.lateral(fine)
            return F.hardswish((up + side) / 2)
        """,
    ),
    rewrites={
        "project_then_double": Body(
            summary="The projection works on each pixel by itself, so that it may come before the doubling.",
            forward="""
                up = F.interpolate(self.top(coarse), scale_factor=2, mode="nearest")
                return F.hardswish(self.lateral(fine).add_(up).mul_(0.5), inplace=True)
            """,
        ),
        "broadcast_over_blocks": Body(
            summary="""Projection before doubling, and doubling by broadcasting.

    The fine maps are viewed as blocks of 2x2 pixels, to each of which one coarse pixel is added. The mean's
    factor of one half and both biases are in the weights.
    """,
            init=_INIT + _HALVED,
            forward="""
                low = F.conv2d(coarse, self.w_top)
                out = F.conv2d(fine, self.w_lateral, self.b_both)
                B, C, H, W = low.shape
                out = out.reshape(B, C, H, 2, W, 2)
                out += low.reshape(B, C, H, 1, W, 1)
                return F.hardswish(out, inplace=True).view(B, C, 2 * H, 2 * W)
            """,
        ),
        "joined_inputs": Body(
            summary="One convolution of the concatenated maps.",
            init=_INIT
            + _HALVED
            + """
    self.register_buffer("w_both", torch.cat([self.w_top, self.w_lateral], dim=1))
""",
            forward="""
                up = F.interpolate(coarse, size=fine.shape[2:], mode="nearest")
                return F.hardswish(F.conv2d(torch.cat([up, fine], dim=1), self.w_both, self.b_both))
            """,
        ),
        "repeated_pixels": Body(
            forward="""
                up = coarse.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
                y = self.top(up).add_(self.lateral(fine)).mul_(0.5)
                return y * F.relu6(y + 3.0) / 6.0
            """
        ),
        "projection_doubles": Body(
            summary="Doubling and projection of the coarse maps as one transposed convolution with equal taps.",
            init=_INIT
            + _HALVED
            + """
    self.register_buffer("taps", self.w_top.transpose(0, 1).expand(-1, -1, 2, 2).contiguous())
""",
            forward="""
                y = F.conv_transpose2d(coarse, self.taps, self.b_both, stride=2)
                y += F.conv2d(fine, self.w_lateral)
                return F.hardswish(y)
            """,
        ),
        "gathered_rows": Body(
            summary="""Doubling by index tensors that are kept between calls.

    Both axes are gathered at once; indices are made on the first call for each size.
    """,
            init=_INIT
            + """
    self._indices = {}
""",
            methods='''
                def _index(self, size, device):
                    """0, 0, 1, 1, 2, 2 and so on, up to the size given."""
                    key = (size, device)
                    index = self._indices.get(key)
                    if index is None:
                        index = torch.arange(size, device=device) // 2
                        self._indices[key] = index
                    return index

                def _double(self, maps):
                    """Nearest-neighbour upsampling by a factor of two."""
                    rows = self._index(2 * maps.shape[2], maps.device)
                    cols = self._index(2 * maps.shape[3], maps.device)
                    return maps.index_select(2, rows).index_select(3, cols)
            ''',
            forward="""
                if coarse.shape[2] * 2 != fine.shape[2] or coarse.shape[3] * 2 != fine.shape[3]:
                    raise ValueError("fine maps must have twice the side of coarse ones")
                up = self._double(coarse)
                merged = torch.add(self.top(up), self.lateral(fine))
                return F.hardswish(torch.div(merged, 2))
            """,
        ),
        "triton_merge": Body(
            before=_MERGE_KERNEL,
            forward="""
                low = self.top(coarse).contiguous()
                side = self.lateral(fine).contiguous()
                out = torch.empty_like(side)
                B, C, H, W = side.shape
                merge_kernel[(B * C, triton.cdiv(H * W, 1024))](low, side, out, W, H * W, BLOCK=1024)
                return out
            """,
        ),
        "triton_lateral": Body(
            before=_PRODUCT_KERNEL,
            init=_INIT + _HALVED,
            forward="""
                low = F.conv2d(coarse, self.w_top).contiguous()
                fine = fine.contiguous()
                B, C, H, W = fine.shape
                out = torch.empty(B, low.shape[1], H, W, device=fine.device)
                grid = (triton.cdiv(H * W, 64), triton.cdiv(low.shape[1], 64), B)
                lateral_kernel[grid](
                    fine, self.w_lateral, self.b_both, low, out, C, low.shape[1], W, H * W,
                    BLOCK_O=64, BLOCK_P=64, BLOCK_K=32, num_warps=4,
                )
                return out
            """,
        ),
    },
    carries_on="broadcast_over_blocks",
)
