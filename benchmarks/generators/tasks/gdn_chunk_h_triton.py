"""Triton families of the recorded task ``gdn_chunk_h``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import dotted
from benchmarks.generators.text import TRITON_IMPORTS, eviction, fill

STATE_IN_MEMORY = """
import torch
import triton
import triton.language as tl


@triton.jit
def state_kernel(
    k_ptr, w_ptr, u_ptr, g_ptr, h_ptr, v_ptr, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    # one program: one tile of V of one (batch, head); the state of the next chunk is made in global memory
    pid_v = tl.program_id(0)
    pid_bh = tl.program_id(1)
    batch = pid_bh // H
    head = pid_bh % H
    n_chunks = T // BT
    rows = tl.arange(0, BT)
    cols_v = pid_v * BV + tl.arange(0, BV)
    for chunk in range(0, n_chunks):
        token = (batch * T + chunk * BT + rows) * H + head
        here = h_ptr + ((batch * n_chunks + chunk) * H + head) * K * V
        there = here + H * K * V
        v = tl.load(u_ptr + token[:, None] * V + cols_v[None, :])
        for k_start in range(0, K, BK):
            cols_k = k_start + tl.arange(0, BK)
            h_tile = tl.load(here + cols_k[:, None] * V + cols_v[None, :])
            w_tile = tl.load(w_ptr + token[:, None] * K + cols_k[None, :])
            v -= <<w_tile|h_tile>>
        tl.store(v_ptr + token[:, None] * V + cols_v[None, :], v)
        if chunk + 1 < n_chunks:
            g = tl.load(g_ptr + token)
            g_last = tl.load(g_ptr + (batch * T + chunk * BT + BT - 1) * H + head)
            v = v * tl.exp(g_last - g)[:, None]
            for k_start in range(0, K, BK):
                cols_k = k_start + tl.arange(0, BK)
                h_tile = tl.load(here + cols_k[:, None] * V + cols_v[None, :]) * tl.exp(g_last)
                k_tile = tl.load(k_ptr + token[None, :] * K + cols_k[:, None])
                h_tile += <<k_tile|v>>
                tl.store(there + cols_k[:, None] * V + cols_v[None, :], h_tile)
            tl.debug_barrier()


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    BK = min(@bk@, K)
    BV = min(@bv@, V)
    h = torch.zeros(B, T // 64, H, K, V, device=k.device, dtype=torch.float32)
    v_new = torch.empty_like(u)
    state_kernel[(V // BV, B * H)](
        k, w, u, g, h, v_new, T, H, K=K, V=V, BT=64, BK=BK, BV=BV, num_warps=@warps@, num_stages=@stages@,
    )
    return h, v_new
"""


def state_in_memory(bv: int, bk: int, warps: int, stages: int, precision: str) -> Draft:
    """A program per tile of V that keeps its state in global memory."""
    choices = {"family": "state_in_memory", "bv": bv, "bk": bk, "warps": warps, "stages": stages}
    return dotted(choices, fill(STATE_IN_MEMORY, bv=bv, bk=bk, warps=warps, stages=stages), precision)


FUSED = '''
import torch
import triton
import triton.language as tl


@triton.jit
def chunk_states(K_, W_, U_, G_, Hs, Vn, SEQ, HEADS, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr):
    """The state [DK, BV] stays in registers while the program walks along the chunks."""
    b = tl.program_id(1) // HEADS
    n = tl.program_id(1) % HEADS
    i = tl.arange(0, 64)
    d = tl.arange(0, DK)
    e = tl.program_id(0) * BV + tl.arange(0, BV)
    n_chunks = SEQ // 64
    state = tl.zeros([DK, BV], dtype=tl.float32)
    for c in @loop@:
        tok = (b * SEQ + c * 64 + i) * HEADS + n
        at = Hs + ((b * n_chunks + c) * HEADS + n) * DK * DV
        tl.store(at + d[:, None] * DV + e[None, :], state@evict@)
        wt = tl.load(W_ + tok[:, None] * DK + d[None, :])
        ut = tl.load(U_ + tok[:, None] * DV + e[None, :])
        vt = ut - <<wt|state>>
        tl.store(Vn + tok[:, None] * DV + e[None, :], vt@evict@)
        gt = tl.load(G_ + tok)
        last = tl.load(G_ + (b * SEQ + c * 64 + 63) * HEADS + n)
        @update@


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.empty((B, T // 64, H, K, V), dtype=torch.float32, device=k.device)
    v_new = torch.empty_like(u)
    BV = min(@bv@, V)
    chunk_states[(V // BV, B * H)](k, w, u, g, h, v_new, T, H, DK=K, DV=V, BV=BV,
                                   num_warps=@warps@, num_stages=@stages@)
    return h, v_new
'''

FUSED_UPDATES = {
    "on_values": """kt = tl.load(K_ + tok[None, :] * DK + d[:, None])
vt = vt * tl.exp(last - gt)[:, None]
state = state * tl.exp(last) + <<kt|vt>>""",
    "on_keys": """kt = tl.load(K_ + tok[None, :] * DK + d[:, None]) * tl.exp(last - gt)[None, :]
state = state * tl.exp(last) + <<kt|vt>>""",
    "transposed": """kt = tl.load(K_ + tok[:, None] * DK + d[None, :])
vt *= tl.exp(last - gt)[:, None]
state *= tl.exp(last)
state += <<tl.trans(kt)|vt>>""",
    "accumulated": """kt = tl.load(K_ + tok[None, :] * DK + d[:, None])
vt = vt * tl.exp(last - gt)[:, None]
state = tl.dot(kt, vt, acc=state * tl.exp(last))""",
}
FUSED_LOOPS = {
    "range": "range(0, n_chunks)",
    "tl_range": "tl.range(0, n_chunks)",
    "staged_2": "tl.range(0, n_chunks, num_stages=2)",
    "staged_3": "tl.range(0, n_chunks, num_stages=3)",
}


def fused(
    bv: int,
    warps: int,
    stages: int,
    precision: str,
    decay: str = "on_values",
    loop: str = "range",
    evict: str = "none",
) -> Draft:
    """A program per tile of V with the state in registers."""
    choices = {
        "family": "fused",
        "bv": bv,
        "warps": warps,
        "stages": stages,
        "decay": decay,
        "loop": loop,
        "evict": evict,
    }
    code = fill(
        FUSED,
        bv=bv,
        warps=warps,
        stages=stages,
        update=FUSED_UPDATES[decay],
        loop=FUSED_LOOPS[loop],
        evict=eviction("first", evict == "hints"),
    )
    return dotted(choices, code, precision)


HALVES = """
# States in halves of 64 rows, block pointers throughout.
import torch, triton
import triton.language as tl

@triton.jit
def fwd_h(k, w, u, g, h, v_new, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    NT = T // 64
    k += (i_b * T * H + i_h) * K
    w += (i_b * T * H + i_h) * K
    u += (i_b * T * H + i_h) * V
    v_new += (i_b * T * H + i_h) * V
    h += (i_b * NT * H + i_h) * K * V
    g += i_b * T * H + i_h
    b_h1 = tl.zeros([64, BV], dtype=tl.float32)
    if K > 64:
        b_h2 = tl.zeros([64, BV], dtype=tl.float32)
    for i_t in range(NT):
        h_t = h + i_t * H * K * V
        tl.store(tl.make_block_ptr(h_t, (K, V), (V, 1), (0, i_v * BV), (64, BV), (1, 0)), b_h1@check@)
        if K > 64:
            tl.store(tl.make_block_ptr(h_t, (K, V), (V, 1), (64, i_v * BV), (64, BV), (1, 0)), b_h2@check@)
        b_w = tl.load(tl.make_block_ptr(w, (T, K), (H * K, 1), (i_t * 64, 0), (64, 64), (1, 0))@check@)
        b_v = <<b_w|b_h1>>
        if K > 64:
            b_w = tl.load(tl.make_block_ptr(w, (T, K), (H * K, 1), (i_t * 64, 64), (64, 64), (1, 0))@check@)
            b_v += <<b_w|b_h2>>
        b_u = tl.load(tl.make_block_ptr(u, (T, V), (H * V, 1), (i_t * 64, i_v * BV), (64, BV), (1, 0))@check@)
        b_v = b_u - b_v
        p_v = tl.make_block_ptr(v_new, (T, V), (H * V, 1), (i_t * 64, i_v * BV), (64, BV), (1, 0))
        tl.store(p_v, b_v@check@)
        b_gl = tl.load(g + (i_t * 64 + 63) * H)
        b_g = tl.load(tl.make_block_ptr(g, (T,), (H,), (i_t * 64,), (64,), (0,))@check_1d@)
        b_v = b_v * tl.exp(b_gl - b_g)[:, None]
        b_gl = tl.exp(b_gl)
        b_h1 = b_h1 * b_gl
        b_k = tl.load(tl.make_block_ptr(k, (K, T), (1, H * K), (0, i_t * 64), (64, 64), (0, 1))@check@)
        b_h1 += <<b_k|b_v>>
        if K > 64:
            b_h2 = b_h2 * b_gl
            b_k = tl.load(tl.make_block_ptr(k, (K, T), (1, H * K), (64, i_t * 64), (64, 64), (0, 1))@check@)
            b_h2 += <<b_k|b_v>>

def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.size(-1)
    BV = min(@bv@, triton.next_power_of_2(V))
    h = k.new_empty(B, T // 64, H, K, V)
    v_new = torch.empty_like(u)
    fwd_h[(triton.cdiv(V, BV), B * H)](k, w, u, g, h, v_new, T, H, K, V, BV,
                                       num_warps=@warps@, num_stages=@stages@)
    return h, v_new
"""


def halves(bv: int, warps: int, stages: int, precision: str, check: str = "checked") -> Draft:
    """Block pointers and a state in halves of 64 rows."""
    choices = {"family": "halves", "bv": bv, "warps": warps, "stages": stages, "check": check}
    checked = check == "checked"
    code = fill(
        HALVES,
        bv=bv,
        warps=warps,
        stages=stages,
        check=", boundary_check=(0, 1)" if checked else "",
        check_1d=", boundary_check=(0,)" if checked else "",
    )
    return dotted(choices, code, precision)


PREFETCH = """
import torch
import triton
import triton.language as tl

# The next chunk's tiles are on their way while this chunk is worked on.


@triton.jit
def prefetched_states(k_ptr, w_ptr, u_ptr, g_ptr, h_ptr, o_ptr, T, NH,
                      K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    tile = tl.program_id(@tile_axis@)
    pair = tl.program_id(@pair_axis@)
    b = pair // NH
    head = pair % NH
    r = tl.arange(0, 64)
    dk = tl.arange(0, K)
    dv = tile * BV + tl.arange(0, BV)
    steps = T // 64
    tok = (b * T + r) * NH + head
    h_at = h_ptr + (b * steps * NH + head) * K * V + dk[:, None] * V + dv[None, :]
    w = tl.load(w_ptr + tok[:, None] * K + dk[None, :])
    k = tl.load(k_ptr + tok[None, :] * K + dk[:, None])
    u = tl.load(u_ptr + tok[:, None] * V + dv[None, :])
    s = tl.zeros([K, BV], tl.float32)
    for step in range(steps):
        ahead = tok + 64 * NH
        more = step * 64 + 64 + r < T
        w_next = tl.load(w_ptr + ahead[:, None] * K + dk[None, :], mask=more[:, None], other=0.0)
        k_next = tl.load(k_ptr + ahead[None, :] * K + dk[:, None], mask=more[None, :], other=0.0)
        u_next = tl.load(u_ptr + ahead[:, None] * V + dv[None, :], mask=more[:, None], other=0.0)
        tl.store(h_at, s)
        g = tl.load(g_ptr + tok)
        g_end = tl.load(g_ptr + (b * T + step * 64 + 63) * NH + head)
        u -= <<w|s>>
        tl.store(o_ptr + tok[:, None] * V + dv[None, :], u)
        s = s * tl.exp(g_end) + <<k|(u * tl.exp(g_end - g)[:, None])>>
        w, k, u = w_next, k_next, u_next
        tok = ahead
        h_at += NH * K * V


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    BV = min(@bv@, V)
    h = torch.empty(B, T // 64, H, K, V, device=u.device)
    v_new = torch.empty_like(u)
    prefetched_states[@grid@](k, w, u, g, h, v_new, T, H, K=K, V=V, BV=BV, num_warps=@warps@, num_stages=1)
    return h, v_new
"""


def prefetch(bv: int, warps: int, precision: str, order: str = "tiles_first") -> Draft:
    """The next chunk is loaded before this one is worked on."""
    choices = {"family": "prefetch", "bv": bv, "warps": warps, "order": order}
    tiles_first = order == "tiles_first"
    code = fill(
        PREFETCH,
        bv=bv,
        warps=warps,
        tile_axis=0 if tiles_first else 1,
        pair_axis=1 if tiles_first else 0,
        grid="(V // BV, B * H)" if tiles_first else "(B * H, V // BV)",
    )
    return dotted(choices, code, precision)


PER_CHUNK_ONE = """
import torch
import triton
import triton.language as tl


@triton.jit
def one_step(k, w, u, g, h, v, chunk, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    b, n = i_bh // H, i_bh % H
    r = tl.arange(0, 64)
    ck = tl.arange(0, K)
    cv = i_v * BV + tl.arange(0, BV)
    tok = (b * T + chunk * 64 + r) * H + n
    p_h = h + ((b * (T // 64) + chunk) * H + n) * K * V + ck[:, None] * V + cv[None, :]
    state = tl.load(p_h)
    b_w = tl.load(w + tok[:, None] * K + ck[None, :])
    b_v = tl.load(u + tok[:, None] * V + cv[None, :]) - <<b_w|state>>
    tl.store(v + tok[:, None] * V + cv[None, :], b_v)
    b_g = tl.load(g + tok)
    last = tl.load(g + (b * T + chunk * 64 + 63) * H + n)
    b_k = tl.load(k + tok[None, :] * K + ck[:, None])
    b_v = b_v * tl.exp(last - b_g)[:, None]
    state = state * tl.exp(last) + <<b_k|b_v>>
    tl.store(p_h + H * K * V, state, mask=(ck[:, None] >= 0) & (chunk + 1 < T // 64))


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.@alloc@(B, T // 64, H, K, V, device=k.device)
    h[:, 0] = 0
    v_new = torch.empty_like(u)
    BV = min(@bv@, V)
    for chunk in range(T // 64):  # one launch per chunk
        one_step[(V // BV, B * H)](k, w, u, g, h, v_new, chunk, T, H, K=K, V=V, BV=BV, num_warps=@warps@)
    return h, v_new
"""

PER_CHUNK_TWO = """
import torch
import triton
import triton.language as tl


@triton.jit
def write_values(w, u, h, v, chunk, T, H, K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr):
    pm, pv, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    r = chunk * 64 + pm * BM + tl.arange(0, BM)
    ck = tl.arange(0, K)
    cv = pv * BV + tl.arange(0, BV)
    tok = (b * T + r) * H + n
    state = tl.load(h + (((b * (T // 64) + chunk) * H + n) * K + ck[:, None]) * V + cv[None, :])
    b_w = tl.load(w + tok[:, None] * K + ck[None, :])
    b_u = tl.load(u + tok[:, None] * V + cv[None, :])
    tl.store(v + tok[:, None] * V + cv[None, :], b_u - <<b_w|state>>)


@triton.jit
def next_state(k, v, g, h, chunk, T, H, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    pk, pv, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    r = tl.arange(0, 64)
    ck = pk * BK + tl.arange(0, BK)
    cv = pv * BV + tl.arange(0, BV)
    tok = (b * T + chunk * 64 + r) * H + n
    p_h = h + (((b * (T // 64) + chunk) * H + n) * K + ck[:, None]) * V + cv[None, :]
    last = tl.load(g + (b * T + chunk * 64 + 63) * H + n)
    b_v = tl.load(v + tok[:, None] * V + cv[None, :]) * tl.exp(last - tl.load(g + tok))[:, None]
    b_k = tl.load(k + tok[None, :] * K + ck[:, None])
    tl.store(p_h + H * K * V, tl.load(p_h) * tl.exp(last) + <<b_k|b_v>>)


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.@alloc@(B, T // 64, H, K, V, device=k.device)
    h[:, 0].zero_()
    v_new = torch.empty_like(u)
    BV = min(@bv@, V)
    for chunk in range(T // 64):
        write_values[(64 // 32, V // BV, B * H)](w, u, h, v_new, chunk, T, H, K=K, V=V, BM=32, BV=BV,
                                                 num_warps=@warps@)
        if chunk + 1 < T // 64:
            next_state[(K // 32, V // BV, B * H)](k, v_new, g, h, chunk, T, H, K=K, V=V, BK=32, BV=BV,
                                                  num_warps=@warps@)
    return h, v_new
"""
PER_CHUNK = {"one": PER_CHUNK_ONE, "two": PER_CHUNK_TWO}


def per_chunk(kernels: str, bv: int, warps: int, alloc: str, precision: str) -> Draft:
    """A launch, or two, per chunk."""
    choices = {"family": "per_chunk", "kernels": kernels, "bv": bv, "warps": warps, "alloc": alloc}
    return dotted(choices, fill(PER_CHUNK[kernels], bv=bv, warps=warps, alloc=alloc), precision)


TRANSITION = '''
"""h <- M h + R with M = exp(g_last) I - k^T D w and R = k^T D u, which all chunks can compute at once."""
import torch
import triton
import triton.language as tl


@triton.jit
def transitions(k, w, u, g, m, r, T, H, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr):
    pk, pc, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    i = tl.arange(0, 64)
    rows = pk * BK + tl.arange(0, BK)
    dk = tl.arange(0, K)
    dv = tl.arange(0, V)
    tok = (b * T + pc * 64 + i) * H + n
    last = tl.load(g + (b * T + pc * 64 + 63) * H + n)
    kt = tl.load(k + tok[None, :] * K + rows[:, None]) * tl.exp(last - tl.load(g + tok))[None, :]
    at = (b * (T // 64) + pc) * H + n
    wt = tl.load(w + tok[:, None] * K + dk[None, :])
    eye = tl.where(rows[:, None] == dk[None, :], tl.exp(last), 0.0)
    tl.store(m + (at * K + rows[:, None]) * K + dk[None, :], eye - <<kt|wt>>)
    ut = tl.load(u + tok[:, None] * V + dv[None, :])
    tl.store(r + (at * K + rows[:, None]) * V + dv[None, :], <<kt|ut>>)


@triton.jit
def scan(m, r, h, NT, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    pv, pb = tl.program_id(0), tl.program_id(1)
    b, n = pb // H, pb % H
    dk = tl.arange(0, K)
    dv = pv * BV + tl.arange(0, BV)
    state = tl.zeros([K, BV], tl.float32)
    for c in range(NT):
        at = (b * NT + c) * H + n
        cell = (at * K + dk[:, None]) * V + dv[None, :]
        tl.store(h + cell, state)
        step = tl.load(m + (at * K + dk[:, None]) * K + dk[None, :])
        state = <<step|state>> + tl.load(r + cell)


@triton.jit
def values(w, u, h, v, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    pv, pc, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    dk = tl.arange(0, K)
    dv = pv * BV + tl.arange(0, BV)
    tok = (b * T + pc * 64 + tl.arange(0, 64)) * H + n
    state = tl.load(h + (((b * (T // 64) + pc) * H + n) * K + dk[:, None]) * V + dv[None, :])
    wt = tl.load(w + tok[:, None] * K + dk[None, :])
    ut = tl.load(u + tok[:, None] * V + dv[None, :])
    tl.store(v + tok[:, None] * V + dv[None, :], ut - <<wt|state>>)


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    NT = T // 64
    m = torch.empty(B, NT, H, K, K, device=k.device)
    r = torch.empty(B, NT, H, K, V, device=k.device)
    h = torch.empty_like(r)
    v_new = torch.empty_like(u)
    transitions[(K // @bk@, NT, B * H)](k, w, u, g, m, r, T, H, K=K, V=V, BK=@bk@, num_warps=@warps@)
    scan[(V // @bv@, B * H)](m, r, h, NT, H, K=K, V=V, BV=@bv@, num_warps=@warps@, num_stages=@stages@)
    values[(V // @bv@, NT, B * H)](w, u, h, v_new, T, H, K=K, V=V, BV=@bv@, num_warps=@warps@)
    return h, v_new
'''


def transition(bv: int, bk: int, warps: int, stages: int, precision: str) -> Draft:
    """Each chunk's transition is made beforehand, so that a step is one product."""
    choices = {"family": "transition", "bv": bv, "bk": bk, "warps": warps, "stages": stages}
    return dotted(choices, fill(TRANSITION, bv=bv, bk=bk, warps=warps, stages=stages), precision)


SEGMENTS = """
import torch
import triton
import triton.language as tl


@triton.jit
def summaries(k, w, u, g, p, T, H, S, K: tl.constexpr, V: tl.constexpr, BC: tl.constexpr):
    # what a segment does to a state: the first K columns map it, the last V are added
    pc, seg, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    i = tl.arange(0, 64)
    dk = tl.arange(0, K)
    cols = pc * BC + tl.arange(0, BC)
    per = T // 64 // S
    state = tl.where(dk[:, None] == cols[None, :], 1.0, 0.0)
    for c in range(seg * per, (seg + 1) * per):
        tok = (b * T + c * 64 + i) * H + n
        x = tl.load(u + tok[:, None] * V + (cols - K)[None, :], mask=(cols >= K)[None, :], other=0.0)
        x -= <<tl.load(w + tok[:, None] * K + dk[None, :])|state>>
        last = tl.load(g + (b * T + c * 64 + 63) * H + n)
        x = x * tl.exp(last - tl.load(g + tok))[:, None]
        state = state * tl.exp(last) + <<tl.load(k + tok[None, :] * K + dk[:, None])|x>>
    tl.store(p + ((pb * S + seg) * K + dk[:, None]) * (K + V) + cols[None, :], state)


@triton.jit
def starts(p, s, S, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    pv, pb = tl.program_id(0), tl.program_id(1)
    dk = tl.arange(0, K)
    dv = pv * BV + tl.arange(0, BV)
    state = tl.zeros([K, BV], tl.float32)
    for seg in range(S):
        row = (pb * S + seg) * K + dk[:, None]
        tl.store(s + row * V + dv[None, :], state)
        m = tl.load(p + row * (K + V) + dk[None, :])
        state = <<m|state>> + tl.load(p + row * (K + V) + K + dv[None, :])


@triton.jit
def walk(k, w, u, g, s, h, v, T, H, S, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    pv, seg, pb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, n = pb // H, pb % H
    i = tl.arange(0, 64)
    dk = tl.arange(0, K)
    dv = pv * BV + tl.arange(0, BV)
    per = T // 64 // S
    state = tl.load(s + ((pb * S + seg) * K + dk[:, None]) * V + dv[None, :])
    for c in range(seg * per, (seg + 1) * per):
        tok = (b * T + c * 64 + i) * H + n
        tl.store(h + (((b * (T // 64) + c) * H + n) * K + dk[:, None]) * V + dv[None, :], state)
        x = tl.load(u + tok[:, None] * V + dv[None, :])
        x -= <<tl.load(w + tok[:, None] * K + dk[None, :])|state>>
        tl.store(v + tok[:, None] * V + dv[None, :], x)
        last = tl.load(g + (b * T + c * 64 + 63) * H + n)
        x = x * tl.exp(last - tl.load(g + tok))[:, None]
        state = state * tl.exp(last) + <<tl.load(k + tok[None, :] * K + dk[:, None])|x>>


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    S = min(@segments@, T // 64)
    p = torch.empty(B * H, S, K, K + V, device=k.device)
    s = torch.empty(B * H, S, K, V, device=k.device)
    h = torch.empty(B, T // 64, H, K, V, device=k.device)
    v_new = torch.empty_like(u)
    opts = dict(num_warps=@warps@, num_stages=@stages@)
    summaries[((K + V) // @bv@, S, B * H)](k, w, u, g, p, T, H, S, K=K, V=V, BC=@bv@, **opts)
    starts[(V // @bv@, B * H)](p, s, S, K=K, V=V, BV=@bv@, **opts)
    walk[(V // @bv@, S, B * H)](k, w, u, g, s, h, v_new, T, H, S, K=K, V=V, BV=@bv@, **opts)
    return h, v_new
"""


def segments(count: int, bv: int, warps: int, stages: int, precision: str) -> Draft:
    """The sequence in segments that are summarised side by side, then walked side by side."""
    choices = {"family": "segments", "segments": count, "bv": bv, "warps": warps, "stages": stages}
    return dotted(choices, fill(SEGMENTS, segments=count, bv=bv, warps=warps, stages=stages), precision)


NO_DOTS = """
import torch
import triton
import triton.language as tl


@triton.jit
def token_by_token(k_ptr, w_ptr, u_ptr, g_ptr, h_ptr, v_ptr, T, H,
                   K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    # No matrix products: few columns per program, so that many programs share the work.
    tile = tl.program_id(0)
    bh = tl.program_id(1)
    b, n = bh // H, bh % H
    dk = tl.arange(0, K)
    dv = tile * BV + tl.arange(0, BV)
    state = tl.zeros([K, BV], tl.float32)
    for c in range(T // 64):
        tl.store(h_ptr + (((b * (T // 64) + c) * H + n) * K + dk[:, None]) * V + dv[None, :], state)
        g_last = tl.load(g_ptr + (b * T + c * 64 + 63) * H + n)
        added = tl.zeros([K, BV], tl.float32)
        for j in @loop@:
            t = (b * T + c * 64 + j) * H + n
            w = tl.load(w_ptr + t * K + dk)
            k = tl.load(k_ptr + t * K + dk)
            u = tl.load(u_ptr + t * V + dv)
            v = u - tl.sum(w[:, None] * state, axis=0)
            tl.store(v_ptr + t * V + dv, v)
            v = v * tl.exp(g_last - tl.load(g_ptr + t))
            added += k[:, None] * v[None, :]
        state = state * tl.exp(g_last) + added


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.empty(B, T // 64, H, K, V, device=k.device)
    v_new = torch.empty_like(u)
    token_by_token[(V // @bv@, B * H)](k, w, u, g, h, v_new, T, H, K=K, V=V, BV=@bv@,
                                       num_warps=@warps@, num_stages=@stages@)
    return h, v_new
"""


def no_dots(bv: int, warps: int, stages: int = 1, loop: str = "range") -> Draft:
    """Sums of products, position by position, in place of matrix products."""
    choices = {"family": "no_dots", "bv": bv, "warps": warps, "stages": stages, "loop": loop}
    loops = {"range": "range(64)", "tl_range": "tl.range(0, 64, loop_unroll_factor=4)"}
    return Draft(choices, fill(NO_DOTS, bv=bv, warps=warps, stages=stages, loop=loops[loop]))


AUTOTUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BV": bv}, num_warps=w, num_stages=s)
        for bv in @bvs@ for w in @warp_set@ for s in @stage_set@
    ],
    key=["K", "V", "T"],
)
@triton.jit
def tuned_chunk_h(k, w, u, g, h, v, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    vt, bh = tl.program_id(0), tl.program_id(1)
    b, hd = bh // H, bh % H
    i, dk = tl.arange(0, 64), tl.arange(0, K)
    dv = vt * BV + tl.arange(0, BV)
    s = tl.zeros([K, BV], dtype=tl.float32)
    for c in range(T // 64):
        t = (b * T + c * 64 + i) * H + hd
        tl.store(h + (((b * (T // 64) + c) * H + hd) * K + dk[:, None]) * V + dv[None, :], s)
        x = tl.load(u + t[:, None] * V + dv[None, :]) - <<tl.load(w + t[:, None] * K + dk[None, :])|s>>
        tl.store(v + t[:, None] * V + dv[None, :], x)
        e = tl.load(g + (b * T + c * 64 + 63) * H + hd)
        y = tl.load(k + t[None, :] * K + dk[:, None]) * tl.exp(e - tl.load(g + t))[None, :]
        s = s * tl.exp(e) + <<y|x>>


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.empty(B, T // 64, H, K, V, device=k.device)
    v_new = torch.empty_like(u)
    grid = lambda meta: (V // meta["BV"], B * H)
    tuned_chunk_h[grid](k, w, u, g, h, v_new, T, H, K, V)
    return h, v_new
"""
AUTOTUNE = {
    "few": {"bvs": "(32, 64)", "warp_set": "(4,)", "stage_set": "(1, 2)"},
    "many": {"bvs": "(16, 32, 64)", "warp_set": "(4, 8)", "stage_set": "(1,)"},
}


def autotuned(configs: str, precision: str) -> Draft:
    """A list of configurations to choose from."""
    choices = {"family": "autotuned", "configs": configs}
    return dotted(choices, fill(AUTOTUNED, **AUTOTUNE[configs]), precision)


TORCH_SCAN = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_kernel(m_ptr, r_ptr, h_ptr, steps, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    cols = tl.program_id(0) * BV + tl.arange(0, BV)
    b = tl.program_id(1) // H
    n = tl.program_id(1) % H
    rows = tl.arange(0, K)
    h = tl.zeros([K, BV], tl.float32)
    for c in range(steps):
        i = (b * steps + c) * H + n
        at = (i * K + rows[:, None]) * V + cols[None, :]
        tl.store(h_ptr + at, h)
        m = tl.load(m_ptr + (i * K + rows[:, None]) * K + rows[None, :])
        h = <<m|h>> + tl.load(r_ptr + at)


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    kc, wc, uc = (x.view(B, N, 64, H, -1).transpose(2, 3) for x in (k, w, u))
    gc = g.view(B, N, 64, H).transpose(2, 3)
    last = gc[..., -1:]
    kt = (kc * torch.exp(last - gc).unsqueeze(-1)).transpose(-1, -2)
    # what one chunk does to the state, for all chunks at once
    @transition@
    h = torch.empty_like(r)
    scan_kernel[(V // @bv@, B * H)](m, r, h, N, H, K=K, V=V, BV=@bv@, num_warps=@warps@)
    v_new = uc - wc @ h
    return h, v_new.transpose(2, 3).reshape(B, T, H, V)
"""
)
TORCH_TRANSITIONS = {
    "two_products": """m = torch.eye(K, device=k.device) * last.exp().unsqueeze(-1) - kt @ wc
r = (kt @ uc).contiguous()""",
    "joined": """both = kt @ torch.cat([wc, uc], dim=-1)
m = torch.diag_embed(last.exp().expand(B, N, H, K)) - both[..., :K]
r = both[..., K:].contiguous()""",
}


def torch_scan(transition: str, bv: int, warps: int, precision: str) -> Draft:
    """The transitions by PyTorch, a kernel for the walk."""
    choices = {"family": "torch_scan", "transition": transition, "bv": bv, "warps": warps}
    code = fill(TORCH_SCAN, transition=TORCH_TRANSITIONS[transition], bv=bv, warps=warps)
    return dotted(choices, code, precision)
