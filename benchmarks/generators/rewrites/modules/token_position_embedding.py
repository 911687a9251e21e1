"""Scaled token embeddings with sinusoidal positions that are made anew at each call."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATHER_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def embed_kernel(ids_ptr, weight_ptr, table_ptr, out_ptr, length, width, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    token = tl.load(ids_ptr + row)
    col = tl.arange(0, BLOCK)
    keep = col < width
    e = tl.load(weight_ptr + token * width + col, mask=keep, other=0.0)
    p = tl.load(table_ptr + row % length * width + col, mask=keep, other=0.0)
    tl.store(out_ptr + row * width + col, e * scale + p, mask=keep)
"""

_TABLE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def table_kernel(rates_ptr, out_ptr, length, half, ROWS: tl.constexpr, COLS: tl.constexpr):
    # sines in even columns, cosines in odd ones
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.program_id(1) * COLS + tl.arange(0, COLS)
    keep = (position[:, None] < length) & (pair[None, :] < half)
    rate = tl.load(rates_ptr + pair, mask=pair < half, other=0.0)
    angle = position[:, None].to(tl.float32) * rate[None, :]
    at = out_ptr + position[:, None] * 2 * half + 2 * pair[None, :]
    tl.store(at, tl.sin(angle), mask=keep)
    tl.store(at + 1, tl.cos(angle), mask=keep)
"""

_INIT = """
    self.width = width
    self.embedding = nn.Embedding(vocabulary, width)
"""

# the positions of sequences up to a length, and the embedding's weight with the scale in it
_TABLE = """
    with torch.no_grad():
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        angle = torch.arange(length).unsqueeze(1) * rate
        table = torch.stack([torch.sin(angle), torch.cos(angle)], dim=-1).flatten(1)
        self.register_buffer("table", table)
"""

MODULE = Rewritten(
    name="token_position_embedding",
    sizes="""
        batch_size = 8
        length = 64
        vocabulary = 2000
        width = 128
    """,
    arguments=("vocabulary", "width", "length"),
    takes="ids",
    inputs="[torch.randint(0, vocabulary, (batch_size, length))]",
    reference=Body(
        summary="Embeds tokens and adds sinusoidal encodings of their positions.",
        before="import math",
        init=_INIT,
        forward="""
            x = self.embedding(ids) * math.sqrt(self.width)
            T = ids.shape[1]
            position = torch.arange(T, device=ids.device).unsqueeze(1)
            rate = torch.exp(
                torch.arange(0, self.width, 2, device=ids.device) * (-math.log(10000.0) / self.width)
            )
            encoding = torch.zeros(T, self.width, device=ids.device)
            encoding[:, 0::2] = torch.sin(position * rate)
            encoding[:, 1::2] = torch.cos(position * rate)
            return x + encoding.unsqueeze(0)
        """,
    ),
    rewrites={
        "kept_table": Body(
            before="import math",
            init=_INIT + _TABLE,
            forward="""
                x = self.embedding(ids) * math.sqrt(self.width)
                return x + self.table[: ids.shape[1]]
            """,
        ),
        "added_with_factor": Body(
            summary="One gather and one addition that scales along the way.",
            before="import math",
            init=_INIT + _TABLE + "\n    self.factor = math.sqrt(width)\n",
            forward="""
                x = F.embedding(ids, self.embedding.weight)
                return torch.add(self.table[: ids.shape[1]], x, alpha=self.factor)
            """,
        ),
        "scaled_weight": Body(
            summary="""Token and position embeddings from tables that are made when the module is built.

    The embedding's weight is kept a second time, with the scale in it. Sequences longer than the table make the
    table grow, to the next power of two.
    """,
            before="import math",
            init=_INIT
            + _TABLE
            + """
    self.register_buffer("scaled", self.embedding.weight.detach() * math.sqrt(width))
