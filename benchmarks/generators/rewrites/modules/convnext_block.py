"""A ConvNeXt block: 7x7 depthwise convolution, layer norm over channels, a GELU network, layer scale, residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DEPTHWISE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depthwise_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, height, width, eps,
                          BLOCK: tl.constexpr):
    # A pixel per program; x is channels-last, weight is (7, 7, channels). The norm's gain is folded elsewhere.
    pixel = tl.program_id(0)
    col = pixel % width
    row = (pixel // width) % height
    image = pixel // (width * height)
    c = tl.arange(0, BLOCK)
    inside = c < channels
    acc = tl.load(bias_ptr + c, mask=inside, other=0.0)
    for dy in range(7):
        r = row + dy - 3
        for dx in range(7):
            q = col + dx - 3
            keep = inside & (r >= 0) & (r < height) & (q >= 0) & (q < width)
            v = tl.load(x_ptr + ((image * height + r) * width + q) * channels + c, mask=keep, other=0.0)
            acc += v * tl.load(weight_ptr + (dy * 7 + dx) * channels + c, mask=inside, other=0.0)
    mean = tl.sum(tl.where(inside, acc, 0.0), axis=0) / channels
    centred = tl.where(inside, acc - mean, 0.0)
    var = tl.sum(centred * centred, axis=0) / channels
    tl.store(out_ptr + pixel * channels + c, centred * tl.rsqrt(var + eps), mask=inside)
"""

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scale_residual_kernel(h_ptr, gamma_ptr, x_ptr, out_ptr, channels, pixels,
                          BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    # out = x + gamma * h, with h (batch, pixels, channels) transposed on the way
    image = tl.program_id(2)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    keep = (p[:, None] < pixels) & (c[None, :] < channels)
    h = tl.load(h_ptr + (image * pixels + p[:, None]) * channels + c[None, :], mask=keep, other=0.0)
    h = h * tl.load(gamma_ptr + c, mask=c < channels, other=0.0)[None, :]
    at = (image * channels + c[:, None]) * pixels + p[None, :]
    keep = (c[:, None] < channels) & (p[None, :] < pixels)
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    tl.store(out_ptr + at, x + tl.trans(h), mask=keep)
"""

_INIT = """
    self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
    self.norm = nn.LayerNorm(channels, eps=1e-6)
    self.widen = nn.Linear(channels, factor * channels)
    self.narrow = nn.Linear(factor * channels, channels)
    self.gamma = nn.Parameter(torch.rand(channels))
    nn.init.uniform_(self.norm.weight, 0.5, 1.5)
    nn.init.normal_(self.norm.bias, std=0.1)
"""

_FOLDED = """
    with torch.no_grad():
        self.register_buffer("w1", self.widen.weight * self.norm.weight)
        self.register_buffer("b1", self.widen.bias + self.widen.weight @ self.norm.bias)
        self.register_buffer("w2", self.narrow.weight * self.gamma[:, None])
        self.register_buffer("b2", self.narrow.bias * self.gamma)
"""

MODULE = Rewritten(
    name="convnext_block",
    sizes="""
        batch_size = 16
        channels = 192
        factor = 4
        side = 28
    """,
    arguments=("channels", "factor"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="A ConvNeXt block on channels-first maps.",
        init=_INIT,
        forward="""
            h = self.depthwise(x)
            h = h.permute(0, 2, 3, 1)
            h = self.norm(h)
            h = F.gelu(self.widen(h))
            h = self.narrow(h)
            h = self.gamma * h
            h = h.permute(0, 3, 1, 2)
            return x + h
        """,
    ),
    rewrites={
        "gain_and_scale_folded": Body(
            init=_INIT + _FOLDED,
            forward="""
                h = self.depthwise(x).permute(0, 2, 3, 1)
                h = F.layer_norm(h, h.shape[-1:], eps=1e-6)
                h = F.linear(F.gelu(F.linear(h, self.w1, self.b1)), self.w2, self.b2)
                return x + h.permute(0, 3, 1, 2)
            """,
        ),
        "pointwise_convolutions": Body(
            summary="""A ConvNeXt block that stays channels-first.

    The norm over channels is written out on the maps, and the linear layers are 1x1 convolutions.
    """,
            init=_INIT + _FOLDED,
            methods='''
                def _normalised(self, h):
                    """The layer norm over the channel axis, without its gain and bias."""
                    centred = h - h.mean(dim=1, keepdim=True)
                    variance = centred.square().mean(dim=1, keepdim=True)
                    return centred.mul_(torch.rsqrt(variance.add_(self.norm.eps)))
            ''',
            forward="""
                h = self._normalised(self.depthwise(x))
                h = F.conv2d(h, self.w1[:, :, None, None], self.b1)
                h = F.gelu(h)
                h = F.conv2d(h, self.w2[:, :, None, None], self.b2)
                return h.add_(x)
            """,
        ),
        "fused_residual": Body(
            summary="Scale and residual in one pass.",
            forward="""
                h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
                h = self.narrow(F.gelu(self.widen(h)))
                return torch.addcmul(x, h.permute(0, 3, 1, 2), self.gamma[:, None, None])
            """,
        ),
        "norm_inside_product": Body(
            summary="""The layer norm after the first product instead of before it.

    Mean and deviation are taken of the raw maps; the product is corrected by them afterwards.
    """,
            init=_INIT
            + _FOLDED
            + """
    self.register_buffer("w1_sums", self.w1.sum(dim=1))
""",
            forward="""
                B, C, H, W = x.shape
                h = self.depthwise(x).permute(0, 2, 3, 1).reshape(-1, C)
                var, mean = torch.var_mean(h, dim=1, correction=0, keepdim=True)
                rstd = torch.rsqrt(var + self.norm.eps)
                y = torch.mm(h, self.w1.t())
                y = (y - mean * self.w1_sums).mul_(rstd).add_(self.b1)
                y = torch.addmm(self.b2, F.gelu(y), self.w2.t())
                return x + y.view(B, H, W, C).permute(0, 3, 1, 2)
            """,
        ),
        "depthwise_by_unfold": Body(
            summary="The depthwise convolution as patches times taps, summed.",
            init=_INIT + _FOLDED,
            forward="""
                B, C, H, W = x.shape
                patches = F.pad(x, (3, 3, 3, 3)).unfold(2, 7, 1).unfold(3, 7, 1)
                taps = self.depthwise.weight.view(C, 7, 7)
                h = torch.einsum("bchwij,cij->bhwc", patches, taps) + self.depthwise.bias
                h = F.layer_norm(h, (C,), eps=self.norm.eps)
                h = F.linear(F.gelu(F.linear(h, self.w1, self.b1)), self.w2, self.b2)
                return x + h.permute(0, 3, 1, 2)
            """,
        ),
        "token_chunks": Body(
            summary="The wide hidden layer exists for a few images at a time only.",
            forward="""
                h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
                out = torch.empty_like(x)
                for i in range(0, x.shape[0], 2):
                    y = self.narrow(F.gelu(self.widen(h[i : i + 2]))).mul_(self.gamma)
                    torch.add(x[i : i + 2], y.permute(0, 3, 1, 2), out=out[i : i + 2])
                return out
            """,
        ),
        "triton_depthwise_norm": Body(
            before=_DEPTHWISE_KERNEL,
            init=_INIT
            + _FOLDED
            + """
    self.register_buffer("taps", self.depthwise.weight.detach().view(channels, 49).t().contiguous())
""",
            forward="""
                B, C, H, W = x.shape
                tokens = x.permute(0, 2, 3, 1).contiguous()
                h = torch.empty_like(tokens)
                depthwise_norm_kernel[(B * H * W,)](
                    tokens, self.taps, self.depthwise.bias, h, C, H, W, self.norm.eps,
                    BLOCK=triton.next_power_of_2(C), num_warps=2,
                )
                h = F.linear(F.gelu(F.linear(h, self.w1, self.b1)), self.w2, self.b2)
                return h.add_(tokens).permute(0, 3, 1, 2)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
                h = self.narrow(F.gelu(self.widen(h))).contiguous()
                out = torch.empty_like(x)
                grid = (triton.cdiv(H * W, 64), triton.cdiv(C, 32), B)
                scale_residual_kernel[grid](h, self.gamma, x, out, C, H * W, BLOCK_P=64, BLOCK_C=32)
                return out
            """,
        ),
    },
    images=True,
    carries_on="gain_and_scale_folded",
)
