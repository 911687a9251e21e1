"""A 1-D convolution with both a stride and a dilation, on short signals."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAPS_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, length, out_length, out_channels,
    C: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_L: tl.constexpr,
):
    sample = tl.program_id(2)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    at = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    c = tl.arange(0, C)
    acc = tl.zeros((BLOCK_O, BLOCK_L), dtype=tl.float32)
    for tap in tl.static_range(K):
        w = tl.load(
            w_ptr + (o[:, None] * C + c[None, :]) * K + tap, mask=o[:, None] < out_channels, other=0.0
        )
        x = tl.load(
            x_ptr + (sample * C + c[:, None]) * length + at[None, :] * STRIDE + tap * DILATION,
            mask=at[None, :] < out_length,
            other=0.0,
        )
        acc += tl.dot(w, x, input_precision="ieee")
    acc += tl.load(bias_ptr + o, mask=o < out_channels, other=0.0)[:, None]
    keep = (o[:, None] < out_channels) & (at[None, :] < out_length)
    tl.store(out_ptr + (sample * out_channels + o[:, None]) * out_length + at[None, :], acc, mask=keep)
"""

_PLAIN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def plain_conv(
    x_ptr, w_ptr, bias_ptr, out_ptr, channels, length, out_channels, out_length, stride, dilation,
    K: tl.constexpr, BLOCK: tl.constexpr,
):
    o = tl.program_id(0)
    sample = tl.program_id(1)
    for start in range(0, out_length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        keep = at < out_length
        acc = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias_ptr + o)
        for c in range(channels):
            for tap in tl.static_range(K):
                w = tl.load(w_ptr + (o * channels + c) * K + tap)
                signal = x_ptr + (sample * channels + c) * length + at * stride + tap * dilation
                acc += w * tl.load(signal, mask=keep, other=0.0)
        tl.store(out_ptr + (sample * out_channels + o) * out_length + at, acc, mask=keep)
"""

_INIT = """
    self.conv = nn.Conv1d(channels, width, kernel, stride=stride, dilation=dilation)
    self.kernel = kernel
    self.stride = stride
    self.dilation = dilation
"""

MODULE = Rewritten(
    name="conv1d_dilated_strided",
    sizes="""
        batch_size = 8
        channels = 32
        width = 64
        length = 1200
        kernel = 5
        stride = 2
        dilation = 3
    """,
    arguments=("channels", "width", "kernel", "stride", "dilation"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, length)]",
    reference=Body(
        summary="A convolution of five taps, three apart, at every second position.",
        init=_INIT,
        forward="return self.conv(x)",
    ),
    rewrites={
        "functional": Body(
            forward="""
                weight, bias = self.conv.weight, self.conv.bias
                return F.conv1d(x, weight, bias, stride=self.stride, dilation=self.dilation)
            """
        ),
        "two_dimensional": Body(
            summary="The same as a 2-D convolution over images of height one.",
            init=_INIT
            + '    self.register_buffer("weight2d", self.conv.weight.detach().unsqueeze(2).clone())\n',
            forward="""
                y = F.conv2d(
                    x.unsqueeze(2),
                    self.weight2d,
                    self.conv.bias,
                    stride=(1, self.stride),
                    dilation=(1, self.dilation),
                )
                return y.squeeze(2)
            """,
        ),
        "even_and_odd": Body(
            summary="Splits the signal by parity: even taps then see even samples at stride one, odd taps odd ones.",
            init=_INIT
            + """
    if stride != 2 or dilation % 2 == 0:
        raise ValueError("needs a stride of two and an odd dilation")
    with torch.no_grad():
        self.register_buffer("even_taps", self.conv.weight[:, :, 0::2].clone())
        self.register_buffer("odd_taps", self.conv.weight[:, :, 1::2].clone())
