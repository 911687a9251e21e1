"""Mean, deviation and maximum of each feature over time, side by side."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def time_statistics(x_ptr, out_ptr, steps, features, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = cols < features
    sums = tl.zeros([ROWS, COLS], dtype=tl.float32)
    squares = tl.zeros([ROWS, COLS], dtype=tl.float32)
    highest = tl.full([ROWS, COLS], -float("inf"), dtype=tl.float32)
    base = x_ptr + sample * steps * features
    for start in range(0, steps, ROWS):
        rows = start + tl.arange(0, ROWS)
        keep = (rows < steps)[:, None] & inside[None, :]
        x = tl.load(base + rows[:, None] * features + cols[None, :], mask=keep, other=0.0)
        sums += x
        squares += x * x
        highest = tl.maximum(highest, tl.where(keep, x, -float("inf")))
    mean = tl.sum(sums, axis=0) / steps
    var = tl.maximum(tl.sum(squares, axis=0) / steps - mean * mean, 0.0)
    out_ptr += sample * 3 * features
    tl.store(out_ptr + cols, mean, mask=inside)
    tl.store(out_ptr + features + cols, tl.sqrt(var + eps), mask=inside)
    tl.store(out_ptr + 2 * features + cols, tl.max(highest, axis=0), mask=inside)
"""

MODULE = Rewritten(
    name="statistics_pooling",
    sizes="""
        batch_size = 96
        steps = 1000
        features = 512
    """,
    arguments=("features",),
    takes="x",
    inputs="[torch.randn(batch_size, steps, features) + 0.5]",
    in_half=False,
    reference=Body(
        summary="Pools a sequence into its mean, standard deviation and maximum per feature.",
        init="""
            self.features = features
            self.eps = 1e-5
        """,
        forward="""
            mean = torch.mean(x, dim=1, keepdim=True)
            var = torch.mean((x - mean) ** 2, dim=1, keepdim=True)
            std = torch.sqrt(var + self.eps)
            highest = torch.max(x, dim=1, keepdim=True)[0]
            return torch.cat([mean, std, highest], dim=-1).squeeze(1)
        """,
    ),
    rewrites={
        "var_mean_amax": Body(
            forward="""
                var, mean = torch.var_mean(x, dim=1, correction=0)
                return torch.cat([mean, (var + self.eps).sqrt_(), x.amax(dim=1)], dim=1)
            """
        ),
        "amax_only": Body(
            forward="""
                mean = x.mean(dim=1, keepdim=True)
                std = torch.sqrt((x - mean).square_().mean(dim=1, keepdim=True) + self.eps)
                return torch.cat([mean, std, torch.amax(x, dim=1, keepdim=True)], dim=-1).squeeze(1)
            """
        ),
        "second_moment": Body(
            forward="""
                mean = x.mean(dim=1)
                second = torch.square(x).mean(dim=1)
                std = torch.addcmul(second, mean, mean, value=-1).clamp_(min=0).add_(self.eps).sqrt_()
                return torch.cat([mean, std, x.amax(dim=1)], dim=1)
            """
        ),
        "moments_by_norm": Body(
            forward="""
                steps = x.shape[1]
                mean = torch.matmul(x.new_full((1, steps), 1.0 / steps), x).squeeze(1)
                norm = torch.linalg.vector_norm(x, dim=1)
                std = torch.sqrt(norm * norm / steps - mean * mean + self.eps)
                return torch.cat([mean, std, x.amax(dim=1)], dim=1)
            """
        ),
        "time_last": Body(
            forward="""
                y = x.transpose(1, 2).contiguous()
                var, mean = torch.var_mean(y, dim=-1, correction=0)
                return torch.cat([mean, torch.sqrt(var + self.eps), y.amax(dim=-1)], dim=1)
            """
        ),
        "library_pools": Body(
            summary="Statistics by one-dimensional pooling over the whole of the time axis.",
            forward="""
                y = x.transpose(1, 2)
                mean = F.adaptive_avg_pool1d(y, 1)
                second = F.adaptive_avg_pool1d(y * y, 1)
                highest = F.adaptive_max_pool1d(y, 1)
                std = torch.sqrt(second - mean * mean + self.eps)
                return torch.cat([mean, std, highest], dim=1).squeeze(-1)
            """,
        ),
        "preallocated_slices": Body(
            summary="""Statistics pooling that writes each part into its place in the result.

    The concatenation is saved; sums run over slabs of time and are merged.
    """,
            init="""
                self.features = features
                self.eps = 1e-5
                self.slab = 250
            """,
            methods="""
                def _merge(self, x, total, squares, highest):
                    for start in range(0, x.shape[1], self.slab):
                        slab = x[:, start : start + self.slab]
                        total += slab.sum(dim=1)
                        squares += (slab * slab).sum(dim=1)
                        torch.maximum(highest, slab.amax(dim=1), out=highest)
            """,
            forward="""
                batch, steps, features = x.shape
                out = x.new_zeros(batch, 3 * features)
                total, squares, highest = out.split(features, dim=1)
                highest.fill_(float("-inf"))
                self._merge(x, total, squares, highest)
                total.div_(steps)
                squares.div_(steps).sub_(total * total).clamp_(min=0).add_(self.eps).sqrt_()
                return out
            """,
        ),
        "triton_one_pass": Body(
            before=_KERNEL,
            forward="""
                batch, steps, features = x.shape
                out = torch.empty(batch, 3 * features, device=x.device)
                grid = (batch, triton.cdiv(features, 64))
                time_statistics[grid](
                    x.contiguous(), out, steps, features, self.eps, ROWS=32, COLS=64, num_warps=4
                )
                return out
            """,
        ),
    },
    carries_on="var_mean_amax",
)
