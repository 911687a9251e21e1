"""Generator of the recorded task ``gdn_chunk_o``: the output step of a chunked Gated DeltaNet.

Every source defines ``run(q, k, v_new, h, g)`` and returns ``o`` of shape [B, T, H, V], all float32. With
chunks of 64 positions, q and k [B, T, H, K], v_new [B, T, H, V], the state at the start of each chunk
h [B, T / 64, H, K, V] and the log decay g [B, T, H], already cumulated within the chunk:

    o_i = K ** -0.5 * (exp(g_i) * q_i h + sum over j of (q_i . k_j) * exp(g_i - g_j) * v_new_j)

where j runs over the positions of the same chunk up to i.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.text import begin_run, fill, wrap_run
from benchmarks.generators.variant import Key, Variant

if TYPE_CHECKING:
    import torch

TASK = "gdn_chunk_o"
OPERATION = (
    "Gated DeltaNet chunk_fwd_o, chunks of 64, float32: "
    "o = ((q h) * exp(g) + causal(q k^T * exp(g_i - g_j)) v_new) * K^-0.5."
)
SHAPES: list[dict[str, int]] = [
    {"B": 2, "T": 1024, "H": 3, "K": 64, "V": 64},
    {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 128},
    {"B": 1, "T": 8192, "H": 16, "K": 64, "V": 128},
]
# The norm of the difference over the norm of the reference: room for tf32 dots, none for wrong mathematics.
TOLERANCE: dict[str, float] = {"relative_norm": 2e-3}
OUTPUT_DTYPES = ["float32"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws unit queries and keys, values and states of spread 1 and 0.5, and a falling decay."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device)

    batch, length, heads, k_dim, v_dim = (shape[name] for name in ("B", "T", "H", "K", "V"))
    q = torch.nn.functional.normalize(normal(batch, length, heads, k_dim), dim=-1)
    k = torch.nn.functional.normalize(normal(batch, length, heads, k_dim), dim=-1)
    v_new = normal(batch, length, heads, v_dim)
    h = normal(batch, length // 64, heads, k_dim, v_dim) * 0.5
    step = torch.nn.functional.logsigmoid(normal(batch, length // 64, 64, heads) + 3.0)
    return q, k, v_new, h, step.cumsum(dim=2).reshape(batch, length, heads).contiguous()


def reference(
    q: torch.Tensor, k: torch.Tensor, v_new: torch.Tensor, h: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Computes the output in float64, a few chunks at a time, and returns it in float32."""
    import torch

    batch, length, heads, k_dim = q.shape
    v_dim = v_new.shape[-1]
    causal = torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
    out = torch.empty(v_new.shape, dtype=torch.float32, device=q.device)
    step = 16
    for first in range(0, length // 64, step):
        chunks = min(step, length // 64 - first)
        span = slice(first * 64, (first + chunks) * 64)

        def split(x: torch.Tensor, span: slice = span, chunks: int = chunks) -> torch.Tensor:
            return x[:, span].double().reshape(batch, chunks, 64, heads, -1).transpose(2, 3)

        qc, kc, vc, gc = split(q), split(k), split(v_new), split(g[..., None])
        scores = (qc @ kc.transpose(-1, -2)) * torch.exp(gc - gc.transpose(-1, -2)).masked_fill(~causal, 0.0)
        part = (qc @ h[:, first : first + chunks].double()) * gc.exp() + scores @ vc
        part = part.transpose(2, 3).reshape(batch, chunks * 64, heads, v_dim)
        out[:, span] = (part * k_dim**-0.5).float()
    return (out,)


# --------------------------------------------------------------------------------------------------- Triton

DOTS = {
    "tf32": "tl.dot({0}, {1})",
    "ieee": 'tl.dot({0}, {1}, input_precision="ieee")',
    "tf32x3": 'tl.dot({0}, {1}, input_precision="tf32x3")',
    "fp16": "tl.dot({0}.to(tl.float16), {1}.to(tl.float16))",
    "bf16": "tl.dot({0}.to(tl.bfloat16), {1}.to(tl.bfloat16))",
}


def dotted(choices: Mapping[str, object], code: str, precision: str) -> Draft:
    """Writes out each ``<<a|b>>`` of a source as a matrix product of the given precision."""
    code = re.sub(r"<<(.+?)\|(.+?)>>", lambda found: DOTS[precision].format(*found.groups()), code)
    return Draft({**choices, "precision": precision}, code)


TILES = """
import torch
import triton
import triton.language as tl


@triton.jit
def chunk_output_kernel(
    q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr,
    scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    # one program: one tile of V, one chunk, one (batch, head)
    pid_v = tl.program_id(0)
    pid_t = tl.program_id(1)
    pid_bh = tl.program_id(2)
    batch = pid_bh // H
    head = pid_bh % H
    n_chunks = T // BT

    rows = pid_t * BT + tl.arange(0, BT)
    cols_v = pid_v * BV + tl.arange(0, BV)
    token = (batch * T + rows) * H + head
    h_base = h_ptr + ((batch * n_chunks + pid_t) * H + head) * K * V

    out = tl.zeros([BT, BV], dtype=tl.float32)
    scores = tl.zeros([BT, BT], dtype=tl.float32)
    for k_start in range(0, K, BK):
        cols_k = k_start + tl.arange(0, BK)
        q_tile = tl.load(q_ptr + token[:, None] * K + cols_k[None, :])
        k_tile = tl.load(k_ptr + token[None, :] * K + cols_k[:, None])
        h_tile = tl.load(h_base + cols_k[:, None] * V + cols_v[None, :])
        out += <<q_tile|h_tile>>
        scores += <<q_tile|k_tile>>

    g = tl.load(g_ptr + token)
    out = out * tl.exp(g)[:, None]
    scores = scores * tl.exp(g[:, None] - g[None, :])
    index = tl.arange(0, BT)
    scores = tl.where(index[:, None] >= index[None, :], scores, 0.0)

    v_tile = tl.load(v_ptr + token[:, None] * V + cols_v[None, :])
    out += <<scores|v_tile>>
    tl.store(o_ptr + token[:, None] * V + cols_v[None, :], out * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BT = 64
    BK = min(@bk@, K)
    BV = min(@bv@, V)
    o = torch.empty_like(v_new)
    grid = (V // BV, T // BT, B * H)
    chunk_output_kernel[grid](
        q, k, v_new, h, g, o, K ** -0.5, T, H,
        K=K, V=V, BT=BT, BK=BK, BV=BV, num_warps=@warps@, num_stages=@stages@,
    )
    return o
"""


def tiles(bv: int, bk: int, warps: int, stages: int, precision: str) -> Draft:
    """A program per tile of V, with a loop over tiles of K."""
    choices = {"family": "tiles", "bv": bv, "bk": bk, "warps": warps, "stages": stages}
    return dotted(choices, fill(TILES, bv=bv, bk=bk, warps=warps, stages=stages), precision)


BLOCK_POINTERS = """
# Chunk output with block pointers.
import torch, triton
import triton.language as tl

@triton.jit
def fwd_o(q, k, v, h, g, o, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
          C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    iv, ic, ib = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = ib // H, ib % H
    NC = T // C
    qk_off = (b * T * H + n) * K
    vo_off = (b * T * H + n) * V
    p_g = tl.make_block_ptr(g + b * T * H + n, (T,), (H,), (ic * C,), (C,), (0,))
    bg = tl.load(p_g@check_1d@)
    acc = tl.zeros((C, BV), tl.float32)
    att = tl.zeros((C, C), tl.float32)
    for j in range(tl.cdiv(K, BK)):
        p_q = tl.make_block_ptr(q + qk_off, (T, K), (H * K, 1), (ic * C, j * BK), (C, BK), (1, 0))
        p_k = tl.make_block_ptr(k + qk_off, (K, T), (1, H * K), (j * BK, ic * C), (BK, C), (0, 1))
        p_h = tl.make_block_ptr(h + ((b * NC + ic) * H + n) * K * V, (K, V), (V, 1),
                                (j * BK, iv * BV), (BK, BV), (1, 0))
        bq = tl.load(p_q@check_2d@)
        bk = tl.load(p_k@check_2d@)
        bh = tl.load(p_h@check_2d@)
        acc += <<bq|bh>>
        att += <<bq|bk>>
    acc *= tl.exp(bg)[:, None]
    r = tl.arange(0, C)
    att = tl.where(r[:, None] >= r[None, :], att * tl.exp(bg[:, None] - bg[None, :]), 0)
    p_v = tl.make_block_ptr(v + vo_off, (T, V), (H * V, 1), (ic * C, iv * BV), (C, BV), (1, 0))
    p_o = tl.make_block_ptr(o + vo_off, (T, V), (H * V, 1), (ic * C, iv * BV), (C, BV), (1, 0))
    bv = tl.load(p_v@check_2d@)
    acc = acc * scale + <<(att * scale)|bv>>
    tl.store(p_o, acc.to(p_o.dtype.element_ty)@check_2d@)

def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.size(-1)
    BK, BV = min(@bk@, triton.next_power_of_2(K)), min(@bv@, triton.next_power_of_2(V))
    o = torch.empty_like(v_new)
    fwd_o[(triton.cdiv(V, BV), triton.cdiv(T, 64), B * H)](
        q, k, v_new, h, g, o, K**-0.5, T, H, K, V, 64, BK, BV, num_warps=@warps@, num_stages=@stages@)
    return o
"""


def block_pointers(bv: int, bk: int, warps: int, stages: int, precision: str, check: str) -> Draft:
    """The same with block pointers, whose bounds are ``checked`` or not."""
    choices = {
        "family": "block_pointers",
        "bv": bv,
        "bk": bk,
        "warps": warps,
        "stages": stages,
        "check": check,
    }
    checked = check == "checked"
    code = fill(
        BLOCK_POINTERS,
        bv=bv,
        bk=bk,
        warps=warps,
        stages=stages,
        check_1d=", boundary_check=(0,)" if checked else "",
        check_2d=", boundary_check=(0, 1)" if checked else "",
    )
    return dotted(choices, code, precision)


WHOLE_HEAD = '''
import torch
import triton
import triton.language as tl


@triton.jit
def gdn_o_whole_head(Q, Kk, Vn, Hs, G, O, sm_scale, SEQ, HEADS,
                     DK: tl.constexpr, DV: tl.constexpr, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr):
    """The attention matrix of a chunk is computed once and used for all tiles of V."""
    chunk = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // HEADS
    hd = bh - b * HEADS

    i = tl.arange(0, CHUNK)
    d = tl.arange(0, DK)
    tok = (b * SEQ + chunk * CHUNK + i) * HEADS + hd
    qt = tl.load(Q + tok[:, None] * DK + d[None, :])
    kt = tl.load(Kk + tok[:, None] * DK + d[None, :])
    gt = tl.load(G + tok)

    attn = <<qt|tl.trans(kt)>>
    attn = attn * tl.exp(gt[:, None] - gt[None, :])
    attn = tl.where(i[:, None] >= i[None, :], attn, 0.0) * sm_scale
    qt = qt * (tl.exp(gt) * sm_scale)[:, None]

    state = Hs + ((b * (SEQ // CHUNK) + chunk) * HEADS + hd) * DK * DV
    for v0 in @loop@:
        e = v0 + tl.arange(0, BLOCK_V)
        ht = tl.load(state + d[:, None] * DV + e[None, :])
        vt = tl.load(Vn + tok[:, None] * DV + e[None, :])
        res = <<qt|ht>>
        res += <<attn|vt>>
        tl.store(O + tok[:, None] * DV + e[None, :], res)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[3]
    out = torch.empty((B, T, H, V), dtype=torch.float32, device=q.device)
    gdn_o_whole_head[(T // 64, B * H)](
        q, k, v_new, h, g, out, K ** -0.5, T, H,
        DK=K, DV=V, CHUNK=64, BLOCK_V=min(@bv@, V), num_warps=@warps@, num_stages=@stages@)
    return out
'''


def whole_head(bv: int, warps: int, stages: int, precision: str, loop: str = "range") -> Draft:
    """A program per chunk and head: the scores are computed once for all tiles of V."""
    choices = {"family": "whole_head", "bv": bv, "warps": warps, "stages": stages, "loop": loop}
    loops = {"range": "range(0, DV, BLOCK_V)", "static": "tl.static_range(0, DV, BLOCK_V)"}
    code = fill(WHOLE_HEAD, bv=bv, warps=warps, stages=stages, loop=loops[loop])
    return dotted(choices, code, precision)


TWO_KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def score_kernel(q, k, g, a, T, H, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    tok = (i_b * T + i_t * BT + o_t) * H + i_h
    acc = tl.zeros([BT, BT], tl.float32)
    for s in range(0, K, BK):
        o_k = s + tl.arange(0, BK)
        b_q = tl.load(q + tok[:, None] * K + o_k[None, :])
        b_k = tl.load(k + tok[:, None] * K + o_k[None, :])
        acc += <<b_q|tl.trans(b_k)>>
    b_g = tl.load(g + tok)
    acc *= tl.exp(b_g[:, None] - b_g[None, :])
    acc = tl.where(o_t[:, None] >= o_t[None, :], acc, 0.0)
    # a is [B, H, T, BT]
    tl.store(a + ((i_bh * T) + i_t * BT + o_t)[:, None] * BT + o_t[None, :], acc.to(a.dtype.element_ty))


@triton.jit
def output_kernel(q, v, h, g, a, o, scale, T, H, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
                  BK: tl.constexpr, BV: tl.constexpr):
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    o_v = i_v * BV + tl.arange(0, BV)
    tok = (i_b * T + i_t * BT + o_t) * H + i_h
    b_o = tl.zeros([BT, BV], tl.float32)
    for s in range(0, K, BK):
        o_k = s + tl.arange(0, BK)
        b_q = tl.load(q + tok[:, None] * K + o_k[None, :])
        b_h = tl.load(h + (((i_b * (T // BT) + i_t) * H + i_h) * K + o_k[:, None]) * V + o_v[None, :])
        b_o += <<b_q|b_h>>
    b_o *= tl.exp(tl.load(g + tok))[:, None]
    b_a = tl.load(a + ((i_bh * T) + i_t * BT + o_t)[:, None] * BT + o_t[None, :]).to(tl.float32)
    b_v = tl.load(v + tok[:, None] * V + o_v[None, :])
    b_o += <<b_a|b_v>>
    tl.store(o + tok[:, None] * V + o_v[None, :], b_o * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    a = torch.@alloc@((B, H, T, 64), dtype=torch.@store@, device=q.device)
    o = torch.empty_like(v_new)
    BK, BV = min(@bk@, K), min(@bv@, V)
    score_kernel[(T // 64, B * H)](q, k, g, a, T, H, K=K, BT=64, BK=BK, num_warps=@warps@)
    output_kernel[(V // BV, T // 64, B * H)](q, v_new, h, g, a, o, K ** -0.5, T, H, K=K, V=V, BT=64,
                                             BK=BK, BV=BV, num_warps=@warps@)
    return o
"""


def two_kernels(bv: int, bk: int, warps: int, alloc: str, store: str, precision: str) -> Draft:
    """One launch for the scores, which go through memory, one for the output."""
    choices = {
        "family": "two_kernels",
        "bv": bv,
        "bk": bk,
        "warps": warps,
        "alloc": alloc,
        "store": store,
    }
    code = fill(TWO_KERNELS, bv=bv, bk=bk, warps=warps, alloc=alloc, store=store)
    return dotted(choices, code, precision)


HYBRID = """
import torch
import triton
import triton.language as tl


@triton.jit
def intra_chunk(q, k, v, g, o, scale, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    pid = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // H
    h = bh % H
    r = tl.arange(0, 64)
    c = tl.arange(0, K)
    e = tl.program_id(2) * BV + tl.arange(0, BV)
    t = (b * T + pid * 64 + r) * H + h
    qq = tl.load(q + t[:, None] * K + c[None, :])
    kk = tl.load(k + t[None, :] * K + c[:, None])
    vv = tl.load(v + t[:, None] * V + e[None, :])
    gg = tl.load(g + t)
    s = <<qq|kk>>
    s = tl.where(r[:, None] >= r[None, :], s * tl.exp(gg[:, None] - gg[None, :]), 0.0)
    # the part between chunks is already in o
    prev = tl.load(o + t[:, None] * V + e[None, :])
    tl.store(o + t[:, None] * V + e[None, :], (prev + <<s|vv>>) * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
@inter@
    intra_chunk[(N, B * H, V // min(@bv@, V))](q, k, v_new, g, o, K ** -0.5, T, H, K=K, V=V, BV=min(@bv@, V),
                                               num_warps=@warps@)
    return o
"""

HYBRID_INTER = {
    "matmul": """    # inter-chunk part with a library call
    q_chunks = q.view(B, N, 64, H, K).transpose(2, 3)
    o = torch.matmul(q_chunks, h)
    o = o * torch.exp(g).view(B, N, 64, H).transpose(2, 3).unsqueeze(-1)
    o = o.transpose(2, 3).reshape(B, T, H, V).contiguous()""",
    "einsum": """    o = torch.einsum("bnchk,bnhkv->bnchv", (q * g.exp()[..., None]).view(B, N, 64, H, K), h)
    o = o.reshape(B, T, H, V).contiguous()""",
    "bmm": """    scaled = (q * torch.exp(g).unsqueeze(-1)).view(B, N, 64, H, K)
    scaled = scaled.permute(0, 1, 3, 2, 4).reshape(-1, 64, K)
    o = torch.bmm(scaled, h.reshape(-1, K, V))
    o = o.view(B, N, H, 64, V).permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, V)""",
}


def torch_inter(inter: str, bv: int, warps: int, precision: str) -> Draft:
    """The part between chunks by PyTorch, the part within them by a kernel."""
    choices = {"family": "torch_inter", "inter": inter, "bv": bv, "warps": warps}
    return dotted(choices, fill(HYBRID, inter=HYBRID_INTER[inter], bv=bv, warps=warps), precision)


SCALAR_ROWS = """
import torch
import triton
import triton.language as tl


@triton.jit
def o_without_dots(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, scale, T, H,
                   K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    # No tensor cores: the sums are written as broadcasts and reductions.
    i_v = tl.program_id(0)
    i_c = tl.program_id(1)
    i_bh = tl.program_id(2)
    b = i_bh // H
    hd = i_bh % H
    rows = tl.arange(0, 64)
    kk = tl.arange(0, K)
    vv = i_v * BV + tl.arange(0, BV)
    start = b * T + i_c * 64
    tok = (start + rows) * H + hd
    q = tl.load(q_ptr + tok[:, None] * K + kk[None, :])
    g = tl.load(g_ptr + tok)
    acc = tl.zeros([64, BV], dtype=tl.float32)
    h_base = h_ptr + ((b * (T // 64) + i_c) * H + hd) * K * V
    for c in range(K):
        h_row = tl.load(h_base + c * V + vv)
        q_col = tl.load(q_ptr + tok * K + c)
        acc += q_col[:, None] * h_row[None, :]
    acc = acc * tl.exp(g)[:, None]
    for j in range(64):
        t_j = (start + j) * H + hd
        k_j = tl.load(k_ptr + t_j * K + kk)
        v_j = tl.load(v_ptr + t_j * V + vv)
        g_j = tl.load(g_ptr + t_j)
        s = tl.sum(q * k_j[None, :], axis=1)
        w = tl.where(rows >= j, s * tl.exp(g - g_j), 0.0)
        acc += w[:, None] * v_j[None, :]
    tl.store(o_ptr + tok[:, None] * V + vv[None, :], acc * scale)


def run(q, k, v_new, h, g):
    q, k, v_new, h, g = [x.contiguous() for x in (q, k, v_new, h, g)]
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    o = torch.zeros_like(v_new)
    BV = min(@bv@, V)
    grid = (V // BV, T // 64, B * H)
    o_without_dots[grid](q, k, v_new, h, g, o, K ** -0.5, T, H, K, V, BV, num_warps=@warps@)
    return o
"""


def no_dots(bv: int, warps: int) -> Draft:
    """Sums of products in place of matrix products."""
    return Draft({"family": "no_dots", "bv": bv, "warps": warps}, fill(SCALAR_ROWS, bv=bv, warps=warps))


ONE_ROW = """
import torch
import triton
import triton.language as tl


@triton.jit
def one_token_kernel(Q, K_, V_, H_, G, Out, scale, T, NH, DK: tl.constexpr, DV: tl.constexpr):
    # one program per token and head
    t = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // NH
    n = bh % NH
    dk = tl.arange(0, DK)
    dv = tl.arange(0, DV)
    chunk = t // 64
    me = (b * T + t) * NH + n
    q = tl.load(Q + me * DK + dk)
    g = tl.load(G + me)
    state = tl.load(H_ + ((b * (T // 64) + chunk) * NH + n) * DK * DV + dk[:, None] * DV + dv[None, :])
    res = tl.sum(q[:, None] * state, axis=0) * tl.exp(g)
@loop@
    tl.store(Out + me * DV + dv, res * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    out = torch.empty_like(v_new)
    one_token_kernel[(T, B * H)](q, k, v_new, h, g, out, K ** -0.5, T, H, K, V, num_warps=@warps@)
    return out
"""

ONE_ROW_LOOPS = {
    "serial": """    for j in range(chunk * 64, t + 1):
        other = (b * T + j) * NH + n
        k = tl.load(K_ + other * DK + dk)
        v = tl.load(V_ + other * DV + dv)
        weight = tl.sum(q * k, axis=0) * tl.exp(g - tl.load(G + other))
        res += weight * v""",
    "vector": """    j = chunk * 64 + tl.arange(0, 64)
    seen = j <= t
    others = (b * T + j) * NH + n
    k = tl.load(K_ + others[:, None] * DK + dk[None, :], mask=seen[:, None], other=0.0)
    v = tl.load(V_ + others[:, None] * DV + dv[None, :], mask=seen[:, None], other=0.0)
    gj = tl.load(G + others, mask=seen, other=0.0)
    weight = tl.where(seen, tl.sum(q[None, :] * k, axis=1) * tl.exp(g - gj), 0.0)
    res += tl.sum(weight[:, None] * v, axis=0)""",
}


def one_token(loop: str, warps: int) -> Draft:
    """A program per token and head."""
    choices = {"family": "one_token", "loop": loop, "warps": warps}
    return Draft(choices, fill(ONE_ROW, loop=ONE_ROW_LOOPS[loop], warps=warps))


SUBTILES = '''
import torch
import triton
import triton.language as tl


@triton.jit
def causal_subtiles(q, k, v, h, g, o, scale, T, H, K: tl.constexpr, V: tl.constexpr,
                    BM: tl.constexpr, BV: tl.constexpr):
    """A chunk is cut into sub-tiles of BM rows; tiles above the diagonal are never touched."""
    PER: tl.constexpr = 64 // BM
    pm = tl.program_id(0)
    pv = tl.program_id(1)
    bh = tl.program_id(2)
    chunk = pm // PER
    sub = pm % PER
    b, n = bh // H, bh % H
    m = tl.arange(0, BM)
    dk = tl.arange(0, K)
    dv = pv * BV + tl.arange(0, BV)
    first = b * T + chunk * 64
    tq = (first + sub * BM + m) * H + n
    bq = tl.load(q + tq[:, None] * K + dk[None, :])
    gq = tl.load(g + tq)
    bh_tile = tl.load(h + (((b * (T // 64) + chunk) * H + n) * K + dk[:, None]) * V + dv[None, :])
    acc = <<bq|bh_tile>> * tl.exp(gq)[:, None]
    for s in range(0, sub + 1):
        tk = (first + s * BM + m) * H + n
        bk = tl.load(k + tk[None, :] * K + dk[:, None])
        gk = tl.load(g + tk)
        p = <<bq|bk>> * tl.exp(gq[:, None] - gk[None, :])
        p = tl.where((sub * BM + m)[:, None] >= (s * BM + m)[None, :], p, 0.0)
        bv = tl.load(v + tk[:, None] * V + dv[None, :])
        acc += <<p|bv>>
    tl.store(o + tq[:, None] * V + dv[None, :], acc * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BM, BV = @bm@, min(@bv@, V)
    o = torch.empty_like(v_new)
    causal_subtiles[(T // BM, V // BV, B * H)](q, k, v_new, h, g, o, K ** -0.5, T, H, K=K, V=V, BM=BM, BV=BV,
                                               num_warps=@warps@, num_stages=@stages@)
    return o
'''


def subtiles(bm: int, bv: int, warps: int, stages: int, precision: str) -> Draft:
    """A part of a chunk's rows per program, which leaves out what lies above the diagonal."""
    choices = {"family": "subtiles", "bm": bm, "bv": bv, "warps": warps, "stages": stages}
    return dotted(choices, fill(SUBTILES, bm=bm, bv=bv, warps=warps, stages=stages), precision)


FACTORED = """
import torch
import triton
import triton.language as tl

# exp(g_i - g_j) = exp(g_i) * exp(-g_j): fold the decay into the rows of q and k.


@triton.jit
def factored_decay(
    q_ptr,
    k_ptr,
    v_ptr,
    h_ptr,
    g_ptr,
    o_ptr,
    scale,
    seq_len,
    num_heads,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    TILE_V: tl.constexpr,
):
    tile = tl.program_id(0)
    chunk = tl.program_id(1)
    pair = tl.program_id(2)
    batch = pair // num_heads
    head = pair % num_heads
    pos = tl.arange(0, 64)
    token = (batch * seq_len + chunk * 64 + pos) * num_heads + head
    dim_k = tl.arange(0, D_K)
    dim_v = tile * TILE_V + tl.arange(0, TILE_V)
    decay = tl.load(g_ptr + token)
    q_scaled = tl.load(q_ptr + token[:, None] * D_K + dim_k[None, :]) * (tl.exp(decay) * scale)[:, None]
    k_scaled = tl.load(k_ptr + token[None, :] * D_K + dim_k[:, None]) * tl.exp(-decay)[None, :]
    state = h_ptr + ((batch * (seq_len // 64) + chunk) * num_heads + head) * D_K * D_V
    state_tile = tl.load(state + dim_k[:, None] * D_V + dim_v[None, :])
    weights = <<q_scaled|k_scaled>>
    weights = tl.where(pos[:, None] >= pos[None, :], weights, 0.0)
    values = tl.load(v_ptr + token[:, None] * D_V + dim_v[None, :])
    result = <<q_scaled|state_tile>> + <<weights|values>>
    tl.store(o_ptr + token[:, None] * D_V + dim_v[None, :], result)


def run(q, k, v_new, h, g):
    batch, seq_len, num_heads, d_k = q.shape
    d_v = v_new.shape[-1]
    tile_v = min(@bv@, d_v)
    out = torch.empty_like(v_new)
    grid = (d_v // tile_v, seq_len // 64, batch * num_heads)
    factored_decay[grid](
        q, k, v_new, h, g, out, d_k ** -0.5, seq_len, num_heads, d_k, d_v, tile_v,
        num_warps=@warps@, num_stages=@stages@,
    )
    return out
"""


def factored(bv: int, warps: int, precision: str) -> Draft:
    """The decay is multiplied into queries and keys beforehand."""
    choices = {"family": "factored", "bv": bv, "warps": warps, "stages": 1}
    return dotted(choices, fill(FACTORED, bv=bv, warps=warps, stages=1), precision)


PERSISTENT = """
import torch
import triton
import triton.language as tl


@triton.jit
def persistent_chunk_o(q, k, v, h, g, o, scale, T, H, total,
                       K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    TV: tl.constexpr = V // BV
    r = tl.arange(0, 64)
    dk = tl.arange(0, K)
    causal = r[:, None] >= r[None, :]
    for job in range(tl.program_id(0), total, tl.num_programs(0)):
        tv = job % TV
        head_chunk = job // TV  # index into [B, T / 64, H]
        n = head_chunk % H
        chunk = head_chunk // H  # counts through batches as well
        tok = (chunk * 64 + r) * H + n
        dv = tv * BV + tl.arange(0, BV)
        bq = tl.load(q + tok[:, None] * K + dk[None, :])
        bk = tl.load(k + tok[None, :] * K + dk[:, None])
        bg = tl.load(g + tok)
        bh = tl.load(h + head_chunk * K * V + dk[:, None] * V + dv[None, :])
        bv = tl.load(v + tok[:, None] * V + dv[None, :])
        a = <<bq|bk>>
        a = tl.where(causal, a * tl.exp(bg[:, None] - bg[None, :]), 0.0)
        acc = <<bq|bh>> * tl.exp(bg)[:, None] + <<a|bv>>
        tl.store(o + tok[:, None] * V + dv[None, :], acc * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BV = min(@bv@, V)
    total = B * (T // 64) * H * (V // BV)
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    o = torch.empty_like(v_new)
    grid = (min(total, @per_sm@ * sms),)
    persistent_chunk_o[grid](q, k, v_new, h, g, o, K ** -0.5, T, H, total, K=K, V=V, BV=BV,
                             num_warps=@warps@, num_stages=1)
    return o
"""


def persistent(per_sm: int, bv: int, warps: int, precision: str) -> Draft:
    """A fixed number of programs that stride over chunks and heads."""
    choices = {"family": "persistent", "per_sm": per_sm, "bv": bv, "warps": warps}
    return dotted(choices, fill(PERSISTENT, per_sm=per_sm, bv=bv, warps=warps), precision)


SEVERAL_CHUNKS = """
import torch
import triton
import triton.language as tl


@triton.jit
def several_chunks(Q, K_, V_, S, G, O, scale, T, NH, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
                   CHUNKS: tl.constexpr):
    pid_c, pid_v, pid_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pid_b // NH, pid_b % NH
    i = tl.arange(0, 64)
    d = tl.arange(0, DK)
    e = pid_v * BV + tl.arange(0, BV)
    for u in @loop@:
        c = pid_c * CHUNKS + u
        if c * 64 < T:
            tok = (b * T + c * 64 + i) * NH + n
            qb = tl.load(Q + tok[:, None] * DK + d[None, :])
            kb = tl.load(K_ + tok[:, None] * DK + d[None, :])
            gb = tl.load(G + tok)
            w = <<qb|tl.trans(kb)>>
            w *= tl.exp(gb[:, None] - gb[None, :])
            w = tl.where(i[:, None] < i[None, :], 0.0, w)
            sb = tl.load(S + (((b * (T // 64) + c) * NH + n) * DK + d[:, None]) * DV + e[None, :])
            vb = tl.load(V_ + tok[:, None] * DV + e[None, :])
            ob = <<w|vb>>
            ob += <<qb|sb>> * tl.exp(gb)[:, None]
            tl.store(O + tok[:, None] * DV + e[None, :], ob * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BV = min(@bv@, V)
    o = torch.empty_like(v_new)
    grid = (triton.cdiv(T // 64, @chunks@), V // BV, B * H)
    several_chunks[grid](q, k, v_new, h, g, o, K ** -0.5, T, H,
                         DK=K, DV=V, BV=BV, CHUNKS=@chunks@, num_warps=@warps@)
    return o
"""


def several_chunks(chunks: int, bv: int, warps: int, precision: str, loop: str = "range") -> Draft:
    """Several neighbouring chunks per program."""
    choices = {"family": "several_chunks", "chunks": chunks, "bv": bv, "warps": warps, "loop": loop}
    loops = {"range": f"range({chunks})", "static": "tl.static_range(CHUNKS)"}
    code = fill(SEVERAL_CHUNKS, chunks=chunks, bv=bv, warps=warps, loop=loops[loop])
    return dotted(choices, code, precision)


AUTOTUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BV": bv}, num_warps=w, num_stages=s)
        for bv in @bvs@ for w in @warp_set@ for s in @stage_set@
    ],
    key=["K", "V"],
)
@triton.jit
def tuned_chunk_o(q, k, v, h, g, o, scale, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    c, bh, vt = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, hd = bh // H, bh % H
    i, dk = tl.arange(0, 64), tl.arange(0, K)
    dv = vt * BV + tl.arange(0, BV)
    ok = dv < V
    t = (b * T + c * 64 + i) * H + hd
    x = tl.load(q + t[:, None] * K + dk[None, :])
    y = tl.load(k + t[None, :] * K + dk[:, None])
    w = tl.load(g + t)
    h += ((b * (T // 64) + c) * H + hd) * K * V
    s = tl.load(h + dk[:, None] * V + dv[None, :], mask=ok[None, :], other=0.0)
    z = tl.load(v + t[:, None] * V + dv[None, :], mask=ok[None, :], other=0.0)
    m = tl.where(i[:, None] >= i[None, :], <<x|y>> * tl.exp(w[:, None] - w[None, :]), 0.0)
    r = <<x|s>> * tl.exp(w)[:, None] + <<m|z>>
    tl.store(o + t[:, None] * V + dv[None, :], r * scale, mask=ok[None, :])


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    o = torch.empty_like(v_new)
    grid = lambda meta: (T // 64, B * H, triton.cdiv(V, meta["BV"]))
    tuned_chunk_o[grid](q, k, v_new, h, g, o, K ** -0.5, T, H, K, V)
    return o
"""

AUTOTUNE = {
    "ieee": {"bvs": "(32, 64)", "warp_set": "(4,)", "stage_set": "(1,)"},
    "tf32": {"bvs": "(32, 64, 128)", "warp_set": "(4, 8)", "stage_set": "(1,)"},
}


def autotuned(precision: str) -> Draft:
    """A list of configurations to choose from."""
    return dotted({"family": "autotuned"}, fill(AUTOTUNED, **AUTOTUNE[precision]), precision)


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH = {
    ("einsum", "decay_matrix"): '''
import torch


def run(q, k, v_new, h, g):
    """Everything with einsum."""
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    q = q.view(B, N, 64, H, K)
    k = k.view(B, N, 64, H, K)
    v = v_new.view(B, N, 64, H, V)
    g = g.view(B, N, 64, H)
    inter = torch.einsum("bnchk,bnhkv->bnchv", q, h) * g.exp().unsqueeze(-1)
    scores = torch.einsum("bnihk,bnjhk->bnhij", q, k)
    gt = g.permute(0, 1, 3, 2)
    decay = torch.exp(gt.unsqueeze(-1) - gt.unsqueeze(-2))
    mask = torch.tril(torch.ones(64, 64, device=q.device, dtype=torch.bool))
    scores = (scores * decay).masked_fill(~mask, 0.0)
    intra = torch.einsum("bnhij,bnjhv->bnihv", scores, v)
    return ((inter + intra) * K ** -0.5).reshape(B, T, H, V)
''',
    ("einsum", "long_subscripts"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.size(-1)
    C = 64
    qc, kc, vc = (x.reshape(B, T // C, C, H, x.size(-1)) for x in (q, k, v_new))
    gc = g.reshape(B, T // C, C, H)
    low = torch.ones(C, C, device=q.device).tril()
    weights = torch.exp((gc[:, :, :, None] - gc[:, :, None, :]).clamp(max=0.0)) * low[None, None, :, :, None]
    out = torch.einsum("bnihk,bnjhk,bnijh,bnjhv->bnihv", qc, kc, weights, vc)
    out = out + torch.einsum("bnihk,bnih,bnhkv->bnihv", qc, torch.exp(gc), h)
    return out.reshape(B, T, H, V) / K ** 0.5
""",
    ("matmul", "decay_matrix"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    # [B, n, H, 64, D]
    qh = q.view(B, n, 64, H, K).transpose(2, 3)
    kh = k.view(B, n, 64, H, K).transpose(2, 3)
    vh = v_new.view(B, n, 64, H, V).transpose(2, 3)
    gh = g.view(B, n, 64, H).transpose(2, 3)
    att = qh @ kh.transpose(-1, -2)
    diff = gh[..., :, None] - gh[..., None, :]
    causal = torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
    att = att * torch.exp(diff.masked_fill(~causal, float("-inf")))
    o = (qh @ h) * gh.exp()[..., None] + att @ vh
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V)
""",
    ("matmul", "factored"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    qs = (q * (g.exp() * K ** -0.5).unsqueeze(-1)).view(B, n, 64, H, K).transpose(2, 3)
    ks = (k * torch.exp(-g).unsqueeze(-1)).view(B, n, 64, H, K).permute(0, 1, 3, 4, 2)
    vs = v_new.view(B, n, 64, H, V).transpose(2, 3)
    att = torch.matmul(qs, ks).tril()
    o = torch.matmul(qs, h) + torch.matmul(att, vs)
    return o.transpose(2, 3).reshape(B, T, H, V)
""",
    ("matmul", "concatenated"): '''
import torch


def run(q, k, v_new, h, g):
    """One product instead of two: [q exp(g) | A] @ [h ; v]."""
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    qh, kh, vh = (x.view(B, n, 64, H, -1).transpose(2, 3).contiguous() for x in (q, k, v_new))
    gh = g.view(B, n, 64, H).transpose(2, 3).contiguous()
    a = (qh @ kh.mT) * torch.exp(gh.unsqueeze(-1) - gh.unsqueeze(-2))
    left = torch.cat([qh * gh.exp().unsqueeze(-1), torch.tril(a)], dim=-1)
    right = torch.cat([h, vh], dim=-2)
    o = torch.matmul(left, right) * K ** -0.5
    return o.transpose(2, 3).contiguous().view(B, T, H, V)
''',
    ("bmm", "contiguous"): """
import torch


def to_chunks(x):
    B, T, H, D = x.shape
    return x.view(B, T // 64, 64, H, D).permute(0, 1, 3, 2, 4).contiguous().view(-1, 64, D)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    qb, kb, vb = to_chunks(q), to_chunks(k), to_chunks(v_new)
    gb = to_chunks(g.unsqueeze(-1))
    hb = h.reshape(-1, K, V)
    inter = torch.bmm(qb, hb) * torch.exp(gb)
    att = torch.bmm(qb, kb.transpose(1, 2))
    att = att * torch.exp(gb - gb.transpose(1, 2))
    att = torch.tril(att)
    out = (inter + torch.bmm(att, vb)) * (K ** -0.5)
    return out.view(B, T // 64, H, 64, V).permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, V)
""",
    ("bmm", "baddbmm"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    scale = K ** -0.5

    def rows(x, d):
        return x.reshape(B, N, 64, H, d).transpose(2, 3).reshape(B * N * H, 64, d)

    qb, kb, vb, gb = rows(q, K), rows(k, K), rows(v_new, V), rows(g, 1)
    att = torch.bmm(qb, kb.mT).mul_(torch.exp(gb - gb.mT)).tril_()
    inter = torch.bmm(qb.mul_(gb.exp_()), h.view(-1, K, V))
    out = torch.baddbmm(inter, att, vb, beta=scale, alpha=scale)
    return out.view(B, N, H, 64, V).transpose(2, 3).reshape(B, T, H, V)
""".replace("qb.mul_(gb.exp_())", "qb * gb.exp()"),
    ("chunk_loop", "all_heads"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    out = torch.empty_like(v_new)
    mask = torch.tril(torch.ones(64, 64, device=q.device))
    for n in range(T // 64):
        s = slice(n * 64, (n + 1) * 64)
        qc = q[:, s].transpose(1, 2)
        kc = k[:, s].transpose(1, 2)
        vc = v_new[:, s].transpose(1, 2)
        gc = g[:, s].transpose(1, 2)
        a = (qc @ kc.transpose(-1, -2)) * torch.exp(gc[..., :, None] - gc[..., None, :]) * mask
        o = (qc @ h[:, n]) * gc.exp()[..., None] + a @ vc
        out[:, s] = (o * K ** -0.5).transpose(1, 2)
    return out
""",
    ("chunk_loop", "list_and_cat"): """
import torch


def chunk_output(q, k, v, h, g):
    a = torch.einsum("bihk,bjhk->bhij", q, k)
    gt = g.transpose(1, 2)
    a = torch.tril(a * torch.exp(gt[:, :, :, None] - gt[:, :, None, :]))
    o = torch.einsum("bihk,bhkv->bihv", q * g.exp()[..., None], h)
    return (o + torch.einsum("bhij,bjhv->bihv", a, v)) / q.shape[-1] ** 0.5


def run(q, k, v_new, h, g):
    pieces = zip(q.split(64, 1), k.split(64, 1), v_new.split(64, 1), h.unbind(1), g.split(64, 1))
    return torch.cat([chunk_output(*piece) for piece in pieces], dim=1)
""",
    ("head_loop", "matmul"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    out = torch.zeros(B, T, H, V, device=q.device)
    upper = torch.triu(torch.ones(64, 64, device=q.device, dtype=torch.bool), diagonal=1)
    for b in range(B):
        for head in range(H):
            qi = q[b, :, head].reshape(n, 64, K)
            ki = k[b, :, head].reshape(n, 64, K)
            vi = v_new[b, :, head].reshape(n, 64, V)
            gi = g[b, :, head].reshape(n, 64)
            a = torch.bmm(qi, ki.transpose(1, 2))
            a = a * (gi[:, :, None] - gi[:, None, :]).exp()
            a.masked_fill_(upper, 0)
            o = torch.bmm(qi, h[b, :, head]) * gi.exp()[:, :, None] + torch.bmm(a, vi)
            out[b, :, head] = (o * K ** -0.5).reshape(T, V)
    return out
""",
    ("row_loop", "accumulate"): """
import torch


def run(q, k, v_new, h, g):
    # walk over the 64 positions of all chunks at once
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    q = q.view(B, N, 64, H, K)
    k = k.view(B, N, 64, H, K)
    v = v_new.view(B, N, 64, H, V)
    g = g.view(B, N, 64, H)
    out = torch.einsum("bnchk,bnhkv->bnchv", q, h) * torch.exp(g)[..., None]
    for j in range(64):
        w = (q[:, :, j:] * k[:, :, j:j + 1]).sum(-1) * torch.exp(g[:, :, j:] - g[:, :, j:j + 1])
        out[:, :, j:] += w[..., None] * v[:, :, j:j + 1]
    return (out * K ** -0.5).reshape(B, T, H, V)
""",
    ("float64", "matmul"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    q, k, v, g = (x.double().view(B, n, 64, H, -1).transpose(2, 3) for x in (q, k, v_new, g.unsqueeze(-1)))
    a = torch.tril((q @ k.transpose(-1, -2)) * torch.exp(g - g.transpose(-1, -2)))
    o = (q @ h.double()) * torch.exp(g) + a @ v
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V).float()
""",
    ("broadcast_sum", "no_matmul"): '''
import torch


def run(q, k, v_new, h, g):
    """Products written as broadcasts and sums, a few chunks at a time."""
    B, T, H, K = q.shape
    out = torch.empty_like(v_new)
    idx = torch.arange(64, device=q.device)
    keep = (idx[:, None] >= idx[None, :])[None, :, :, None]
    for c in range(T // 64):
        lo, hi = c * 64, c * 64 + 64
        qc, kc, vc, gc = q[:, lo:hi], k[:, lo:hi], v_new[:, lo:hi], g[:, lo:hi]
        a = (qc[:, :, None] * kc[:, None]).sum(-1)
        a = torch.where(keep, a * torch.exp(gc[:, :, None] - gc[:, None]), torch.zeros_like(a))
        o = torch.zeros_like(vc)
        for j in range(0, 64, 16):
            o += (a[:, :, j:j + 16, :, None] * vc[:, None, j:j + 16]).sum(2)
        inter = torch.matmul(qc.transpose(1, 2), h[:, c]).transpose(1, 2)
        out[:, lo:hi] = (o + inter * gc.exp()[..., None]) * K ** -0.5
    return out
''',
    ("vmap", "per_chunk"): """
import torch
from torch.func import vmap


def one_chunk(q, k, v, h, g):
    a = torch.tril(q @ k.T * torch.exp(g[:, None] - g[None, :]))
    return ((q * torch.exp(g)[:, None]) @ h + a @ v) * q.shape[-1] ** -0.5


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    shape = (B, T // 64, 64, H)
    f = vmap(vmap(vmap(one_chunk, in_dims=(1, 1, 1, 0, 1), out_dims=1)))
    o = f(q.view(*shape, K), k.view(*shape, K), v_new.view(*shape, V), h, g.view(shape))
    return o.reshape(B, T, H, V)
""",
}

# Needless or useful lines at the start of run(), by name.
PRELUDES = {
    "clone": "    q, k, v_new, h, g = (x.clone().contiguous() for x in (q, k, v_new, h, g))\n",
    "synchronize": "    torch.cuda.synchronize()\n",
    "check_finite": (
        "    for x in (q, k, v_new, h, g):\n"
        "        if not torch.isfinite(x).all().item():\n"
        '            raise ValueError("input is not finite")\n'
    ),
    "check_decay": '    assert g.max().item() <= 0.0, "the decay must not grow"\n',
    "roundtrip": "    q, k, v_new, h, g = (x.double().float() for x in (q, k, v_new, h, g))\n",
}

# The setting is global: put it back, so that whoever comes next is not disturbed.
TF32_RUN = """


def run(q, k, v_new, h, g):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return compute(q, k, v_new, h, g)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
"""


def torch_source(algorithm: str, how: str, prelude: str | None = None) -> Draft:
    """Plain PyTorch, with or without lines at the start of ``run``."""
    code = TORCH[algorithm, how]
    if prelude == "tf32":
        code = wrap_run(code.rstrip("\n"), TF32_RUN, inner="compute")
    elif prelude:
        code = begin_run(code, PRELUDES[prelude])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "prelude": prelude}
    return Draft(choices, code, "pytorch")


TORCH_HALF = """
import torch


def run(q, k, v_new, h, g):
    # matrix products in @dtype@, the rest in float32
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    dt = torch.@dtype@
    qh = q.view(B, n, 64, H, K).transpose(2, 3).to(dt)
    kh = k.view(B, n, 64, H, K).transpose(2, 3).to(dt)
    vh = v_new.view(B, n, 64, H, V).transpose(2, 3).to(dt)
    gh = g.view(B, n, 64, H).transpose(2, 3)
    a = torch.matmul(qh, kh.transpose(-1, -2)).float()
    a = (a * torch.exp(gh[..., :, None] - gh[..., None, :])).tril()
    o = torch.matmul(qh, h.to(dt)).float() * torch.exp(gh)[..., None]
    o = o + torch.matmul(a.to(dt), vh).float()
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V)
"""


def torch_half(dtype: str) -> Draft:
    """Matrix products in half precision."""
    choices = {"family": "torch", "algorithm": "matmul", "how": f"in_{dtype}"}
    return Draft(choices, fill(TORCH_HALF, dtype=dtype), "pytorch")


# ------------------------------------------------------------------------------------------------- CUDA C++

CTYPES = """
import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch

CUDA = r'''
#include <cuda_runtime.h>
@kernel@
extern "C" int gdn_o(const float* q, const float* k, const float* v, const float* h, const float* g, float* o,
                     int B, int T, int H, int K, int V, float scale) {
@launch@
  return (int)cudaGetLastError();
}
'''


def load():
    name = "gdn_o_" + hashlib.md5(CUDA.encode()).hexdigest()
    path = os.path.join(tempfile.gettempdir(), name)
    if not os.path.exists(path + ".so"):
        scratch = f"{path}_{os.getpid()}"
        with open(scratch + ".cu", "w") as file:
            file.write(CUDA)
        command = ["nvcc", "-O3", "-arch=sm_90", "--shared", "-Xcompiler", "-fPIC"]
        subprocess.run([*command, scratch + ".cu", "-o", scratch + ".so"], check=True)
        os.replace(scratch + ".so", path + ".so")
    return ctypes.CDLL(path + ".so")


LIB = load()


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    o = torch.empty_like(v_new)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (q, k, v_new, h, g, o)]
    error = LIB.gdn_o(*pointers, B, T, H, K, V, ctypes.c_float(K ** -0.5))
    if error:
        raise RuntimeError(f"launch failed with CUDA error {error}")
    return o
"""

CU_ELEMENT = """
// One thread per output element; everything straight from global memory.
__global__ void one_thread_per_output(const float* q, const float* k, const float* v, const float* h,
                                      const float* g, float* o, int T, int H, int K, int V, float scale) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  int t = blockIdx.y, b = blockIdx.z / H, n = blockIdx.z % H;
  if (e >= V) return;
  int chunk = t / 64;
  const float* qt = q + ((size_t)(b * T + t) * H + n) * K;
  const float* state = h + ((size_t)(b * (T / 64) + chunk) * H + n) * K * V;
  float gt = g[(b * T + t) * H + n];
  float acc = 0.0f;
  for (int c = 0; c < K; c++) acc += qt[c] * state[c * V + e];
  acc *= expf(gt);
  for (int j = chunk * 64; j <= t; j++) {
    size_t row = (size_t)(b * T + j) * H + n;
    float s = 0.0f;
    for (int c = 0; c < K; c++) s += qt[c] * k[row * K + c];
    acc += s * expf(gt - g[row]) * v[row * V + e];
  }
  o[((size_t)(b * T + t) * H + n) * V + e] = acc * scale;
}
"""


def cuda_element(threads: int) -> Draft:
    """A thread per element of the output."""
    launch = (
        f"  one_thread_per_output<<<dim3((V + {threads - 1}) / {threads}, T, B * H), {threads}>>>(\n"
        "      q, k, v, h, g, o, T, H, K, V, scale);"
    )
    code = fill(CTYPES, kernel=fill(CU_ELEMENT), launch=launch)
    return Draft({"family": "cuda_element", "threads": threads}, code, "cuda")


CU_SHARED = """
#define THREADS @threads@
#define TILE_V @bv@
// One block per chunk, head and tile of V. Scores are kept in shared memory, with the decay folded in.
__global__ void __launch_bounds__(THREADS) chunk_block(const float* q, const float* k, const float* v,
                                                       const float* h, const float* g, float* o,
                                                       int T, int H, int K, int V, float scale) {
  extern __shared__ float smem[];
  float* qs = smem;                 // [64][K + 1]
  float* ks = qs + 64 * (K + 1);    // [64][K + 1]
  float* as = ks + 64 * (K + 1);    // [64][65]
  __shared__ float gs[64];
  const int chunk = blockIdx.y, b = blockIdx.z / H, n = blockIdx.z % H, v0 = blockIdx.x * TILE_V;
  const size_t first = (size_t)b * T + chunk * 64;
  for (int i = threadIdx.x; i < 64 * K; i += THREADS) {
    int r = i / K, c = i % K;
    qs[r * (K + 1) + c] = q[((first + r) * H + n) * K + c];
    ks[r * (K + 1) + c] = k[((first + r) * H + n) * K + c];
  }
  if (threadIdx.x < 64) gs[threadIdx.x] = g[(first + threadIdx.x) * H + n];
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 64; i += THREADS) {
    int r = i / 64, c = i % 64;
    float s = 0.f;
    if (r >= c) {
      for (int d = 0; d < K; d++) s += qs[r * (K + 1) + d] * ks[c * (K + 1) + d];
      s *= __expf(gs[r] - gs[c]);
    }
    as[r * 65 + c] = s;
  }
  __syncthreads();
  const float* state = h + (((size_t)b * (T / 64) + chunk) * H + n) * K * V;
@output@
}
"""

CU_SHARED_OUTPUT = {
    "scalar": """  for (int i = threadIdx.x; i < 64 * TILE_V; i += THREADS) {
    int r = i / TILE_V, e = v0 + i % TILE_V;
    float x = 0.f, y = 0.f;
    for (int d = 0; d < K; d++) x += qs[r * (K + 1) + d] * state[d * V + e];
    for (int j = 0; j <= r; j++) y += as[r * 65 + j] * v[((first + j) * H + n) * V + e];
    o[((first + r) * H + n) * V + e] = (x * __expf(gs[r]) + y) * scale;
  }""",
    "register_rows": """  // each thread owns one column and eight rows, so a loaded value is used eight times
  for (int i = threadIdx.x; i < 8 * TILE_V; i += THREADS) {
    const int e = v0 + i % TILE_V, r0 = (i / TILE_V) * 8;
    float x[8], y[8];
#pragma unroll
    for (int u = 0; u < 8; u++) x[u] = y[u] = 0.f;
    for (int d = 0; d < K; d++) {
      float s = state[d * V + e];
#pragma unroll
      for (int u = 0; u < 8; u++) x[u] += qs[(r0 + u) * (K + 1) + d] * s;
    }
    for (int j = 0; j < r0 + 8; j++) {
      float w = v[((first + j) * H + n) * V + e];
#pragma unroll
      for (int u = 0; u < 8; u++) y[u] += as[(r0 + u) * 65 + j] * w;
    }
#pragma unroll
    for (int u = 0; u < 8; u++) {
      const size_t row = (first + r0 + u) * H + n;
      o[row * V + e] = (x[u] * __expf(gs[r0 + u]) + y[u]) * scale;
    }
  }""",
}

SHARED_LAUNCH = """  const int bytes = (2 * 64 * (K + 1) + 64 * 65) * sizeof(float);
  cudaFuncSetAttribute(chunk_block, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  chunk_block<<<dim3(V / TILE_V, T / 64, B * H), THREADS, bytes>>>(q, k, v, h, g, o, T, H, K, V, scale);"""


def cuda_shared(output: str, threads: int, bv: int) -> Draft:
    """A block per chunk, head and tile of V, with the scores in shared memory."""
    kernel = fill(CU_SHARED, threads=threads, bv=bv, output=CU_SHARED_OUTPUT[output])
    choices = {"family": "cuda_shared", "output": output, "threads": threads, "bv": bv}
    return Draft(choices, fill(CTYPES, kernel=kernel, launch=SHARED_LAUNCH), "cuda")


# ------------------------------------------------------------------------------------------------- the pool

SEED = tiles(32, 16, 4, 1, "ieee")


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(
        tiles(bv, bk, warps, stages, precision)
        for bv, bk, warps, stages, precision in (
            (16, 16, 4, 1, "ieee"),
            (16, 16, 2, 1, "ieee"),
            (32, 16, 4, 1, "ieee"),
            (32, 16, 2, 1, "ieee"),
            (32, 16, 8, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 16, 4, 3, "ieee"),
            (64, 16, 4, 1, "ieee"),
            (64, 32, 4, 1, "ieee"),
            (64, 32, 4, 3, "ieee"),
            (64, 64, 8, 1, "ieee"),
            (128, 32, 8, 2, "ieee"),
            (16, 16, 4, 1, "tf32x3"),
            (32, 16, 4, 1, "tf32x3"),
            (32, 32, 4, 1, "tf32x3"),
            (64, 32, 4, 3, "tf32x3"),
            (64, 64, 8, 1, "tf32x3"),
            (16, 16, 4, 1, "tf32"),
            (16, 32, 4, 1, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 32, 4, 3, "tf32"),
            (64, 32, 4, 1, "tf32"),
            (64, 32, 4, 3, "tf32"),
            (64, 64, 4, 2, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (64, 64, 8, 2, "tf32"),
            (128, 32, 8, 2, "tf32"),
            (128, 64, 8, 2, "tf32"),
            (32, 32, 4, 1, "fp16"),
            (64, 32, 4, 3, "fp16"),
            (64, 64, 4, 2, "fp16"),
            (128, 64, 8, 2, "fp16"),
            (32, 32, 1, 1, "tf32"),
            (64, 64, 4, 2, "bf16"),
            (128, 16, 4, 1, "ieee"),
        )
    )
    pool.add(
        block_pointers(bv, bk, warps, stages, precision, check)
        for bv, bk, warps, stages, precision, check in (
            (32, 32, 4, 2, "ieee", "checked"),
            (64, 32, 4, 2, "ieee", "checked"),
            (32, 32, 4, 2, "tf32", "checked"),
            (64, 32, 4, 2, "tf32", "checked"),
            (64, 64, 4, 2, "tf32", "checked"),
            (64, 64, 4, 3, "tf32", "checked"),
            (128, 64, 4, 2, "tf32", "checked"),
            (128, 64, 8, 3, "tf32", "checked"),
            (64, 64, 4, 2, "tf32", "plain"),
            (128, 64, 8, 2, "tf32", "plain"),
            (32, 64, 2, 3, "tf32", "plain"),
            (64, 64, 4, 2, "fp16", "plain"),
            (64, 32, 4, 2, "tf32x3", "checked"),
            (32, 32, 4, 2, "ieee", "plain"),
        )
    )
    pool.add(
        whole_head(bv, warps, stages, precision, loop)
        for bv, warps, stages, precision, loop in (
            (16, 4, 1, "ieee", "range"),
            (32, 4, 1, "ieee", "range"),
            (32, 8, 1, "ieee", "range"),
            (64, 8, 1, "ieee", "range"),
            (32, 4, 1, "tf32x3", "range"),
            (64, 8, 1, "tf32x3", "range"),
            (16, 4, 1, "tf32", "range"),
            (32, 4, 1, "tf32", "range"),
            (32, 4, 2, "tf32", "range"),
            (64, 4, 1, "tf32", "range"),
            (64, 8, 1, "tf32", "range"),
            (64, 4, 1, "tf32", "static"),
            (32, 4, 1, "tf32", "static"),
            (128, 8, 1, "tf32", "range"),
            (64, 4, 1, "fp16", "range"),
            (32, 4, 2, "fp16", "range"),
        )
    )
    pool.add(
        two_kernels(bv, bk, warps, alloc, store, precision)
        for bv, bk, warps, alloc, store, precision in (
            (32, 32, 4, "empty", "float32", "ieee"),
            (32, 32, 4, "zeros", "float32", "ieee"),
            (32, 32, 4, "empty", "float32", "tf32"),
            (64, 64, 4, "empty", "float32", "tf32"),
            (64, 32, 4, "empty", "float32", "tf32"),
            (64, 64, 8, "empty", "float32", "tf32"),
            (64, 64, 4, "empty", "float16", "tf32"),
            (64, 64, 4, "empty", "float16", "fp16"),
            (16, 16, 4, "zeros", "float32", "ieee"),
            (64, 32, 4, "empty", "float32", "tf32x3"),
        )
    )
    pool.add(
        torch_inter(inter, bv, warps, precision)
        for inter, bv, warps, precision in (
            ("matmul", 32, 4, "ieee"),
            ("matmul", 64, 4, "tf32"),
            ("einsum", 32, 4, "ieee"),
            ("einsum", 64, 4, "tf32"),
            ("bmm", 32, 4, "ieee"),
            ("bmm", 64, 4, "tf32"),
            ("bmm", 128, 8, "tf32"),
        )
    )
    pool.add(no_dots(bv, warps) for bv, warps in ((16, 4), (32, 4), (32, 8), (64, 4), (64, 8), (128, 8)))
    pool.add(
        one_token(loop, warps) for loop, warps in (("serial", 1), ("serial", 4), ("vector", 4), ("vector", 8))
    )
    pool.add(
        subtiles(bm, bv, warps, stages, precision)
        for bm, bv, warps, stages, precision in (
            (16, 32, 2, 1, "ieee"),
            (16, 64, 4, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 64, 4, 1, "ieee"),
            (16, 64, 2, 1, "tf32"),
            (16, 64, 4, 2, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (32, 64, 4, 2, "tf32"),
            (32, 128, 4, 1, "tf32"),
            (32, 64, 4, 1, "fp16"),
            (32, 64, 4, 1, "tf32x3"),
        )
    )
    pool.add(
        factored(bv, warps, precision)
        for bv, warps, precision in (
            (32, 4, "ieee"),
            (64, 4, "ieee"),
            (32, 4, "tf32"),
            (64, 4, "tf32"),
            (64, 8, "tf32"),
            (128, 8, "tf32"),
            (64, 4, "fp16"),
        )
    )
    pool.add(
        persistent(per_sm, bv, warps, precision)
        for per_sm, bv, warps, precision in (
            (1, 64, 4, "tf32"),
            (2, 64, 4, "tf32"),
            (4, 64, 4, "tf32"),
            (2, 64, 8, "tf32"),
            (1, 32, 4, "ieee"),
            (4, 32, 4, "ieee"),
            (4, 64, 4, "fp16"),
            (1, 16, 4, "ieee"),
        )
    )
    pool.add(
        several_chunks(chunks, bv, warps, precision, loop)
        for chunks, bv, warps, precision, loop in (
            (2, 64, 4, "tf32", "range"),
            (4, 64, 4, "tf32", "range"),
            (2, 32, 4, "ieee", "range"),
            (8, 32, 4, "ieee", "range"),
            (2, 64, 4, "tf32", "static"),
            (8, 64, 4, "tf32", "range"),
        )
    )
    pool.add(autotuned(precision) for precision in AUTOTUNE)


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("einsum", "decay_matrix", "tf32"),
            ("einsum", "decay_matrix", "clone"),
            ("einsum", "long_subscripts", "check_finite"),
            ("matmul", "decay_matrix", "tf32"),
            ("matmul", "decay_matrix", "check_finite"),
            ("matmul", "factored", "tf32"),
            ("matmul", "factored", "synchronize"),
            ("matmul", "concatenated", "tf32"),
            ("matmul", "concatenated", "roundtrip"),
            ("bmm", "contiguous", "tf32"),
            ("bmm", "contiguous", "clone"),
            ("bmm", "contiguous", "check_decay"),
            ("bmm", "baddbmm", "tf32"),
            ("bmm", "baddbmm", "synchronize"),
            ("bmm", "baddbmm", "roundtrip"),
            ("chunk_loop", "all_heads", "clone"),
            ("head_loop", "matmul", "tf32"),
            ("head_loop", "matmul", "check_decay"),
        )
    )
    pool.add(torch_half(dtype) for dtype in ("float16", "bfloat16"))


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(cuda_element(threads) for threads in (64, 128))
    pool.add(
        cuda_shared(output, threads, bv)
        for output, threads, bv in (
            ("scalar", 128, 64),
            ("scalar", 256, 64),
            ("scalar", 256, 32),
            ("register_rows", 128, 64),
            ("register_rows", 256, 64),
            ("register_rows", 256, 32),
            ("register_rows", 512, 64),
        )
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    causal = "index[:, None] >= index[None, :]"
    pool.add_broken(
        SEED,
        not_causal={f"    scores = tl.where({causal}, scores, 0.0)\n": ""},
        strictly_causal={causal: "index[:, None] > index[None, :]"},
        undefined_name={"out += tl.dot(scores,": "out += tl.dot(probs,"},
        tile_not_power_of_two={"BV = min(32, V)": "BV = min(48, V)"},
    )
    pool.add_broken(
        tiles(64, 32, 4, 1, "tf32"),
        no_scale={"out * scale)": "out)"},
        decay_sign={"tl.exp(g[:, None] - g[None, :])": "tl.exp(g[None, :] - g[:, None])"},
        half_of_k={"range(0, K, BK)": "range(0, K // 2, BK)"},
        missing_transpose={"token[None, :] * K + cols_k[:, None]": "token[:, None] * K + cols_k[None, :]"},
    )
    pool.add_broken(
        tiles(128, 64, 8, 2, "tf32"),
        shared_memory_overflow={"num_stages=2": "num_stages=8"},
        pointer_far_out={"+ pid_t) * H + head) * K * V": "+ pid_t) * H + head).to(tl.int64) * K * V * 65536"},
        warps_not_power_of_two={"num_warps=8": "num_warps=6"},
    )
    pool.add_broken(
        tiles(64, 64, 4, 2, "fp16"),
        mixed_types={
            "tl.dot(q_tile.to(tl.float16), h_tile.to(tl.float16))": "tl.dot(q_tile.to(tl.float16), h_tile)"
        },
        float16_decay={"g = tl.load(g_ptr + token)\n": "g = tl.load(g_ptr + token).to(tl.float16)\n"},
    )
    pool.add_broken(
        block_pointers(64, 64, 4, 2, "tf32", "checked"),
        scale_twice={"acc = acc * scale +": "acc = acc * scale * scale +"},
        order_of_strides={"(T, V), (H * V, 1), (ic * C, iv * BV)": "(T, V), (V, 1), (ic * C, iv * BV)"},
        length_of_block={"(j * BK, ic * C), (BK, C), (0, 1))": "(j * BK, ic * C), (BK,), (0, 1))"},
    )
    pool.add_broken(
        whole_head(64, 8, 1, "tf32"),
        first_tile_only={
            "Vn + tok[:, None] * DV + e[None, :]": "Vn + tok[:, None] * DV + tl.arange(0, BLOCK_V)[None, :]"
        },
        no_decay_between_chunks={"(tl.exp(gt) * sm_scale)[:, None]": "sm_scale"},
        decay_before_scores={
            "    qt = qt * (tl.exp(gt) * sm_scale)[:, None]\n": "",
            "    attn = tl.dot(": "    qt = qt * (tl.exp(gt) * sm_scale)[:, None]\n    attn = tl.dot(",
        },
        syntax_error={
            "tl.where(i[:, None] >= i[None, :], attn, 0.0)": "tl.where(i[:, None] >= i[None, :], attn, 0.0))"
        },
    )
    pool.add_broken(
        two_kernels(64, 64, 4, "empty", "float32", "tf32"),
        scores_overlap={"a + ((i_bh * T) + i_t * BT": "a + ((i_b * T) + i_t * BT"},
        state_of_first_batch={"(i_b * (T // BT) + i_t) * H + i_h": "i_t * H + i_h"},
    )
    pool.add_broken(
        no_dots(64, 8),
        sum_over_wrong_axis={"tl.sum(q * k_j[None, :], axis=1)": "tl.sum(q * k_j[None, :], axis=0)"},
        very_long_loop={
            "    for j in range(64):\n": "    for step in range(64 * 30000000):\n        j = step % 64\n"
        },
    )
    pool.add_broken(
        subtiles(32, 64, 4, 1, "tf32"),
        diagonal_left_out={"range(0, sub + 1)": "range(0, sub)"},
        small_dot={"BM, BV = 32,": "BM, BV = 4,"},
    )
    pool.add_broken(
        factored(64, 4, "tf32"), decay_not_negated={"tl.exp(-decay)[None, :]": "tl.exp(decay)[None, :]"}
    )
    pool.add_broken(
        persistent(2, 64, 4, "tf32"),
        head_and_chunk_swapped={
            "n = head_chunk % H": "n = head_chunk // (T // 64) % H",
            "chunk = head_chunk // H": "chunk = head_chunk % (T // 64)",
        },
        stages_left_to_default={"num_warps=4, num_stages=1)": "num_warps=4)"},
    )
    pool.add_broken(several_chunks(2, 64, 4, "tf32"), keys_not_transposed={"tl.trans(kb)": "kb"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("einsum", "decay_matrix"), subscripts={"bnhij,bnjhv->bnihv": "bnhij,bnihv->bnjhv"}
    )
    pool.add_broken(
        torch_source("matmul", "decay_matrix"), no_mask={'diff.masked_fill(~causal, float("-inf"))': "diff"}
    )
    pool.add_broken(
        torch_source("matmul", "factored"),
        view_of_transposed={
            "o.transpose(2, 3).reshape(B, T, H, V)": "o.transpose(2, 3).view(B, T, H * V).view(B, T, V, H)"
        },
    )
    pool.add_broken(
        torch_source("bmm", "contiguous"),
        chunks_mixed_up={
            ".permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, V)": ".contiguous().view(B, T, H, V)"
        },
    )
    pool.add_broken(
        torch_source("bmm", "baddbmm"), wrong_keyword={"beta=scale, alpha=scale": "beta=scale, gamma=scale"}
    )
    pool.add_broken(torch_source("chunk_loop", "all_heads"), state_of_next_chunk={"h[:, n]": "h[:, n - 1]"})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_shared("register_rows", 256, 64),
        limit_not_raised={
            "  cudaFuncSetAttribute(chunk_block, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);\n": ""
        },
        undeclared_variable={"float w = v[((first + j)": "float w = v[((start + j)"},
    )
    pool.add_broken(cuda_element(128), off_by_one={"j <= t; j++": "j < t; j++"})


def link_triton(pool: Pool) -> None:
    """Names the changes of algorithm between Triton sources."""
    for bv, precision in ((32, "ieee"), (32, "tf32")):
        pool.link(tiles(bv, 32, 4, 1, precision), block_pointers(bv, 32, 4, 2, precision, "checked"))
    pool.link(tiles(64, 64, 4, 2, "tf32"), block_pointers(64, 64, 4, 2, "tf32", "checked"))
    pool.link(tiles(64, 32, 4, 3, "tf32x3"), block_pointers(64, 32, 4, 2, "tf32x3", "checked"))
    for bv, bk, warps, precision in (
        (32, 32, 4, "ieee"),
        (32, 32, 4, "tf32x3"),
        (32, 32, 4, "tf32"),
        (64, 64, 8, "tf32"),
        (64, 64, 8, "ieee"),
    ):
        pool.link(tiles(bv, bk, warps, 1, precision), whole_head(bv, warps, 1, precision))
    for bv, warps, precision in (
        (32, 4, "ieee"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (128, 8, "tf32"),
        (64, 4, "fp16"),
    ):
        pool.link(whole_head(bv, warps, 1, precision), factored(bv, warps, precision))
    pool.link(SEED, two_kernels(32, 32, 4, "zeros", "float32", "ieee"))
    pool.link(tiles(32, 32, 4, 1, "ieee"), two_kernels(32, 32, 4, "empty", "float32", "ieee"))
    pool.link(tiles(16, 16, 4, 1, "ieee"), two_kernels(16, 16, 4, "zeros", "float32", "ieee"))
    pool.link(tiles(64, 64, 4, 2, "tf32"), two_kernels(64, 64, 4, "empty", "float32", "tf32"))
    for bm, bv, warps, stages, precision in (
        (32, 32, 4, 1, "ieee"),
        (16, 32, 2, 1, "ieee"),
        (32, 32, 4, 1, "tf32"),
    ):
        pool.link(
            subtiles(bm, bv, warps, stages, precision),
            tiles(bv, 16 if precision == "ieee" else 32, 4, 1, precision),
        )
    pool.link(subtiles(32, 64, 4, 1, "tf32"), tiles(64, 32, 4, 1, "tf32"))
    for per_sm, bv, warps, precision in (
        (1, 16, 4, "ieee"),
        (1, 32, 4, "ieee"),
        (4, 32, 4, "ieee"),
        (2, 64, 4, "tf32"),
        (2, 64, 8, "tf32"),
    ):
        pool.link(persistent(per_sm, bv, warps, precision), whole_head(bv, warps, 1, precision))
    pool.link(persistent(4, 64, 4, "fp16"), whole_head(64, 4, 1, "fp16"))
    for chunks, bv, precision in (
        (2, 32, "ieee"),
        (8, 32, "ieee"),
        (2, 64, "tf32"),
        (4, 64, "tf32"),
        (8, 64, "tf32"),
    ):
        pool.link(several_chunks(chunks, bv, 4, precision), whole_head(bv, 4, 1, precision))
    pool.link(several_chunks(2, 64, 4, "tf32"), persistent(2, 64, 4, "tf32"))
    pool.link(several_chunks(8, 32, 4, "ieee"), several_chunks(2, 32, 4, "ieee"))
    pool.link(autotuned("ieee"), tiles(64, 32, 4, 1, "ieee"))
    pool.link(autotuned("tf32"), factored(64, 4, "tf32"))
    pool.link(autotuned("tf32"), whole_head(64, 4, 1, "tf32"))
    for bv, warps in ((16, 4), (32, 4), (32, 8), (64, 4)):
        pool.link(no_dots(bv, warps), tiles(bv, 16, warps, 1, "ieee"))
    pool.link(one_token("serial", 4), no_dots(128, 8))
    pool.link(one_token("vector", 4), no_dots(64, 4))
    pool.link(one_token("vector", 4), SEED)
    pool.link(one_token("serial", 4), cuda_element(128))
    for inter in HYBRID_INTER:
        for bv, precision in ((32, "ieee"), (64, "tf32")):
            hybrid = torch_inter(inter, bv, 4, precision)
            pool.link(hybrid, tiles(bv, 32, 4, 1, precision))
            if precision == "ieee":
                partner = {"matmul": "decay_matrix", "einsum": "decay_matrix", "bmm": "contiguous"}[inter]
                pool.link(hybrid, torch_source(inter, partner))


def link_torch(pool: Pool) -> None:
    """Names those between PyTorch sources, and from them to others."""
    pool.link(
        torch_source("einsum", "long_subscripts"),
        torch_source("einsum", "decay_matrix"),
        torch_source("matmul", "decay_matrix"),
        torch_source("bmm", "contiguous"),
        torch_source("bmm", "baddbmm"),
        torch_source("matmul", "concatenated"),
        torch_source("matmul", "factored"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("matmul", "decay_matrix"),
        torch_source("vmap", "per_chunk"),
        torch_source("chunk_loop", "list_and_cat"),
        torch_source("einsum", "decay_matrix"),
        torch_source("row_loop", "accumulate"),
        torch_source("broadcast_sum", "no_matmul"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("head_loop", "matmul"),
        torch_source("bmm", "contiguous"),
        torch_source("float64", "matmul"),
        torch_source("matmul", "decay_matrix"),
    )
    pool.link(torch_source("matmul", "decay_matrix"), SEED)
    pool.link(torch_source("bmm", "contiguous"), SEED)


def link_cuda(pool: Pool) -> None:
    """Names those between CUDA C++ sources, and from them to others."""
    pool.link(cuda_element(64), cuda_shared("scalar", 128, 64))
    pool.link(cuda_element(128), cuda_shared("scalar", 128, 64))
    pool.link(cuda_shared("scalar", 256, 32), SEED)
    pool.link(cuda_shared("register_rows", 256, 64), tiles(64, 64, 8, 1, "ieee"))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_torch,
        add_cuda,
        break_triton,
        break_torch,
        break_cuda,
        link_triton,
        link_torch,
        link_cuda,
        Pool.link_retuned,
    )


def generate() -> list[Variant]:
    """The sources of the task."""
    return make_pool().variants


def extra_edges() -> list[tuple[Key, Key]]:
    """The edits that `edit_graph` cannot tell from the keys."""
    return make_pool().edges
