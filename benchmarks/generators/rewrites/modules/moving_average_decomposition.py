"""A series split into its moving average, with the ends repeated, and what is left."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def decompose(x_ptr, out_ptr, steps, channels, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    step = tl.program_id(1)
    cols = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < channels
    base = x_ptr + sample * steps * channels
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(WINDOW):
        at = tl.minimum(tl.maximum(step + k - WINDOW // 2, 0), steps - 1)
        total += tl.load(base + at * channels + cols, mask=keep, other=0.0)
    trend = total / WINDOW
    x = tl.load(base + step * channels + cols, mask=keep, other=0.0)
    out = out_ptr + (sample * steps + step) * 2 * channels
    tl.store(out + cols, x - trend, mask=keep)
    tl.store(out + channels + cols, trend, mask=keep)
"""

_INIT = """
    self.window = window
    self.side = window // 2
"""

MODULE = Rewritten(
    name="moving_average_decomposition",
    sizes="""
        batch_size = 64
        steps = 720
        channels = 256
        window = 25
    """,
    arguments=("steps", "window"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, channels)]",
    reference=Body(
        summary="Decomposes a multivariate series into seasonal part and trend, side by side.",
        init=_INIT + "    self.average = nn.AvgPool1d(kernel_size=window, stride=1)\n",
        forward="""
            front = x[:, :1, :].repeat(1, self.side, 1)
            end = x[:, -1:, :].repeat(1, self.side, 1)
            padded = torch.cat([front, x, end], dim=1)
            trend = self.average(padded.permute(0, 2, 1)).permute(0, 2, 1)
            seasonal = x - trend
            return torch.cat([seasonal, trend], dim=-1)
        """,
    ),
    rewrites={
        "replicate_pad": Body(
            init=_INIT,
            forward="""
                padded = F.pad(x.transpose(1, 2), (self.side, self.side), mode="replicate")
                trend = F.avg_pool1d(padded, self.window, stride=1).transpose(1, 2)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "pool_along_rows": Body(
            init=_INIT,
            summary="Pools along time with a tall window, so that channels stay last and nothing is transposed.",
            forward="""
                front = x[:, :1].expand(-1, self.side, -1)
                end = x[:, -1:].expand(-1, self.side, -1)
                padded = torch.cat([front, x, end], dim=1).unsqueeze(1)
                trend = F.avg_pool2d(padded, (self.window, 1), stride=1).squeeze(1)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "prefix_differences": Body(
            init=_INIT,
            forward="""
                # a window's sum is the difference of two prefix sums
                front = x[:, :1].expand(-1, self.side + 1, -1)
                end = x[:, -1:].expand(-1, self.side, -1)
                prefix = torch.cat([front, x, end], dim=1).cumsum(dim=1)
                trend = (prefix[:, self.window :] - prefix[:, : -self.window]) / self.window
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "banded_matrix": Body(
            summary="""Decomposition as one matrix product per sample.

    Row t of the matrix holds the weights of the window at step t; the repeated ends are added to the first
    and the last column.
    """,
            init=_INIT
            + """
    offsets = torch.arange(-self.side, self.side + 1)
    columns = (torch.arange(steps)[:, None] + offsets[None, :]).clamp(0, steps - 1)
    band = torch.zeros(steps, steps)
    band.scatter_add_(1, columns, torch.full(columns.shape, 1.0 / window))
    self.register_buffer("band", band)
""",
            forward="""
                out = torch.empty(x.shape[0], x.shape[1], 2 * x.shape[2], device=x.device, dtype=x.dtype)
                trend = torch.matmul(self.band, x)
                torch.sub(x, trend, out=out[:, :, : x.shape[2]])
                out[:, :, x.shape[2] :].copy_(trend)
                return out
            """,
        ),
        "unfolded_mean": Body(
            init=_INIT,
            forward="""
                padded = F.pad(x.permute(0, 2, 1), (self.side, self.side), mode="replicate")
                trend = padded.unfold(2, self.window, 1).mean(dim=-1).permute(0, 2, 1)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "depthwise_convolution": Body(
            init=_INIT + '    self.register_buffer("kernel", torch.full((1, 1, window), 1.0 / window))\n',
            methods="""
                def _smooth(self, x):
                    batch, steps, channels = x.shape
                    series = x.transpose(1, 2).reshape(batch * channels, 1, steps)
                    series = F.pad(series, (self.side, self.side), mode="replicate")
                    return F.conv1d(series, self.kernel).view(batch, channels, steps).transpose(1, 2)
            """,
            forward="""
                trend = self._smooth(x)
                return torch.cat([x - trend, trend], dim=2)
            """,
        ),
        "shifted_sums": Body(
            init=_INIT,
            forward="""
                steps = x.shape[1]
                index = torch.arange(-self.side, steps + self.side, device=x.device).clamp_(0, steps - 1)
                padded = x.index_select(1, index)
                trend = padded[:, :steps].clone()
                for k in range(1, self.window):
                    trend += padded[:, k : k + steps]
                trend /= self.window
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "triton_window": Body(
            before=_KERNEL,
            init=_INIT,
            forward="""
                x = x.contiguous()
                batch, steps, channels = x.shape
                out = torch.empty(batch, steps, 2 * channels, device=x.device)
                grid = (batch, steps, triton.cdiv(channels, 256))
                decompose[grid](x, out, steps, channels, WINDOW=self.window, BLOCK=256, num_warps=4)
                return out
            """,
        ),
    },
    carries_on="prefix_differences",
)
