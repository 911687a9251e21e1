"""A 3-D convolution, its mean over depth, a bias and GELU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depth_mean_gelu_kernel(y_ptr, bias_ptr, out_ptr, channels, depth, area, BLOCK: tl.constexpr):
    plane = tl.program_id(1)
    pixels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixels < area
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for level in range(0, depth):
        total += tl.load(y_ptr + (plane * depth + level) * area + pixels, mask=keep, other=0.0)
    mean = total / depth + tl.load(bias_ptr + plane % channels)
    out = 0.5 * mean * (1.0 + tl.erf(mean * 0.7071067811865476))
    tl.store(out_ptr + plane * area + pixels, out, mask=keep)
"""

_INIT = """
    self.conv = nn.Conv3d(channels, width, 3)
    self.bias = nn.Parameter(torch.randn(width, 1, 1))
"""

_FLAT = (
    _INIT
    + """
    with torch.no_grad():
        self.register_buffer("flat_weight", self.conv.weight.flatten(1, 2).clone())
        self.register_buffer("flat_bias", self.conv.bias + self.bias.flatten())
"""
)

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def mean_bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    y = y.mean(dim=[2]) + bias
    return y * 0.5 * (1.0 + torch.erf(y * 0.7071067811865476))
""")
'''

MODULE = Rewritten(
    name="conv3d_depth_mean_gelu",
    sizes="""
        batch_size = 16
        channels = 8
        width = 24
        depth, height, breadth = 16, 48, 48
    """,
    arguments=("channels", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, depth, height, breadth)]",
    reference=Body(
        summary="3-D convolution, mean over depth, a bias per channel, GELU.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = x.mean(dim=2)
            x = x + self.bias
            return F.gelu(x)
        """,
    ),
    rewrites={
        "window_means_then_conv2d": Body(
            summary="The mean over depth goes through the convolution: 2-D, on three means of the input per channel.",
            init=_FLAT,
            forward="""
                levels = x.shape[2] - 2
                means = [x[:, :, start : start + levels].mean(dim=2) for start in range(3)]
                y = torch.stack(means, dim=2).flatten(1, 2)
                return F.gelu(F.conv2d(y, self.flat_weight, self.flat_bias))
            """,
        ),
        "pooled_input": Body(
            init=_FLAT,
            forward="""
                means = F.avg_pool3d(x, (x.shape[2] - 2, 1, 1), stride=1)
                return F.gelu(F.conv2d(means.flatten(1, 2), self.flat_weight, self.flat_bias))
            """,
        ),
        "one_sum_and_corrections": Body(
            summary="One sum over all levels; the three windows differ from it in two levels each.",
            init=_FLAT,
            methods='''
                def window_means(self, x):
                    """Means over the depths that the first, second and third tap see, as (batch, 3 * channels, ...)."""
                    depth = x.shape[2]
                    levels = depth - 2
                    total = x.sum(dim=2)
                    first, second = x[:, :, 0], x[:, :, 1]
                    last, before_last = x[:, :, depth - 1], x[:, :, depth - 2]
                    means = x.new_empty(x.shape[0], x.shape[1], 3, x.shape[3], x.shape[4])
                    means[:, :, 0] = total - last - before_last
                    means[:, :, 1] = total - first - last
                    means[:, :, 2] = total - first - second
                    return means.div_(levels).flatten(1, 2)
            ''',
            forward="return F.gelu(F.conv2d(self.window_means(x), self.flat_weight, self.flat_bias))",
        ),
        "means_as_product": Body(
            summary="Window means as a product with a constant matrix of three rows.",
            init=_FLAT + '    self.register_buffer("windows", torch.empty(0, 0), persistent=False)\n',
            forward="""
                n, c, d, h, w = x.shape
                if self.windows.shape[-1] != d or self.windows.device != x.device:
                    windows = torch.zeros(3, d, device=x.device)
                    for tap in range(3):
                        windows[tap, tap : tap + d - 2] = 1.0 / (d - 2)
                    self.windows = windows
                y = torch.matmul(self.windows, x.reshape(n, c, d, h * w))
                return F.gelu(F.conv2d(y.view(n, 3 * c, h, w), self.flat_weight, self.flat_bias))
            """,
        ),
        "folded_bias": Body(
            init=_FLAT,
            forward="return F.gelu(F.conv3d(x, self.conv.weight, self.flat_bias).mean(dim=2))",
        ),
        "level_by_level": Body(
            summary="A 2-D convolution per depth of the output, added up.",
            init=_FLAT,
            forward="""
                levels = x.shape[2] - 2
                total = 0
                for level in range(levels):
                    part = x[:, :, level : level + 3].flatten(1, 2)
                    total = total + F.conv2d(part, self.flat_weight)
                return F.gelu(total / levels + self.flat_bias.view(-1, 1, 1))
            """,
        ),
        "scripted_tail": Body(
            before=_SCRIPTED, forward="return scripted.mean_bias_gelu(self.conv(x), self.bias)"
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_FLAT,
            forward="""
                y = F.conv3d(x, self.conv.weight).contiguous()
                n, c, d, h, w = y.shape
                out = torch.empty((n, c, h, w), device=y.device, dtype=y.dtype)
                depth_mean_gelu_kernel[(triton.cdiv(h * w, 512), n * c)](
                    y, self.flat_bias, out, c, d, h * w, BLOCK=512
                )
                return out
            """,
        ),
    },
    carries_on="window_means_then_conv2d",
)
