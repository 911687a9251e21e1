"""Causal attention by hand in which all heads share one head of keys and values."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SOFTMAX_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def causal_softmax_kernel(scores_ptr, length, scale, BLOCK: tl.constexpr):
    # one program per row of scores; what lies in the future is neither read nor exponentiated
    row = tl.program_id(0).to(tl.int64)
    position = row % length
    cols = tl.arange(0, BLOCK)
    past = cols <= position
    at = scores_ptr + row * length + cols
    s = tl.load(at, mask=past, other=float("-inf")) * scale
    e = tl.exp(s - tl.max(s, axis=0))
    tl.store(at, e / tl.sum(e, axis=0), mask=cols < length)
"""

_FLASH_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, heads, length, scale, D: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr):
    # q and out: (batch, length, heads, D); k and v: (batch, length, D); all in half precision
    start = tl.program_id(0) * BLOCK_M
    b = tl.program_id(1) // heads
    h = tl.program_id(1) % heads
    m = start + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    inside = m < length
    q_at = ((b * length + m[:, None]) * heads + h) * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for first in range(0, start + BLOCK_M, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        kv_at = (b * length + n[:, None]) * D + d[None, :]
        k = tl.load(k_ptr + kv_at, mask=n[:, None] < length, other=0.0)
        v = tl.load(v_ptr + kv_at, mask=n[:, None] < length, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where((n[None, :] <= m[:, None]) & (n[None, :] < length), s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(p, axis=1)
        acc = acc * fade[:, None] + tl.dot(p.to(tl.float16), v)
        top = higher
    acc = acc / total[:, None]
    tl.store(out_ptr + q_at, acc.to(tl.float16), mask=inside[:, None])
"""

_INIT = """
    self.heads = heads
    self.head_size = width // heads
    self.query = nn.Linear(width, width)
    self.key = nn.Linear(width, self.head_size)
    self.value = nn.Linear(width, self.head_size)
    self.out = nn.Linear(width, width)
"""

_PACKED = """
    with torch.no_grad():
        self.register_buffer(
            "packed_weight", torch.cat([self.query.weight, self.key.weight, self.value.weight])
        )
        self.register_buffer("packed_bias", torch.cat([self.query.bias, self.key.bias, self.value.bias]))
"""

MODULE = Rewritten(
    name="multi_query_causal_attention",
    sizes="""
        batch_size = 4
        length = 1024
        width = 512
        heads = 8
    """,
    arguments=("width", "heads"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="Multi-query attention: every head has queries of its own, keys and values are shared.",
        init=_INIT,
        forward="""
            B, T, C = x.shape
            q = self.query(x).view(B, T, self.heads, self.head_size).transpose(1, 2)
            k = self.key(x).unsqueeze(1).repeat(1, self.heads, 1, 1)
            v = self.value(x).unsqueeze(1).repeat(1, self.heads, 1, 1)
            scores = q @ k.transpose(-2, -1) / self.head_size**0.5
            mask = torch.tril(torch.ones(T, T, device=x.device))
            scores = scores.masked_fill(mask == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.out(y)
        """,
    ),
    rewrites={
        "library_attention": Body(
            forward="""
                B, T, C = x.shape
                q = self.query(x).view(B, T, self.heads, self.head_size).transpose(1, 2)
                k = self.key(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
                v = self.value(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """
        ),
        "packed_projection": Body(
            summary="Queries, keys and values from one product, and attention by the library.",
            init=_INIT + _PACKED,
            forward="""
                B, T, C = x.shape
                packed = F.linear(x, self.packed_weight, self.packed_bias)
                q, k, v = packed.split([C, self.head_size, self.head_size], dim=-1)
                q = q.view(B, T, self.heads, self.head_size).transpose(1, 2)
                k = k.unsqueeze(1).expand(-1, self.heads, -1, -1)
                v = v.unsqueeze(1).expand(-1, self.heads, -1, -1)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """,
        ),
        "heads_as_rows": Body(
            summary="""Multi-query attention without repeated keys.

    All heads of a position meet the same keys, so that heads can stand among the rows of one batched product:
    (B, T * heads, D) times (B, D, T). The scale is folded into the query projection, and the mask is kept.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("scaled_weight", self.query.weight / self.head_size**0.5)
        self.register_buffer("scaled_bias", self.query.bias / self.head_size**0.5)
    self._mask = None
""",
            methods='''
                def _future(self, T, device):
                    """True where a key lies after the query; remembered for the last length."""
                    if self._mask is None or self._mask.shape[0] != T or self._mask.device != device:
                        future = torch.ones(T, T, dtype=torch.bool, device=device).triu(1)
                        self._mask = future.view(T, 1, T)
                    return self._mask
            ''',
            forward="""
                B, T, C = x.shape
                q = F.linear(x, self.scaled_weight, self.scaled_bias).view(B, T * self.heads, self.head_size)
                scores = torch.bmm(q, self.key(x).transpose(1, 2))
                scores.view(B, T, self.heads, T).masked_fill_(self._future(T, x.device), float("-inf"))
                y = torch.bmm(torch.softmax(scores, dim=-1), self.value(x))
                return self.out(y.view(B, T, C))
            """,
        ),
        "bias_in_product": Body(
            summary="The causal mask is added by the product of queries and keys itself.",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                mask = torch.full((T, T), float("-inf"), device=x.device).triu_(1)
                q = self.query(x).view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D)
                k = self.key(x).repeat_interleave(H, dim=0)
                v = self.value(x).repeat_interleave(H, dim=0)
                p = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=D**-0.5).softmax(dim=-1)
                y = torch.bmm(p, v).view(B, H, T, D).transpose(1, 2).reshape(B, T, C)
                return self.out(y)
            """,
        ),
        "query_chunks": Body(
            summary="Queries in chunks; a chunk never looks at keys after its end.",
            init=_INIT + "\n    self.chunk = 256\n",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                q = self.query(x).view(B, T, H, D).transpose(1, 2) * D**-0.5
                k = self.key(x).unsqueeze(1).transpose(-2, -1)
                v = self.value(x).unsqueeze(1)
                pieces = []
                for start in range(0, T, self.chunk):
                    end = min(start + self.chunk, T)
                    scores = q[:, :, start:end] @ k[..., :end]
                    rows = torch.arange(start, end, device=x.device).unsqueeze(1)
                    cols = torch.arange(end, device=x.device)
                    scores.masked_fill_(cols > rows, float("-inf"))
                    pieces.append(scores.softmax(dim=-1) @ v[:, :, :end])
                y = torch.cat(pieces, dim=2).transpose(1, 2).reshape(B, T, C)
                return self.out(y)
            """,
        ),
        "head_by_head": Body(
            summary="One head after another, to keep one matrix of scores at a time.",
            forward="""
                B, T, C = x.shape
                q = self.query(x)
                k = self.key(x).transpose(1, 2).contiguous()
                v = self.value(x)
                mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu_(diagonal=1)
                y = torch.empty_like(q)
                for h in range(self.heads):
                    part = slice(h * self.head_size, (h + 1) * self.head_size)
                    scores = torch.bmm(q[:, :, part], k).mul_(self.head_size**-0.5)
                    scores.masked_fill_(mask, float("-inf"))
                    y[:, :, part] = torch.bmm(scores.softmax(dim=-1), v)
                return self.out(y)
            """,
        ),
        "triton_softmax": Body(
            before=_SOFTMAX_KERNEL,
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                q = self.query(x).view(B, T, H, D).transpose(1, 2).reshape(B, H * T, D)
                scores = torch.bmm(q, self.key(x).transpose(1, 2))
                causal_softmax_kernel[(B * H * T,)](scores, T, D**-0.5, BLOCK=triton.next_power_of_2(T))
                y = torch.bmm(scores, self.value(x)).view(B, H, T, D)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """,
        ),
        "triton_flash_half": Body(
            summary="Attention in one kernel with half-precision products and single-precision sums.",
            before=_FLASH_KERNEL,
            init=_INIT + _PACKED,
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                packed = F.linear(x, self.packed_weight, self.packed_bias).half()
                q = packed[..., :C].contiguous()
                k = packed[..., C : C + D].contiguous()
                v = packed[..., C + D :].contiguous()
                y = torch.empty_like(q)
                grid = (triton.cdiv(T, 64), B * H)
                flash_kernel[grid](q, k, v, y, H, T, D**-0.5, D=D, BLOCK_M=64, BLOCK_N=64, num_warps=4)
                return self.out(y.float())
            """,
        ),
    },
    carries_on="packed_projection",
)