""",
            methods='''
                def _grow(self, T):
                    """Extends the table of positions to at least T rows."""
                    rows = 1 << (T - 1).bit_length()
                    device = self.table.device
                    pairs = torch.arange(0, self.width, 2, device=device)
                    rate = torch.exp(pairs * (-math.log(10000.0) / self.width))
                    angle = torch.arange(rows, device=device).unsqueeze(1) * rate
                    self.table = torch.stack([torch.sin(angle), torch.cos(angle)], dim=-1).flatten(1)

                def _positions(self, T):
                    if T > self.table.shape[0]:
                        self._grow(T)
                    return self.table.narrow(0, 0, T)
            ''',
            forward="""
                if ids.dim() != 2:
                    raise ValueError("ids must have two dimensions")
                return F.embedding(ids, self.scaled).add_(self._positions(ids.shape[1]))
            """,
        ),
        "phase_for_cosines": Body(
            summary="One sine for all columns, with a quarter turn added in odd ones.",
            before="import math",
            init=_INIT
            + """
    columns = torch.arange(width)
    self.register_buffer("rate", torch.exp(columns // 2 * 2 * (-math.log(10000.0) / width)))
    self.register_buffer("phase", columns % 2 * (math.pi / 2))
""",
            forward="""
                position = torch.arange(ids.shape[1], device=ids.device, dtype=self.rate.dtype)
                encoding = torch.addcmul(self.phase, position[:, None], self.rate).sin_()
                return torch.add(encoding, self.embedding(ids), alpha=math.sqrt(self.width))
            """,
        ),
        "stacked_pairs": Body(
            before="import math",
            forward="""
                D = self.width
                pairs = torch.arange(0, D, 2, device=ids.device)
                rate = torch.exp(pairs * (-math.log(10000.0) / D))
                angle = torch.outer(torch.arange(ids.shape[1], device=ids.device).float(), rate)
                encoding = torch.stack((angle.sin(), angle.cos()), dim=2).view(1, -1, D)
                return self.embedding(ids).mul_(math.sqrt(D)).add_(encoding)
            """,
        ),
        "one_hot_product": Body(
            summary="The look-up as a product of one-hot rows with the embedding's weight.",
            before="import math",
            init=_INIT + _TABLE,
            forward="""
                hot = F.one_hot(ids.view(-1), self.embedding.num_embeddings).to(self.embedding.weight.dtype)
                x = (hot @ self.embedding.weight).view(*ids.shape, self.width)
                return x * math.sqrt(self.width) + self.table[: ids.shape[1]]
            """,
        ),
        "column_pairs_loop": Body(
            summary="Positions added in blocks of columns, without a table.",
            before="import math",
            forward="""
                D, T = self.width, ids.shape[1]
                x = self.embedding(ids).mul_(math.sqrt(D)).view(*ids.shape, D // 2, 2)
                position = torch.arange(T, device=ids.device, dtype=x.dtype)
                for start in range(0, D // 2, 16):
                    pairs = torch.arange(start, start + 16, device=ids.device, dtype=x.dtype)
                    angle = position[:, None] * torch.exp(pairs * (-2 * math.log(10000.0) / D))
                    x[:, :, start : start + 16, 0] += torch.sin(angle)
                    x[:, :, start : start + 16, 1] += torch.cos(angle)
                return x.flatten(2)
            """,
        ),
        "triton_gather": Body(
            before="import math\n" + _GATHER_KERNEL,
            init=_INIT + _TABLE + "\n    self.factor = math.sqrt(width)\n",
            forward="""
                B, T = ids.shape
                out = torch.empty(B, T, self.width, device=ids.device)
                embed_kernel[(B * T,)](
                    ids, self.embedding.weight, self.table, out, T, self.width, self.factor,
                    BLOCK=triton.next_power_of_2(self.width), num_warps=1
                )
                return out
            """,
        ),
        "triton_table": Body(
            summary="Positions by a kernel at each call; the rest as before.",
            before="import math\n" + _TABLE_KERNEL,
            init=_INIT
            + """
    self.register_buffer("rates", torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width)))
""",
            forward="""
                T, half = ids.shape[1], self.width // 2
                encoding = torch.empty(T, self.width, device=ids.device)
                grid = (triton.cdiv(T, 16), triton.cdiv(half, 64))
                table_kernel[grid](self.rates, encoding, T, half, ROWS=16, COLS=64)
                return self.embedding(ids) * math.sqrt(self.width) + encoding
            """,
        ),
    },
    carries_on="added_with_factor",
)
