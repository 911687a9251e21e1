"""A dilated convolution, group normalisation, mish, a scale per channel and the mean over space."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def norm_mish_mean_kernel(
    y_ptr, weight_ptr, bias_ptr, scale_ptr, out_ptr, channels, groups, area, eps,
    PER_GROUP: tl.constexpr, AREA: tl.constexpr,
):
    sample = tl.program_id(0) // groups
    group = tl.program_id(0) % groups
    inside = tl.arange(0, PER_GROUP)
    pixels = tl.arange(0, AREA)
    keep = (inside[:, None] >= 0) & (pixels[None, :] < area)
    channel = group * PER_GROUP + inside
    at = (sample * channels + channel[:, None]) * area + pixels[None, :]
    y = tl.load(y_ptr + at, mask=keep, other=0.0)
    count = PER_GROUP * area
    mean = tl.sum(tl.sum(y, axis=1), axis=0) / count
    centred = tl.where(keep, y - mean, 0.0)
    variance = tl.sum(tl.sum(centred * centred, axis=1), axis=0) / count
    weight = tl.load(weight_ptr + channel)
    bias = tl.load(bias_ptr + channel)
    y = centred / tl.sqrt(variance + eps) * weight[:, None] + bias[:, None]
    e = tl.exp(tl.minimum(y, 20.0))
    n = e * (e + 2.0)
    mish = tl.where(y > 20.0, y, y * n / (n + 2.0))
    mish = tl.where(keep, mish, 0.0)
    mean = tl.sum(mish, axis=1) / area
    tl.store(out_ptr + sample * channels + channel, mean * tl.load(scale_ptr + channel))
"""

_MISH_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mish_mean_kernel(y_ptr, scale_ptr, out_ptr, channels, area, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
        softplus = tl.where(y > 20.0, y, tl.log(1.0 + tl.exp(tl.minimum(y, 20.0))))
        total += y * (2.0 * tl.sigmoid(2.0 * softplus) - 1.0)
    scale = tl.load(scale_ptr + plane % channels)
    tl.store(out_ptr + plane, tl.sum(total, axis=0) / area * scale)
"""

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def mish_scale_mean(x: Tensor, scale: Tensor) -> Tensor:
    x = x * torch.tanh(torch.log1p(torch.exp(x)))
    return torch.mean(x * scale.view(1, -1, 1, 1), dim=[2, 3])
""")
'''

_INIT = """
    self.conv = nn.Conv2d(channels, channels, 3, padding=2, dilation=2)
    self.norm = nn.GroupNorm(groups, channels)
    nn.init.uniform_(self.norm.weight, 0.5, 1.5)
    nn.init.uniform_(self.norm.bias, -0.5, 0.5)
    self.scale = nn.Parameter(torch.randn(channels))
"""

MODULE = Rewritten(
    name="dilated_group_norm_mish",
    sizes="""
        batch_size = 16
        channels = 32
        groups = 8
        side = 32
    """,
    arguments=("channels", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="Dilated convolution, group normalisation, mish, a scale per channel, global average.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.norm(x)
            x = x * torch.tanh(F.softplus(x))
            x = x * self.scale.view(1, -1, 1, 1)
            return x.mean(dim=(2, 3))
        """,
    ),
    rewrites={
        "library_mish": Body(
            forward="""
                x = F.mish(self.norm(self.conv(x)), inplace=True)
                return x.mean(dim=(2, 3)) * self.scale
            """
        ),
        "pooled_then_scaled": Body(
            forward="""
                x = F.mish(F.group_norm(self.conv(x), self.norm.num_groups, self.norm.weight, self.norm.bias))
                return F.adaptive_avg_pool2d(x, 1).flatten(1).mul_(self.scale)
            """
        ),
        "mish_without_logarithm": Body(
            summary="tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2): one exponential in place of three functions.",
            forward="""
                x = self.norm(self.conv(x))
                e = torch.exp(x.clamp(max=20.0))
                n = e * (e + 2.0)
                x = x * n / (n + 2.0)
                return x.mean(dim=(-2, -1)) * self.scale
            """,
        ),
        "norm_by_hand": Body(
            methods='''
                def group_statistics(self, y):
                    """Mean and reciprocal deviation of each group, from sums of values and squares."""
                    grouped = y.view(y.shape[0], self.norm.num_groups, -1)
                    var, mean = torch.var_mean(grouped, dim=2, unbiased=False)
                    return mean, torch.rsqrt(var + self.norm.eps)

                def per_channel(self, mean, rstd):
                    """Factor and summand of each channel of each sample."""
                    repeats = self.norm.num_channels // self.norm.num_groups
                    factor = rstd.repeat_interleave(repeats, dim=1) * self.norm.weight
                    summand = self.norm.bias - mean.repeat_interleave(repeats, dim=1) * factor
                    return factor[:, :, None, None], summand[:, :, None, None]
            ''',
            forward="""
                y = self.conv(x).contiguous()
                factor, summand = self.per_channel(*self.group_statistics(y))
                y = F.mish(torch.addcmul(summand, y, factor))
                return y.mean(dim=(2, 3)) * self.scale
            """,
        ),
        "mean_as_product": Body(
            init=_INIT
            + """
    self.register_buffer("mean_weights", torch.empty(0), persistent=False)
""",
            forward="""
                x = F.mish(self.norm(self.conv(x))).flatten(2)
                if self.mean_weights.shape[0] != x.shape[2] or self.mean_weights.device != x.device:
                    self.mean_weights = torch.full((x.shape[2],), 1.0 / x.shape[2], device=x.device)
                return torch.matmul(x, self.mean_weights) * self.scale
            """,
        ),
        "unfolded_convolution": Body(
            forward="""
                n, c, h, w = x.shape
                columns = F.unfold(x, 3, dilation=2, padding=2)
                y = torch.matmul(self.conv.weight.view(c, -1), columns) + self.conv.bias.view(1, c, 1)
                y = F.mish(self.norm(y))
                return y.mean(dim=2) * self.scale
            """
        ),
        "scripted_tail": Body(
            before=_SCRIPTED,
            forward="return scripted.mish_scale_mean(self.norm(self.conv(x)), self.scale)",
        ),
        "triton_mish_mean": Body(
            before=_MISH_KERNEL,
            forward="""
                y = self.norm(self.conv(x)).contiguous()
                n, c, h, w = y.shape
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                mish_mean_kernel[(n * c,)](y, self.scale, out, c, h * w, BLOCK=512)
                return out
            """,
        ),
        "triton_norm_to_mean": Body(
            before=_TAIL_KERNEL,
            summary="Everything after the convolution in one kernel, a program per sample and group.",
            forward="""
                y = self.conv(x).contiguous()
                n, c, h, w = y.shape
                groups = self.norm.num_groups
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                norm_mish_mean_kernel[(n * groups,)](
                    y, self.norm.weight, self.norm.bias, self.scale, out, c, groups, h * w, self.norm.eps,
                    PER_GROUP=c // groups, AREA=triton.next_power_of_2(h * w), num_warps=8,
                )
                return out
            """,
        ),
    },
    images=True,
    carries_on="library_mish",
)
