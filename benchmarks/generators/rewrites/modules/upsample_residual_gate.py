"""A transposed convolution that doubles the side, the upsampled input added, a clamp and a gate per channel."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def shuffle_add_clamp_gate_kernel(
    y_ptr, x_ptr, bias_ptr, gate_ptr, out_ptr, channels, height, width, total, bound, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    column = at % (2 * width)
    row = (at // (2 * width)) % (2 * height)
    plane = at // (4 * width * height)
    channel = plane % channels
    tap = (row % 2) * 2 + column % 2
    pixel = (row // 2) * width + column // 2
    area = height * width
    y = tl.load(y_ptr + (plane * 4 + tap) * area + pixel, mask=keep, other=0.0)
    x = tl.load(x_ptr + plane * area + pixel, mask=keep, other=0.0)
    y = y + tl.load(bias_ptr + channel, mask=keep, other=0.0) + x
    y = tl.minimum(tl.maximum(y, -bound), bound)
    tl.store(out_ptr + at, y * tl.load(gate_ptr + channel, mask=keep, other=0.0), mask=keep)
"""

_INIT = """
    self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
    self.gate = nn.Parameter(torch.randn(channels, 1, 1))
"""

_ADDED = (
    _INIT
    + """
    with torch.no_grad():
        weight = self.up.weight.clone()
        diagonal = torch.arange(channels)
        weight[diagonal, diagonal] += 1.0
        self.register_buffer("weight", weight)
        self.register_buffer("gates", torch.sigmoid(self.gate))
"""
)

MODULE = Rewritten(
    name="upsample_residual_gate",
    sizes="""
        batch_size = 16
        channels = 32
        height = 48
        width = 64
    """,
    arguments=("channels",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Learned upsampling by two with the input's nearest-neighbour upsampling added, clamped and gated.",
        init=_INIT,
        forward="""
            y = self.up(x)
            skip = F.interpolate(x, scale_factor=2, mode="nearest")
            y = y + skip
            y = torch.clamp(y, -1.5, 1.5)
            gate = torch.sigmoid(self.gate)
            return y * gate
        """,
    ),
    rewrites={
        "in_place": Body(
            forward="""
                y = self.up(x)
                y.add_(F.interpolate(x, scale_factor=2, mode="nearest"))
                return y.clamp_(-1.5, 1.5).mul_(torch.sigmoid(self.gate))
            """
        ),
        "residual_in_weights": Body(
            summary="Nearest-neighbour upsampling is a transposed convolution by ones: add it to the weights.",
            init=_ADDED,
            forward="""
                y = F.conv_transpose2d(x, self.weight, self.up.bias, stride=2)
                return y.clamp_(-1.5, 1.5).mul_(self.gates)
            """,
        ),
        "product_and_pixel_shuffle": Body(
            summary="Kernel and stride agree, so each pixel becomes four by one matrix product.",
            init=_ADDED
            + """
    self.register_buffer("matrix", self.weight.view(channels, -1).t().contiguous())
    self.register_buffer("biases", self.up.bias.detach().repeat_interleave(4).view(1, -1, 1))
""",
            forward="""
                n, c, h, w = x.shape
                y = torch.baddbmm(self.biases, self.matrix.expand(n, -1, -1), x.reshape(n, c, h * w))
                y = F.pixel_shuffle(y.view(n, 4 * c, h, w), 2)
                return y.clamp_(-1.5, 1.5).mul_(self.gates)
            """,
        ),
        "clamp_before_shuffle": Body(
            init=_ADDED
            + """
    self.register_buffer("kernel", self.weight.permute(1, 2, 3, 0).reshape(4 * channels, channels, 1, 1).contiguous())
    self.register_buffer("biases", self.up.bias.detach().repeat_interleave(4))
    self.register_buffer("gates4", self.gates.repeat_interleave(4, dim=0))
""",
            forward="""
                y = F.conv2d(x, self.kernel, self.biases)
                y = F.hardtanh_(y, -1.5, 1.5).mul_(self.gates4)
                return F.pixel_shuffle(y, 2)
            """,
        ),
        "skip_by_broadcasting": Body(
            init=_INIT + '    self.register_buffer("gates", torch.sigmoid(self.gate.detach()))\n',
            forward="""
                n, c, h, w = x.shape
                y = self.up(x).view(n, c, h, 2, w, 2)
                y = y + x.view(n, c, h, 1, w, 1)
                return y.clamp_(-1.5, 1.5).view(n, c, 2 * h, 2 * w).mul_(self.gates)
            """,
        ),
        "four_strided_writes": Body(
            summary="One pointwise convolution for each of the four positions, written into its place.",
            init=_ADDED,
            methods='''
                def position(self, x, row, column):
                    """What lands on one of the four positions of each doubled pixel."""
                    kernel = self.weight[:, :, row, column].t()[:, :, None, None]
                    y = F.conv2d(x, kernel, self.up.bias)
                    return torch.clamp(y, min=-1.5, max=1.5) * self.gates
            ''',
            forward="""
                n, c, h, w = x.shape
                out = torch.empty(n, c, 2 * h, 2 * w, dtype=x.dtype, device=x.device)
                for row in (0, 1):
                    for column in (0, 1):
                        out[:, :, row::2, column::2] = self.position(x, row, column)
                return out
            """,
        ),
        "triton_shuffle_tail": Body(
            before=_TAIL_KERNEL,
            init=_INIT
            + """
    with torch.no_grad():
        matrix = self.up.weight.view(channels, -1).t().contiguous()
        self.register_buffer("matrix", matrix)
        self.register_buffer("gates", torch.sigmoid(self.gate).flatten())
""",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                y = torch.matmul(self.matrix, x.view(n, c, h * w))
                out = torch.empty((n, c, 2 * h, 2 * w), device=x.device, dtype=x.dtype)
                total = out.numel()
                shuffle_add_clamp_gate_kernel[(triton.cdiv(total, 1024),)](
                    y, x, self.up.bias, self.gates, out, c, h, w, total, 1.5, BLOCK=1024
                )
                return out
            """,
        ),
    },
    images=True,
    carries_on="residual_in_weights",
)
