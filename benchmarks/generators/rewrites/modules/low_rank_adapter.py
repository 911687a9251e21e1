"""A linear layer with a scaled low-rank correction beside it."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_UP_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def up_kernel(y_ptr, h_ptr, up_ptr, rows_count, width, scale,
              RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rank = tl.arange(0, RANK)
    h = tl.load(h_ptr + rows[:, None] * RANK + rank[None, :], mask=rows[:, None] < rows_count, other=0.0)
    up = tl.load(up_ptr + cols[None, :] * RANK + rank[:, None], mask=cols[None, :] < width, other=0.0)
    keep = (rows[:, None] < rows_count) & (cols[None, :] < width)
    at = y_ptr + rows[:, None] * width + cols[None, :]
    y = tl.load(at, mask=keep, other=0.0)
    tl.store(at, y + scale * tl.dot(h, up, input_precision="ieee"), mask=keep)
"""

_INIT = """
    self.base = nn.Linear(features, width)
    self.down = nn.Linear(features, rank, bias=False)
    self.up = nn.Linear(rank, width, bias=False)
    self.scale = 32.0 / rank
"""

MODULE = Rewritten(
    name="low_rank_adapter",
    sizes="""
        tokens = 3072
        features = 1024
        width = 1024
        rank = 16
    """,
    arguments=("features", "width", "rank"),
    takes="x",
    inputs="[torch.randn(tokens, features)]",
    reference=Body(
        summary="A frozen linear layer plus a low-rank adapter: W x + b + scale * U (D x).",
        init=_INIT,
        forward="""
            y = self.base(x)
            correction = self.up(self.down(x)) * self.scale
            return y + correction
        """,
    ),
    rewrites={
        "merged_each_call": Body(
            forward="""
                weight = self.base.weight + self.scale * (self.up.weight @ self.down.weight)
                return F.linear(x, weight, self.base.bias)
            """
        ),
        "merged_once": Body(
            summary="The adapter is merged into the weight on first use and again whenever a weight has changed.",
            init=_INIT
            + """
    self.merged = None
    self.merged_for = None
""",
            forward="return F.linear(x, self.merged_weight(), self.base.bias)",
            methods='''
                def merged_weight(self):
                    """The sum of the weights, from the cache where it is still right."""
                    sources = (self.base.weight, self.down.weight, self.up.weight)
                    state = tuple((weight.data_ptr(), weight._version, weight.device) for weight in sources)
                    if self.merged is None or self.merged_for != state:
                        self.merged = torch.addmm(
                            self.base.weight, self.up.weight, self.down.weight, alpha=self.scale
                        ).contiguous()
                        self.merged_for = state
                    return self.merged
            ''',
        ),
        "accumulating_product": Body(
            forward="""
                y = torch.addmm(self.base.bias, x, self.base.weight.t())
                return y.addmm_(x @ self.down.weight.t(), self.up.weight.t(), alpha=self.scale)
            """
        ),
        "stacked_down": Body(
            summary="Base and down projections read the input once, as one product with stacked weights.",
            init=_INIT
            + """
    self.width = width
    with torch.no_grad():
        self.register_buffer("stacked", torch.cat([self.base.weight, self.down.weight * self.scale]))
        self.register_buffer("stacked_bias", torch.cat([self.base.bias, torch.zeros(rank)]))
""",
            forward="""
                both = F.linear(x, self.stacked, self.stacked_bias)
                return torch.addmm(both[:, : self.width], both[:, self.width :], self.up.weight.t())
            """,
        ),
        "joined_inputs": Body(
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("joined", torch.cat([self.base.weight, self.scale * self.up.weight], dim=1))
""",
            forward="return F.linear(torch.cat([x, self.down(x)], dim=1), self.joined, self.base.bias)",
        ),
        "dense_correction": Body(
            forward="""
                # Form the correction matrix first so that only two products touch the activations.
                delta = torch.mm(self.down.weight.t(), self.up.weight.t()).mul_(self.scale)
                return torch.addmm(F.linear(x, self.base.weight, self.base.bias), x, delta)
            """
        ),
        "rank_by_rank": Body(
            forward="""
                y = self.base(x)
                h = self.down(x) * self.scale
                for r in range(h.shape[1]):
                    y.addcmul_(h[:, r : r + 1], self.up.weight[:, r])
                return y
            """
        ),
        "triton_up": Body(
            before=_UP_KERNEL,
            forward="""
                y = self.base(x)
                h = self.down(x)
                n, width = y.shape
                grid = (triton.cdiv(n, 32), triton.cdiv(width, 128))
                up_kernel[grid](y, h, self.up.weight, n, width, self.scale,
                                RANK=h.shape[1], BLOCK_R=32, BLOCK_C=128, num_warps=4)
                return y
            """,
        ),
    },
    carries_on="merged_once",
)
