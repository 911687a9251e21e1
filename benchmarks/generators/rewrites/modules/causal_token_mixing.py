"""Mixing of tokens by a learned lower-triangular matrix with rows that sum to one, and a gate."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MIX_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mix_kernel(w_ptr, x_ptr, out_ptr, tokens, channels,
               BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    tile = tl.program_id(0)
    base = tl.program_id(2) * tokens * channels
    rows = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)
    # Blocks right of the diagonal are zero and are not visited.
    for start in range(0, (tile + 1) * BLOCK_T, BLOCK_S):
        at = start + tl.arange(0, BLOCK_S)
        w = tl.load(w_ptr + rows[:, None] * tokens + at[None, :],
                    mask=(rows[:, None] < tokens) & (at[None, :] < tokens), other=0.0)
        x = tl.load(x_ptr + base + at[:, None] * channels + cols[None, :],
                    mask=(at[:, None] < tokens) & (cols[None, :] < channels), other=0.0)
        acc = MULTIPLY
    keep = (rows[:, None] < tokens) & (cols[None, :] < channels)
    place = base + rows[:, None] * channels + cols[None, :]
    gate = tl.load(x_ptr + place, mask=keep, other=0.0)
    tl.store(out_ptr + place, acc * tl.sigmoid(gate), mask=keep)
"""

_INIT = """
    self.mix = nn.Parameter(torch.randn(tokens, tokens))
"""

_WEIGHTS = """
    with torch.no_grad():
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)
        weights = torch.softmax(self.mix.masked_fill(mask, float("-inf")), dim=-1)
    self.register_buffer("weights", weights)
"""

MODULE = Rewritten(
    name="causal_token_mixing",
    sizes="""
        batch_size = 32
        tokens = 512
        channels = 256
    """,
    arguments=("tokens",),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, channels)]",
    reference=Body(
        summary="Each token becomes a weighted mean of those up to it, gated by itself.",
        init=_INIT,
        forward="""
            t = x.shape[1]
            mask = torch.tril(torch.ones(t, t, device=x.device))
            scores = self.mix.masked_fill(mask == 0, float("-inf"))
            weights = F.softmax(scores, dim=-1)
            mixed = torch.matmul(weights, x)
            return mixed * torch.sigmoid(x)
        """,
    ),
    rewrites={
        "kept_mask": Body(
            init=_INIT
            + """
    self.register_buffer("future", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))
""",
            forward="""
                w = self.mix.masked_fill(self.future, float("-inf")).softmax(dim=-1)
                return torch.matmul(w, x).mul_(torch.sigmoid(x))
            """,
        ),
        "kept_weights": Body(
            init=_INIT + _WEIGHTS,
            forward="return torch.matmul(self.weights, x).mul_(x.sigmoid())",
        ),
        "repeated_weights": Body(
            forward="""
                batch, t, _ = x.shape
                future = torch.arange(t, device=x.device)
                future = future[None, :] > future[:, None]
                w = torch.softmax(self.mix.masked_fill(future, float("-inf")), dim=-1)
                w = w.repeat(batch, 1, 1).contiguous()
                return torch.bmm(w, x) * torch.sigmoid(x)
            """
        ),
        "one_wide_product": Body(
            summary="All sequences side by side, so that the mixing is one large product.",
            init=_INIT + _WEIGHTS,
            forward="""
                batch, t, c = x.shape
                wide = x.permute(1, 0, 2).reshape(t, batch * c)
                mixed = torch.mm(self.weights, wide)
                mixed = mixed.view(t, batch, c).permute(1, 0, 2)
                return (mixed * torch.sigmoid(x)).contiguous()
            """,
        ),
        "blocks_of_rows": Body(
            summary="Skips most of the zero half: block rows multiply only what lies left of their end.",
            init=_INIT
            + _WEIGHTS
            + """
    self.block = 128
""",
            forward="""
                t = x.shape[1]
                mixed = torch.empty_like(x)
                for start, stop in self.spans(t):
                    torch.matmul(self.weights[start:stop, :stop], x[:, :stop], out=mixed[:, start:stop])
                return mixed.mul_(torch.sigmoid(x))
            """,
            methods="""
                def spans(self, t):
                    return [(start, min(start + self.block, t)) for start in range(0, t, self.block)]
            """,
        ),
        "transposed_linear": Body(
            init=_INIT + _WEIGHTS,
            forward="""
                # Tokens last, so that F.linear mixes them.
                mixed = F.linear(x.transpose(1, 2), self.weights).transpose(1, 2)
                return mixed * torch.sigmoid(x)
            """,
        ),
        "triton_triangle": Body(
            before=_MIX_KERNEL.replace("MULTIPLY", 'tl.dot(w, x, acc, input_precision="tf32x3")'),
            init=_INIT + _WEIGHTS,
            forward="""
                batch, t, c = x.shape
                out = torch.empty_like(x)
                grid = (triton.cdiv(t, 64), triton.cdiv(c, 64), batch)
                mix_kernel[grid](self.weights, x, out, t, c, BLOCK_T=64, BLOCK_S=32, BLOCK_C=64, num_warps=4)
                return out
            """,
        ),
        "triton_half": Body(
            before=_MIX_KERNEL.replace("MULTIPLY", "tl.dot(w.to(tl.float16), x.to(tl.float16), acc)"),
            init=_INIT + _WEIGHTS,
            forward="""
                x = x.contiguous()
                batch, t, c = x.shape
                out = torch.empty_like(x)
                grid = (triton.cdiv(t, 128), triton.cdiv(c, 128), batch)
                mix_kernel[grid](self.weights, x, out, t, c, BLOCK_T=128, BLOCK_S=64, BLOCK_C=128, num_warps=8)
                return out
            """,
        ),
    },
    carries_on="kept_weights",
)
