"""Two linear layers with nothing between, SELU, a third linear layer and two residuals."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL = """
import triton
import triton.language as tl


@triton.jit
def add_three_kernel(y_ptr, x_ptr, h_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    y = tl.load(y_ptr + at, mask=keep, other=0.0)
    x = tl.load(x_ptr + at, mask=keep, other=0.0)
    h = tl.load(h_ptr + at, mask=keep, other=0.0)
    tl.store(out_ptr + at, y + x + h, mask=keep)


def add_three(y, x, h):
    x = x.contiguous()
    out = torch.empty_like(y)
    total = out.numel()
    add_three_kernel[(triton.cdiv(total, 1024),)](y, x, h, out, total, BLOCK=1024)
    return out
"""

_PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, M, N, K,
    SELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    # out = x @ w.T + b, with w of shape (N, K)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + ks
        a = tl.load(
            x_ptr + rows[:, None] * K + k[None, :],
            mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0,
        )
        w = tl.load(
            w_ptr + cols[None, :] * K + k[:, None],
            mask=(cols[None, :] < N) & (k[:, None] < K), other=0.0,
        )
        acc += tl.dot(a, w, input_precision="ieee")
    acc += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[None, :]
    if SELU:
        negative = 1.6732632423543772 * (tl.exp(tl.minimum(acc, 0.0)) - 1.0)
        acc = 1.0507009873554805 * tl.where(acc > 0.0, acc, negative)
    tl.store(
        out_ptr + rows[:, None] * N + cols[None, :], acc,
        mask=(rows[:, None] < M) & (cols[None, :] < N),
    )


def linear(x, weight, bias, selu=False):
    m, k = x.shape
    n = weight.shape[0]
    out = torch.empty(m, n, device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    linear_kernel[grid](x, weight, bias, out, m, n, k, SELU=selu, BM=64, BN=64, BK=32, num_warps=4)
    return out
"""

_INIT = """
    self.up = nn.Linear(dim, inner)
    self.down = nn.Linear(inner, dim)
    self.out = nn.Linear(dim, dim)
"""

_MERGED = (
    _INIT
    + """
    with torch.no_grad():
        self.register_buffer("chain_weight", self.down.weight @ self.up.weight)
        self.register_buffer("chain_bias", self.down.weight @ self.up.bias + self.down.bias)
"""
)

MODULE = Rewritten(
    name="linear_chain_residual",
    sizes="""
        batch_size = 512
        dim = 1024
        inner = 4096
    """,
    arguments=("dim", "inner"),
    takes="x",
    inputs="[torch.randn(batch_size, dim)]",
    reference=Body(
        summary="Two linear layers in a row, SELU, a linear layer, and the input and the hidden state added.",
        init=_INIT,
        forward="""
            h = self.down(self.up(x))
            h = F.selu(h)
            y = self.out(h)
            y = y + x
            y = y + h
            return y
        """,
    ),
    rewrites={
        "merged_chain": Body(
            init=_MERGED,
            forward="""
                h = F.selu(F.linear(x, self.chain_weight, self.chain_bias))
                return self.out(h).add_(x).add_(h)
            """,
        ),
        "merged_chain_identity": Body(
            summary="One matrix for the first two layers; the hidden residual is an identity inside the last one.",
            init=_MERGED
            + """
    with torch.no_grad():
        identity = torch.eye(dim, device=self.out.weight.device)
        self.register_buffer("out_weight", (self.out.weight + identity).t().contiguous())
""",
            forward="""
                h = F.selu_(torch.addmm(self.chain_bias, x, self.chain_weight.t()))
                y = torch.addmm(self.out.bias, h, self.out_weight)
                return y.add_(x)
            """,
        ),
        "merged_each_call": Body(
            summary="Multiplies the two weight matrices first, because no activation stands between them.",
            forward="""
                weight = self.down.weight @ self.up.weight
                bias = torch.mv(self.down.weight, self.up.bias) + self.down.bias
                h = F.selu(F.linear(x, weight, bias))
                return torch.addmm(x + h, h, self.out.weight.t()) + self.out.bias
            """,
        ),
        "in_place": Body(
            forward="""
                h = F.selu(self.down(self.up(x)), inplace=True)
                y = self.out(h)
                y += x
                y += h
                return y
            """
        ),
        "cached_merge": Body(
            summary="Keeps the merged matrix of the first two layers and rebuilds it when a parameter changes.",
            init=_INIT
            + """
    self._cache_key = None
    self._cache = None
""",
            forward="""
                if x.dim() != 2:
                    raise ValueError(f"expected a matrix, got {tuple(x.shape)}")
                weight, bias = self._merged()
                h = torch.addmm(bias, x, weight)
                h = F.selu_(h)
                # Both residuals enter the last product as what it adds to.
                residual = torch.add(x, h).add_(self.out.bias)
                return torch.addmm(residual, h, self.out.weight.t())
            """,
            methods="""
                def _key(self):
                    parameters = (self.up.weight, self.up.bias, self.down.weight, self.down.bias)
                    return tuple((p.data_ptr(), p.device, p.dtype) for p in parameters)

                @torch.no_grad()
                def _merged(self):
                    key = self._key()
                    if key != self._cache_key:
                        weight = self.up.weight.t() @ self.down.weight.t()
                        bias = F.linear(self.up.bias, self.down.weight, self.down.bias)
                        self._cache = (weight.contiguous(), bias)
                        self._cache_key = key
                    return self._cache
            """,
        ),
        "row_chunks": Body(
            summary="Runs the block on 32 rows at a time so that the wide activation stays small.",
            forward="""
                out = torch.empty_like(x)
                for start in range(0, x.shape[0], 32):
                    rows = x[start:start + 32]
                    h = F.selu(self.down(self.up(rows)))
                    out[start:start + 32] = self.out(h) + rows + h
                return out
            """,
        ),
        "triton_residual_tail": Body(
            before=_TAIL,
            forward="""
                h = F.selu(self.down(self.up(x)))
                return add_three(self.out(h), x, h)
            """,
        ),
        "triton_products": Body(
            before=_PRODUCT,
            summary="Own products with SELU as the epilogue of the second.",
            forward="""
                x = x.contiguous()
                h = linear(x, self.up.weight, self.up.bias)
                h = linear(h, self.down.weight, self.down.bias, selu=True)
                return linear(h, self.out.weight, self.out.bias) + x + h
            """,
        ),
    },
    carries_on="merged_chain_identity",
)
