"""Triton families of the recorded task ``gdn_chunk_o``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import dotted
from benchmarks.generators.text import eviction, fill

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


DIRECT = """
import torch
import triton
import triton.language as tl


@triton.jit
def direct_o(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, scale, T, H, K: tl.constexpr, V: tl.constexpr,
             BV: tl.constexpr):
    # everything a tile needs is loaded at once
    tile = tl.program_id(@tile_axis@)
    chunk = tl.program_id(@chunk_axis@)
    pair = tl.program_id(@pair_axis@)
    b, n = pair // H, pair % H
    i = tl.arange(0, 64)
    dk = tl.arange(0, K)
    dv = tile * BV + tl.arange(0, BV)
    t = (b * T + chunk * 64 + i) * H + n
    qb = tl.load(q_ptr + t[:, None] * K + dk[None, :]@kept@)
    kb = tl.load(k_ptr + t[None, :] * K + dk[:, None]@kept@)
    hb = tl.load(h_ptr + (((b * (T // 64) + chunk) * H + n) * K + dk[:, None]) * V + dv[None, :]@once@)
    vb = tl.load(v_ptr + t[:, None] * V + dv[None, :]@once@)
    gb = tl.load(g_ptr + t)@log2@
    @weights@
    ob = <<qb|hb>> * @exp@(gb)[:, None]
    ob += <<wb|vb>>
    tl.store(o_ptr + t[:, None] * V + dv[None, :], ob * scale@once@)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BV = min(@bv@, V)
    o = torch.empty_like(v_new)
    direct_o[@grid@](q, k, v_new, h, g, o, K ** -0.5, T, H, K=K, V=V, BV=BV, num_warps=@warps@, num_stages=@stages@)
    return o
"""
DIRECT_WEIGHTS = {
    "where": """wb = <<qb|kb>> * @exp@(gb[:, None] - gb[None, :])
wb = tl.where(i[:, None] >= i[None, :], wb, 0.0)""",
    "masked_decay": """decay = tl.where(i[:, None] >= i[None, :], gb[:, None] - gb[None, :], -float("inf"))
wb = <<qb|kb>> * @exp@(decay)""",
    "multiplied": """low = (i[:, None] >= i[None, :]).to(tl.float32)
wb = <<qb|kb>> * @exp@(tl.minimum(gb[:, None] - gb[None, :], 0.0)) * low""",
}
DIRECT_GRIDS = {
    "tile_chunk_pair": ("012", "(V // BV, T // 64, B * H)"),
    "chunk_pair_tile": ("201", "(T // 64, B * H, V // BV)"),
    "pair_chunk_tile": ("210", "(B * H, T // 64, V // BV)"),
}


def direct(
    bv: int,
    warps: int,
    stages: int,
    precision: str,
    mask: str = "where",
    order: str = "tile_chunk_pair",
    exp: str = "exp",
    hints: str = "none",
) -> Draft:
    """A program per tile of V without a loop over K."""
    choices = {
        "family": "direct",
        "bv": bv,
        "warps": warps,
        "stages": stages,
        "mask": mask,
        "order": order,
        "exp": exp,
        "hints": hints,
    }
    axes, grid = DIRECT_GRIDS[order]
    code = fill(
        DIRECT,
        bv=bv,
        warps=warps,
        stages=stages,
        tile_axis=axes[0],
        chunk_axis=axes[1],
        pair_axis=axes[2],
        grid=grid,
        weights=DIRECT_WEIGHTS[mask],
        exp="tl.exp2" if exp == "exp2" else "tl.exp",
        log2=" * 1.4426950408889634" if exp == "exp2" else "",
        kept=eviction("last", hints == "evict"),
        once=eviction("first", hints == "evict"),
    )
    return dotted(choices, code, precision)


ALL_HEADS = """
import torch
import triton
import triton.language as tl


@triton.jit
def heads_in_turn(q, k, v, h, g, o, scale, T, H, PER: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
                  BV: tl.constexpr):
    # neighbouring heads of a chunk share cache lines of g and pages of everything else
    chunk = tl.program_id(0)  # counts through batches as well
    first = tl.program_id(1) * PER
    e = tl.program_id(2) * BV + tl.arange(0, BV)
    r = tl.arange(0, 64)
    d = tl.arange(0, K)
    seen = r[:, None] >= r[None, :]
    for n in range(first, min(first + PER, H)):
        t = (chunk * 64 + r) * H + n
        bq = tl.load(q + t[:, None] * K + d[None, :])
        bk = tl.load(k + t[:, None] * K + d[None, :])
        bg = tl.load(g + t)
        a = <<bq|tl.trans(bk)>> * tl.exp(bg[:, None] - bg[None, :])
        a = tl.where(seen, a, 0.0)
        bh = tl.load(h + ((chunk * H + n) * K + d[:, None]) * V + e[None, :])
        acc = <<bq|bh>> * tl.exp(bg)[:, None]
        bv = tl.load(v + t[:, None] * V + e[None, :])
        acc += <<a|bv>>
        tl.store(o + t[:, None] * V + e[None, :], acc * scale)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    BV = min(@bv@, V)
    PER = @heads@
    o = torch.empty_like(v_new)
    grid = (B * (T // 64), triton.cdiv(H, PER), V // BV)
    heads_in_turn[grid](q, k, v_new, h, g, o, K ** -0.5, T, H, PER=PER, K=K, V=V, BV=BV,
                        num_warps=@warps@, num_stages=@stages@)
    return o
"""


def all_heads(heads: int, bv: int, warps: int, stages: int, precision: str) -> Draft:
    """Several heads of a chunk per program."""
    choices = {"family": "all_heads", "heads": heads, "bv": bv, "warps": warps, "stages": stages}
    return dotted(choices, fill(ALL_HEADS, heads=heads, bv=bv, warps=warps, stages=stages), precision)


RECURRENT = '''
import torch
import triton
import triton.language as tl


@triton.jit
def recurrent_o(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, scale, T, H,
                K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    """The state itself is carried through the chunk: decay, add k v^T, read with q."""
    tile, chunk, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pair // H, pair % H
    d = tl.arange(0, K)
    e = tile * BV + tl.arange(0, BV)
    state = tl.load(h_ptr + (((b * (T // 64) + chunk) * H + n) * K + d[:, None]) * V + e[None, :])
    before = 0.0
    for j in @loop@:
        t = (b * T + chunk * 64 + j) * H + n
        g = tl.load(g_ptr + t)
        k = tl.load(k_ptr + t * K + d)
        v = tl.load(v_ptr + t * V + e)
        state = state * tl.exp(g - before) + k[:, None] * v[None, :]
        q = tl.load(q_ptr + t * K + d) * scale
        tl.store(o_ptr + t * V + e, tl.sum(q[:, None] * state, axis=0))
        before = g


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    o = torch.empty_like(v_new)
    recurrent_o[(V // @bv@, T // 64, B * H)](q, k, v_new, h, g, o, K ** -0.5, T, H, K=K, V=V, BV=@bv@,
                                             num_warps=@warps@)
    return o
'''


def recurrent(bv: int, warps: int, loop: str = "range") -> Draft:
    """Position by position, with the state in registers and without scores."""
    loops = {"range": "range(64)", "unrolled": "tl.range(0, 64, loop_unroll_factor=4)"}
    choices = {"family": "recurrent", "bv": bv, "warps": warps, "loop": loop}
    return Draft(choices, fill(RECURRENT, bv=bv, warps=warps, loop=loops[loop]))