""",
            forward="""
                out_length = (x.shape[-1] - self.dilation * (self.kernel - 1) - 1) // 2 + 1
                even = x[..., 0::2].contiguous()
                odd = x[..., self.dilation :: 2].contiguous()
                y = F.conv1d(even, self.even_taps, self.conv.bias, dilation=self.dilation)[..., :out_length]
                return y + F.conv1d(odd, self.odd_taps, dilation=self.dilation)[..., :out_length]
            """,
        ),
        "strided_view_product": Body(
            summary="im2col by as_strided, and one batched product with the bias added by it.",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("flat", self.conv.weight.reshape(1, width, channels * kernel).clone())
        self.register_buffer("column", self.conv.bias.view(1, width, 1).clone())
""",
            forward="""
                x = x.contiguous()
                n, c, length = x.shape
                out_length = (length - self.dilation * (self.kernel - 1) - 1) // self.stride + 1
                windows = x.as_strided(
                    (n, c, self.kernel, out_length), (c * length, length, self.dilation, self.stride)
                )
                columns = windows.reshape(n, c * self.kernel, out_length)
                return torch.baddbmm(self.column, self.flat.expand(n, -1, -1), columns)
            """,
        ),
        "gathered_columns": Body(
            summary="The positions of all taps are gathered with an index that is made once per length.",
            init=_INIT + "    self._index = {}\n",
            forward="""
                n, c, length = x.shape
                index = self.index(length, x.device)
                columns = x.index_select(2, index.reshape(-1)).view(n, c, self.kernel, -1)
                y = torch.matmul(self.conv.weight.view(self.conv.out_channels, -1), columns.flatten(1, 2))
                return y.add_(self.conv.bias.unsqueeze(-1))
            """,
            methods="""
                def index(self, length, device):
                    key = (length, str(device))
                    index = self._index.get(key)
                    if index is None:
                        reach = self.dilation * (self.kernel - 1) + 1
                        count = (length - reach) // self.stride + 1
                        starts = torch.arange(count, device=device) * self.stride
                        taps = torch.arange(self.kernel, device=device) * self.dilation
                        index = taps.unsqueeze(1) + starts.unsqueeze(0)
                        self._index[key] = index
                    return index
            """,
        ),
        "tap_by_tap": Body(
            forward="""
                n = x.shape[0]
                reach = self.dilation * (self.kernel - 1)
                out_length = (x.shape[-1] - reach - 1) // self.stride + 1
                y = self.conv.bias.view(1, -1, 1).expand(n, -1, out_length)
                for tap in range(self.kernel):
                    first = tap * self.dilation
                    seen = x[:, :, first : first + self.stride * out_length : self.stride]
                    y = torch.baddbmm(y, self.conv.weight[:, :, tap].expand(n, -1, -1), seen)
                return y
            """
        ),
        "sample_by_sample": Body(
            summary="A product per sample of the batch, on its own columns.",
            forward="""
                reach = self.dilation * (self.kernel - 1) + 1
                weight = self.conv.weight.flatten(1)
                outputs = []
                for signal in x:
                    windows = signal.unfold(1, reach, self.stride)[..., :: self.dilation]
                    columns = windows.permute(0, 2, 1).reshape(weight.shape[1], -1)
                    outputs.append(torch.addmm(self.conv.bias.unsqueeze(1), weight, columns))
                return torch.stack(outputs)
            """,
        ),
        "triton_taps": Body(
            before=_TAPS_KERNEL,
            forward="""
                x = x.contiguous()
                n, c, length = x.shape
                width = self.conv.out_channels
                out_length = (length - self.dilation * (self.kernel - 1) - 1) // self.stride + 1
                out = torch.empty(n, width, out_length, device=x.device)
                grid = (triton.cdiv(out_length, 64), triton.cdiv(width, 32), n)
                conv_kernel[grid](
                    x, self.conv.weight, self.conv.bias, out, length, out_length, width,
                    C=c, K=self.kernel, STRIDE=self.stride, DILATION=self.dilation, BLOCK_O=32, BLOCK_L=64,
                )
                return out
            """,
        ),
        "triton_scalar_taps": Body(
            before=_PLAIN_KERNEL,
            forward="""
                n, c, length = x.shape
                out_length = (length - self.dilation * (self.kernel - 1) - 1) // self.stride + 1
                out = torch.empty(n, self.conv.out_channels, out_length, device=x.device)
                plain_conv[(self.conv.out_channels, n)](
                    x.contiguous(), self.conv.weight, self.conv.bias, out, c, length, self.conv.out_channels,
                    out_length, self.stride, self.dilation, K=self.kernel, BLOCK=256,
                )
                return out
            """,
        ),
    },
)
