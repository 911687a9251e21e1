"""Cross-attention of a few learned latents to a long sequence, with a projection and a residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SOFTMAX_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def column_softmax_kernel(scores_ptr, length, cols, BLOCK: tl.constexpr, COLS: tl.constexpr):
    # softmax over the length of (batch, length, cols), a few columns per program, in place
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    base = scores_ptr + tl.program_id(1) * length * cols
    top = tl.full((COLS,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((COLS,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        n = start + tl.arange(0, BLOCK)
        inside = (n[:, None] < length) & (col[None, :] < cols)
        s = tl.load(base + n[:, None] * cols + col[None, :], mask=inside, other=-1.0e30)
        higher = tl.maximum(top, tl.max(s, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(s - higher[None, :]), axis=0)
        top = higher
    for start in range(0, length, BLOCK):
        n = start + tl.arange(0, BLOCK)
        inside = (n[:, None] < length) & (col[None, :] < cols)
        at = base + n[:, None] * cols + col[None, :]
        s = tl.load(at, mask=inside, other=0.0)
        tl.store(at, tl.exp(s - top[None, :]) / total[None, :], mask=inside)
"""

_ATTENTION_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def latent_kernel(q_ptr, kv_ptr, out_ptr, latents, heads, length, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    # A program per latent, head and sample. q: (latents, heads, D); kv: (batch, length, 2, heads, D).
    latent = tl.program_id(0)
    head = tl.program_id(1)
    sample = tl.program_id(2)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + (latent * heads + head) * D + d) * scale
    top = -1.0e30
    total = 0.0
    acc = tl.zeros((D,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        n = start + tl.arange(0, BLOCK)
        inside = n < length
        at = ((sample * length + n[:, None]) * 2 * heads + head) * D + d[None, :]
        k = tl.load(kv_ptr + at, mask=inside[:, None], other=0.0)
        v = tl.load(kv_ptr + at + heads * D, mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(k * q[None, :], axis=1), -1.0e30)
        higher = tl.maximum(top, tl.max(s, axis=0))
        p = tl.exp(s - higher)
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(p, axis=0)
        acc = acc * fade + tl.sum(p[:, None] * v, axis=0)
        top = higher
    tl.store(out_ptr + ((sample * latents + latent) * heads + head) * D + d, acc / total)
"""

_INIT = """
    self.heads = heads
    self.latents = nn.Parameter(torch.randn(latents, width))
    self.query = nn.Linear(width, width)
    self.key = nn.Linear(width, width)
    self.value = nn.Linear(width, width)
    self.out = nn.Linear(width, width)
"""

_PACKED = """
    with torch.no_grad():
        self.register_buffer("kv_weight", torch.cat([self.key.weight, self.value.weight]))
        self.register_buffer("kv_bias", torch.cat([self.key.bias, self.value.bias]))
"""

# (width, heads * latents): what a token's features are multiplied with for its scores; the key's bias shifts all
# scores of a latent alike, which the softmax does not see
_FOLDED_KEYS = """
    with torch.no_grad():
        size = width // heads
        q = self.query(self.latents).view(latents, heads, size) * size**-0.5
        folded = torch.einsum("lhd,hdc->chl", q, self.key.weight.view(heads, size, width))
        self.register_buffer("score_weight", folded.reshape(width, heads * latents).contiguous())
"""

MODULE = Rewritten(
    name="latent_cross_attention",
    sizes="""
        batch_size = 32
        length = 1024
        width = 256
        latents = 8
        heads = 4
    """,
    arguments=("width", "latents", "heads"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="Learned latents read a sequence by cross-attention.",
        init=_INIT,
        forward="""
            B, N, C = x.shape
            latents = self.latents.unsqueeze(0).expand(B, -1, -1)
            q = self.query(latents).view(B, -1, self.heads, C // self.heads).transpose(1, 2)
            k = self.key(x).view(B, N, self.heads, C // self.heads).transpose(1, 2)
            v = self.value(x).view(B, N, self.heads, C // self.heads).transpose(1, 2)
            weights = torch.softmax(q @ k.transpose(-2, -1) / (C // self.heads) ** 0.5, dim=-1)
            y = (weights @ v).transpose(1, 2).reshape(B, -1, C)
            return latents + self.out(y)
        """,
    ),
    rewrites={
        "library_attention": Body(
            forward="""
                B, N, C = x.shape
                H, D = self.heads, C // self.heads
                q = self.query(self.latents).view(1, -1, H, D).transpose(1, 2).expand(B, -1, -1, -1)
                k = self.key(x).view(B, N, H, D).transpose(1, 2)
                v = self.value(x).view(B, N, H, D).transpose(1, 2)
                y = F.scaled_dot_product_attention(q, k, v)
                return self.latents + self.out(y.transpose(1, 2).flatten(2))
            """
        ),
        "packed_keys_values": Body(
            summary="Keys and values in one product; queries do not depend on the input and are kept.",
            init=_INIT
            + _PACKED
            + """
    with torch.no_grad():
        q = self.query(self.latents).view(latents, heads, width // heads).transpose(0, 1)
        self.register_buffer("q", (q * (width // heads) ** -0.5).contiguous())
""",
            forward="""
                B, N, C = x.shape
                kv = F.linear(x, self.kv_weight, self.kv_bias).view(B, N, 2, self.heads, -1)
                k, v = kv.permute(2, 0, 3, 1, 4)
                y = torch.softmax(self.q @ k.transpose(-2, -1), dim=-1) @ v
                return self.out(y.transpose(1, 2).reshape(B, -1, C)).add_(self.latents)
            """,
        ),
        "keys_folded_into_queries": Body(
            summary="Scores straight from the tokens, as queries and the key projection are both constant.",
            init=_INIT + _FOLDED_KEYS,
            forward="""
                B, N, C = x.shape
                scores = torch.matmul(x, self.score_weight)
                weights = torch.softmax(scores, dim=1).view(B, N, self.heads, -1).permute(0, 2, 3, 1)
                v = self.value(x).view(B, N, self.heads, -1).transpose(1, 2)
                y = (weights @ v).transpose(1, 2).reshape(B, -1, C)
                return self.latents + self.out(y)
            """,
        ),
        "values_after_pooling": Body(
            summary="""Cross-attention of latents without keys or values of tokens.

    Queries are constant, so that the key projection is folded into them, and the weights of a latent sum to one,
    so that the value projection can follow the weighted mean of the tokens. What is left on the long axis are two
    thin products.
    """,
            init=_INIT
            + _FOLDED_KEYS
            + """
    self.register_buffer("value_weight", self.value.weight.detach().view(heads, size, width).clone())
""",
            methods='''
                def _pooled(self, x):
                    """(B, heads, latents, C): weighted means of the tokens themselves."""
                    B, N, C = x.shape
                    weights = torch.softmax(x @ self.score_weight, dim=1)
                    return torch.bmm(weights.transpose(1, 2), x).view(B, self.heads, -1, C)
            ''',
            forward="""
                B, _, C = x.shape
                y = self._pooled(x) @ self.value_weight.transpose(1, 2)
                y = y.transpose(1, 2).reshape(B, -1, C) + self.value.bias
                return self.latents + self.out(y)
            """,
        ),
        "one_matrix_after_pooling": Body(
            summary="Value and output projections of all heads in one matrix behind the weighted means.",
            init=_INIT
            + _FOLDED_KEYS
            + """
    with torch.no_grad():
        value = self.value.weight.view(heads, size, width)
        out = self.out.weight.view(width, heads, size)
        self.register_buffer("last", torch.einsum("ohd,hdc->hco", out, value).reshape(heads * width, width))
        self.register_buffer("addend", self.latents + self.out.bias + self.out.weight @ self.value.bias)
""",
            forward="""
                B, N, C = x.shape
                scores = torch.bmm(self.score_weight.t().expand(B, -1, -1), x.transpose(1, 2))
                pooled = torch.bmm(scores.softmax(dim=-1), x).view(B, self.heads, -1, C)
                return pooled.transpose(1, 2).reshape(B, -1, self.heads * C) @ self.last + self.addend
            """,
        ),
        "library_multi_head": Body(
            summary="The library's multi-head attention with separate projection weights.",
            forward="""
                latents = self.latents.unsqueeze(1).expand(-1, x.shape[0], -1)
                tokens = x.transpose(0, 1)
                y, _ = F.multi_head_attention_forward(
                    latents,
                    tokens,
                    tokens,
                    x.shape[-1],
                    self.heads,
                    None,
                    torch.cat([self.query.bias, self.key.bias, self.value.bias]),
                    None,
                    None,
                    False,
                    0.0,
                    self.out.weight,
                    self.out.bias,
                    training=False,
                    need_weights=False,
                    use_separate_proj_weight=True,
                    q_proj_weight=self.query.weight,
                    k_proj_weight=self.key.weight,
                    v_proj_weight=self.value.weight,
                )
                return (latents + y).transpose(0, 1)
            """,
        ),
        "head_by_head": Body(
            forward="""
                B, N, C = x.shape
                D = C // self.heads
                q = self.query(self.latents)
                parts = []
                for h in range(self.heads):
                    rows = slice(h * D, (h + 1) * D)
                    k = F.linear(x, self.key.weight[rows], self.key.bias[rows])
                    v = F.linear(x, self.value.weight[rows], self.value.bias[rows])
                    scores = torch.matmul(q[:, rows], k.transpose(1, 2)) / D**0.5
                    parts.append(torch.bmm(F.softmax(scores, dim=-1), v))
                return self.latents + self.out(torch.cat(parts, dim=-1))
            """
        ),
        "triton_softmax": Body(
            before=_SOFTMAX_KERNEL,
            init=_INIT + _FOLDED_KEYS,
            forward="""
                B, N, C = x.shape
                scores = torch.matmul(x, self.score_weight)
                cols = scores.shape[-1]
                column_softmax_kernel[(triton.cdiv(cols, 8), B)](scores, N, cols, BLOCK=128, COLS=8)
                pooled = torch.bmm(scores.transpose(1, 2), x).view(B, self.heads, -1, C)
                y = pooled @ self.value.weight.view(self.heads, -1, C).transpose(1, 2)
                y = y.transpose(1, 2).reshape(B, -1, C) + self.value.bias
                return self.latents + self.out(y)
            """,
        ),
        "triton_attention": Body(
            summary="Keys and values as usual, and the attention itself in an own kernel.",
            before=_ATTENTION_KERNEL,
            init=_INIT + _PACKED,
            forward="""
                B, N, C = x.shape
                H, L = self.heads, self.latents.shape[0]
                q = self.query(self.latents)
                kv = F.linear(x, self.kv_weight, self.kv_bias)
                y = torch.empty(B, L, C, device=x.device)
                scale = (C // H) ** -0.5
                latent_kernel[(L, H, B)](q, kv, y, L, H, N, scale, D=C // H, BLOCK=64)
                return self.latents + self.out(y)
            """,
        ),
    },
    carries_on="values_after_pooling",
)
