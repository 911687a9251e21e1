"""Triton families of the recorded task ``gdn_recompute_w_u``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import dotted
from benchmarks.generators.text import TRITON_IMPORTS, fill

TWO_KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def chunk_product_kernel(
    a_ptr, x_ptr, beta_ptr, g_ptr, out_ptr, T, H,
    D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, DECAY: tl.constexpr,
):
    # one program: one tile of D, one chunk, one (batch, head)
    pid_d = tl.program_id(0)
    pid_t = tl.program_id(1)
    pid_bh = tl.program_id(2)
    batch = pid_bh // H
    head = pid_bh % H
    rows = (batch * T + pid_t * BT + tl.arange(0, BT)) * H + head
    cols = pid_d * BD + tl.arange(0, BD)
    acc = tl.zeros([BT, BD], dtype=tl.float32)
    for start in range(0, BT, BJ):
        j = start + tl.arange(0, BJ)
        token = (batch * T + pid_t * BT + j) * H + head
        a = tl.load(a_ptr + rows[:, None] * BT + j[None, :])
        x = tl.load(x_ptr + token[:, None] * D + cols[None, :])
        factor = tl.load(beta_ptr + token)
        if DECAY:
            factor = factor * tl.exp(tl.load(g_ptr + token))
        x = x * factor[:, None]
        acc += <<a|x>>
    tl.store(out_ptr + rows[:, None] * D + cols[None, :], acc)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w = torch.@alloc@(k)
    u = torch.@alloc@(v)
    BD = @bd@
    chunk_product_kernel[(K // BD, T // 64, B * H)](
        A, k, beta, g, w, T, H, D=K, BT=64, BD=BD, BJ=@bj@, DECAY=True, num_warps=@warps@, num_stages=@stages@,
    )
    chunk_product_kernel[(V // BD, T // 64, B * H)](
        A, v, beta, g, u, T, H, D=V, BT=64, BD=BD, BJ=@bj@, DECAY=False, num_warps=@warps@, num_stages=@stages@,
    )
    return w, u
"""


def two_kernels(
    bd: int, bj: int, warps: int, stages: int, precision: str, alloc: str = "empty_like"
) -> Draft:
    """A launch for the keys, one for the values, with a loop along the chunk."""
    choices = {"family": "two_kernels", "bd": bd, "bj": bj, "warps": warps, "stages": stages, "alloc": alloc}
    code = fill(TWO_KERNELS, bd=bd, bj=bj, warps=warps, stages=stages, alloc=alloc)
    return dotted(choices, code, precision)


SCALED_COPIES = """
import torch
import triton
import triton.language as tl


@triton.jit
def matmul_chunks(a, x, y, T, H, D: tl.constexpr, BD: tl.constexpr):
    i_d, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, 64)
    d = i_d * BD + tl.arange(0, BD)
    tok = (i_bh // H * T + i_t * 64 + i) * H + i_bh % H
    b_a = tl.load(a + tok[:, None] * 64 + i[None, :])
    b_x = tl.load(x + tok[:, None] * D + d[None, :])
    tl.store(y + tok[:, None] * D + d[None, :], <<b_a|b_x>>)


def apply(a, x, bd):
    B, T, H, D = x.shape
    y = torch.empty_like(x)
    matmul_chunks[(D // bd, T // 64, B * H)](a, x, y, T, H, D=D, BD=bd, num_warps=@warps@)
    return y


def run(k, v, beta, A, g):
    # the factors are multiplied in by PyTorch
    @scale@
"""
SCALES = {
    "separate": """kb = k * beta.unsqueeze(-1)
kb = kb * torch.exp(g).unsqueeze(-1)
vb = v * beta.unsqueeze(-1)
return apply(A, kb, @bd@), apply(A, vb, @bd@)""",
    "one_factor": """kb = k * (beta * g.exp())[..., None]
return apply(A, kb, @bd@), apply(A, v * beta[..., None], @bd@)""",
    "into_a": """columns = beta.view(*beta.shape[:1], -1, 64, beta.shape[-1]).transpose(2, 3)
decay = g.view_as(beta).exp().view(*beta.shape[:1], -1, 64, beta.shape[-1]).transpose(2, 3)
rows = A.view(*A.shape[:1], -1, 64, *A.shape[2:])
a_v = rows * columns.unsqueeze(2)
a_k = a_v * decay.unsqueeze(2)
return apply(a_k.view_as(A), k, @bd@), apply(a_v.view_as(A), v, @bd@)""",
}


def scaled_copies(scale: str, bd: int, warps: int, precision: str) -> Draft:
    """The factors by PyTorch, the product by a kernel."""
    choices = {"family": "scaled_copies", "scale": scale, "bd": bd, "warps": warps}
    return dotted(choices, fill(SCALED_COPIES, scale=SCALES[scale], bd=bd, warps=warps), precision)


FUSED = '''
import torch
import triton
import triton.language as tl


@triton.jit
def recompute_w_u(K_, V_, Beta, Am, G_, W_, U_, SEQ, HEADS, DK: tl.constexpr, DV: tl.constexpr,
                  BK: tl.constexpr, BV: tl.constexpr):
    """A chunk of one head per program: A is loaded once for all tiles of both outputs."""
    chunk = tl.program_id(@chunk_axis@)
    pair = tl.program_id(@pair_axis@)
    b = pair // HEADS
    n = pair % HEADS
    i = tl.arange(0, 64)
    tok = (b * SEQ + chunk * 64 + i) * HEADS + n
    beta = tl.load(Beta + tok)
    decay = tl.exp(tl.load(G_ + tok))
    a = tl.load(Am + tok[:, None] * 64 + i[None, :])
    @factors@
    for v0 in @loop_v@:
        e = v0 + tl.arange(0, BV)
        vt = tl.load(V_ + tok[:, None] * DV + e[None, :])@scale_v@
        tl.store(U_ + tok[:, None] * DV + e[None, :], <<@a_v@|vt>>)
    for k0 in @loop_k@:
        d = k0 + tl.arange(0, BK)
        kt = tl.load(K_ + tok[:, None] * DK + d[None, :])@scale_k@
        tl.store(W_ + tok[:, None] * DK + d[None, :], <<@a_k@|kt>>)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w, u = torch.empty_like(k), torch.empty_like(v)
    recompute_w_u[@grid@](
        k, v, beta, A, g, w, u, T, H, DK=K, DV=V, BK=min(@bk@, K), BV=min(@bv@, V),
        num_warps=@warps@, num_stages=@stages@)
    return w, u
'''
FUSED_SCALES = {
    "rows": {
        "factors": "factor = beta * decay",
        "scale_v": " * beta[:, None]",
        "scale_k": " * factor[:, None]",
        "a_v": "a",
        "a_k": "a",
    },
    "columns": {
        "factors": "a_v = a * beta[None, :]\na_k = a_v * decay[None, :]",
        "scale_v": "",
        "scale_k": "",
        "a_v": "a_v",
        "a_k": "a_k",
    },
    "mixed": {
        "factors": "a = a * beta[None, :]",
        "scale_v": "",
        "scale_k": " * decay[:, None]",
        "a_v": "a",
        "a_k": "a",
    },
}


def fused(
    bk: int,
    bv: int,
    warps: int,
    stages: int,
    precision: str,
    scale: str = "rows",
    loop: str = "range",
    order: str = "chunks_first",
) -> Draft:
    """A program per chunk and head, which makes both outputs."""
    choices = {
        "family": "fused",
        "bk": bk,
        "bv": bv,
        "warps": warps,
        "stages": stages,
        "scale": scale,
        "loop": loop,
        "order": order,
    }
    kind = "range" if loop == "range" else "tl.static_range"
    first = order == "chunks_first"
    code = fill(
        FUSED,
        bk=bk,
        bv=bv,
        warps=warps,
        stages=stages,
        loop_v=f"{kind}(0, DV, BV)",
        loop_k=f"{kind}(0, DK, BK)",
        chunk_axis=0 if first else 1,
        pair_axis=1 if first else 0,
        grid="(T // 64, B * H)" if first else "(B * H, T // 64)",
        **FUSED_SCALES[scale],
    )
    return dotted(choices, code, precision)


TILES = """
import torch
import triton
import triton.language as tl

# One launch for both outputs: the first programs of a chunk make tiles of w, the others tiles of u.


@triton.jit
def w_or_u(k, v, beta, a, g, w, u, T, H, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr):
    tile = tl.program_id(@tile_axis@)
    chunk = tl.program_id(@chunk_axis@)
    bh = tl.program_id(2)
    b, n = bh // H, bh % H
    r = tl.arange(0, 64)
    c = tl.arange(0, BD)
    t = (b * T + chunk * 64 + r) * H + n
    aa = tl.load(a + t[:, None] * 64 + r[None, :])
    s = tl.load(beta + t)
    if tile < K // BD:
        s = s * @exp_g@
        p = t[:, None] * K + (tile * BD + c)[None, :]
        x = tl.load(k + p) * s[:, None]
        tl.store(w + p, <<aa|x>>)
    else:
        p = t[:, None] * V + ((tile - K // BD) * BD + c)[None, :]
        x = tl.load(v + p) * s[:, None]
        tl.store(u + p, <<aa|x>>)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w = torch.empty_like(k)
    u = torch.empty_like(v)
    BD = @bd@
    tiles = K // BD + V // BD
    w_or_u[@grid@](k, v, beta, A, g, w, u, T, H, K=K, V=V, BD=BD,
                   num_warps=@warps@, num_stages=1)
    return w, u
"""


def tiles(bd: int, warps: int, precision: str, order: str = "tiles_first", exp: str = "exp") -> Draft:
    """A program per tile of either output."""
    choices = {"family": "tiles", "bd": bd, "warps": warps, "order": order, "exp": exp}
    first = order == "tiles_first"
    exps = {"exp": "tl.exp(tl.load(g + t))", "exp2": "tl.exp2(tl.load(g + t) * 1.4426950408889634)"}
    code = fill(
        TILES,
        bd=bd,
        warps=warps,
        tile_axis=0 if first else 1,
        chunk_axis=1 if first else 0,
        grid="(tiles, T // 64, B * H)" if first else "(T // 64, tiles, B * H)",
        exp_g=exps[exp],
    )
    return dotted(choices, code, precision)


BLOCK_POINTERS = """
import torch, triton
import triton.language as tl

@triton.jit
def recompute_fwd(k, v, beta, A, g, w, u, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
                  BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    bos = i_b * T
    p_b = tl.make_block_ptr(beta + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_A = tl.make_block_ptr(A + (bos * H + i_h) * BT, (T, BT), (H * BT, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    b_b = tl.load(p_b@check_1d@)
    b_g = tl.exp(tl.load(p_g@check_1d@))
    b_A = tl.load(p_A@check_2d@)
    for i_v in range(tl.cdiv(V, BV)):
        p_v = tl.make_block_ptr(v + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        p_u = tl.make_block_ptr(u + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        b_vb = tl.load(p_v@check_2d@) * b_b[:, None]
        b_u = <<b_A|b_vb>>
        tl.store(p_u, b_u.to(p_u.dtype.element_ty)@check_2d@)
    for i_k in range(tl.cdiv(K, BK)):
        p_k = tl.make_block_ptr(k + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        p_w = tl.make_block_ptr(w + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        b_kb = tl.load(p_k@check_2d@) * (b_b * b_g)[:, None]
        b_w = <<b_A|b_kb>>
        tl.store(p_w, b_w.to(p_w.dtype.element_ty)@check_2d@)

def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.size(-1)
    BK, BV = min(@bk@, triton.next_power_of_2(K)), min(@bv@, triton.next_power_of_2(V))
    w, u = torch.empty_like(k), torch.empty_like(v)
    recompute_fwd[(triton.cdiv(T, 64), B * H)](k, v, beta, A, g, w, u, T, H, K, V, 64, BK, BV,
                                               num_warps=@warps@, num_stages=@stages@)
    return w, u
"""


def block_pointers(
    bk: int, bv: int, warps: int, stages: int, precision: str, check: str = "checked"
) -> Draft:
    """The same with block pointers, whose bounds are ``checked`` or not."""
    choices = {
        "family": "block_pointers",
        "bk": bk,
        "bv": bv,
        "warps": warps,
        "stages": stages,
        "check": check,
    }
    checked = check == "checked"
    code = fill(
        BLOCK_POINTERS,
        bk=bk,
        bv=bv,
        warps=warps,
        stages=stages,
        check_1d=", boundary_check=(0,)" if checked else "",
        check_2d=", boundary_check=(0, 1)" if checked else "",
    )
    return dotted(choices, code, precision)


SUBTILES = '''
import torch
import triton
import triton.language as tl


@triton.jit
def lower_tiles(x_ptr, s_ptr, a_ptr, y_ptr, b, n, chunk, sub, d, T, H, D: tl.constexpr, BM: tl.constexpr):
    """Rows [sub * BM, (sub + 1) * BM) of A x; what lies above the diagonal is left out."""
    m = tl.arange(0, BM)
    first = b * T + chunk * 64
    out = (first + sub * BM + m) * H + n
    acc = tl.zeros([BM, d.shape[0]], tl.float32)
    for j in range(0, sub + 1):
        t = (first + j * BM + m) * H + n
        a = tl.load(a_ptr + out[:, None] * 64 + (j * BM + m)[None, :])
        x = tl.load(x_ptr + t[:, None] * D + d[None, :])
        s = tl.load(s_ptr + t)
        acc += <<a|(x * s[:, None])>>
    tl.store(y_ptr + out[:, None] * D + d[None, :], acc)


@triton.jit
def triangular(k, v, a, sk, sv, w, u, T, H, K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    PER: tl.constexpr = 64 // BM
    chunk = tl.program_id(0) // PER
    sub = tl.program_id(0) % PER
    tile = tl.program_id(1)
    b, n = tl.program_id(2) // H, tl.program_id(2) % H
    if tile < K // BD:
        lower_tiles(k, sk, a, w, b, n, chunk, sub, tile * BD + tl.arange(0, BD), T, H, K, BM)
    else:
        lower_tiles(v, sv, a, u, b, n, chunk, sub, (tile - K // BD) * BD + tl.arange(0, BD), T, H, V, BM)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    BM, BD = @bm@, @bd@
    w, u = torch.empty_like(k), torch.empty_like(v)
    strength = beta * torch.exp(g)
    triangular[(T // BM, (K + V) // BD, B * H)](k, v, A, strength, beta, w, u, T, H, K=K, V=V, BM=BM, BD=BD,
                                                num_warps=@warps@, num_stages=@stages@)
    return w, u
'''


def subtiles(bm: int, bd: int, warps: int, stages: int, precision: str) -> Draft:
    """A part of a chunk's rows per program, which leaves out what lies above the diagonal."""
    choices = {"family": "subtiles", "bm": bm, "bd": bd, "warps": warps, "stages": stages}
    return dotted(choices, fill(SUBTILES, bm=bm, bd=bd, warps=warps, stages=stages), precision)


NO_DOTS = """
import torch
import triton
import triton.language as tl


@triton.jit
def without_dots(k_ptr, v_ptr, beta_ptr, a_ptr, g_ptr, w_ptr, u_ptr, T, H,
                 K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr):
    # No tensor cores: position by position, each adds its row times a column of A.
    tile = tl.program_id(0)
    chunk = tl.program_id(1)
    bh = tl.program_id(2)
    b, n = bh // H, bh % H
    rows = tl.arange(0, 64)
    tok = (b * T + chunk * 64 + rows) * H + n
    acc = tl.zeros([64, BD], tl.float32)
    if tile < K // BD:
        dim = tile * BD + tl.arange(0, BD)
        for j in @loop@:
            t = (b * T + chunk * 64 + j) * H + n
            s = tl.load(beta_ptr + t) * tl.exp(tl.load(g_ptr + t))
            x = tl.load(k_ptr + t * K + dim) * s
            acc += tl.load(a_ptr + tok * 64 + j)[:, None] * x[None, :]
        tl.store(w_ptr + tok[:, None] * K + dim[None, :], acc)
    else:
        dim = (tile - K // BD) * BD + tl.arange(0, BD)
        for j in @loop@:
            t = (b * T + chunk * 64 + j) * H + n
            x = tl.load(v_ptr + t * V + dim) * tl.load(beta_ptr + t)
            acc += tl.load(a_ptr + tok * 64 + j)[:, None] * x[None, :]
        tl.store(u_ptr + tok[:, None] * V + dim[None, :], acc)


def run(k, v, beta, A, g):
    k, v, beta, A, g = [x.contiguous() for x in (k, v, beta, A, g)]
    B, T, H, K = k.shape
    V = v.shape[-1]
    w = torch.zeros_like(k)
    u = torch.zeros_like(v)
    grid = ((K + V) // @bd@, T // 64, B * H)
    without_dots[grid](k, v, beta, A, g, w, u, T, H, K, V, @bd@, num_warps=@warps@)
    return w, u
"""


def no_dots(bd: int, warps: int, loop: str = "range") -> Draft:
    """Sums of products in place of matrix products."""
    choices = {"family": "no_dots", "bd": bd, "warps": warps, "loop": loop}
    loops = {"range": "range(64)", "unrolled": "tl.range(0, 64, loop_unroll_factor=8)"}
    return Draft(choices, fill(NO_DOTS, bd=bd, warps=warps, loop=loops[loop]))


ONE_TOKEN = """
import torch
import triton
import triton.language as tl


@triton.jit
def one_token_kernel(K_, V_, Beta, A_, G, W_, U_, T, NH, DK: tl.constexpr, DV: tl.constexpr):
    # one program per token and head
    t = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // NH
    n = bh % NH
    chunk = t // 64
    dk = tl.arange(0, DK)
    dv = tl.arange(0, DV)
    me = (b * T + t) * NH + n
    @body@
    tl.store(W_ + me * DK + dk, w)
    tl.store(U_ + me * DV + dv, u)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w, u = torch.empty_like(k), torch.empty_like(v)
    one_token_kernel[(T, B * H)](k, v, beta, A, g, w, u, T, H, K, V, num_warps=@warps@)
    return w, u
"""
ONE_TOKEN_BODIES = {
    "serial": """w = tl.zeros([DK], tl.float32)
u = tl.zeros([DV], tl.float32)
for j in range(0, t % 64 + 1):
    other = (b * T + chunk * 64 + j) * NH + n
    weight = tl.load(A_ + me * 64 + j) * tl.load(Beta + other)
    u += weight * tl.load(V_ + other * DV + dv)
    w += weight * tl.exp(tl.load(G + other)) * tl.load(K_ + other * DK + dk)""",
    "vector": """j = tl.arange(0, 64)
seen = j <= t % 64
others = (b * T + chunk * 64 + j) * NH + n
weight = tl.load(A_ + me * 64 + j) * tl.load(Beta + others)
v = tl.load(V_ + others[:, None] * DV + dv[None, :], mask=seen[:, None], other=0.0)
u = tl.sum(weight[:, None] * v, axis=0)
weight *= tl.exp(tl.load(G + others))
k = tl.load(K_ + others[:, None] * DK + dk[None, :], mask=seen[:, None], other=0.0)
w = tl.sum(weight[:, None] * k, axis=0)""",
}


def one_token(loop: str, warps: int) -> Draft:
    """A program per token and head."""
    choices = {"family": "one_token", "loop": loop, "warps": warps}
    return Draft(choices, fill(ONE_TOKEN, body=ONE_TOKEN_BODIES[loop], warps=warps))


PERSISTENT = """
import torch
import triton
import triton.language as tl


@triton.jit
def persistent_w_u(k, v, beta, a, g, w, u, H, total, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr):
    r = tl.arange(0, 64)
    c = tl.arange(0, BD)
    for job in @loop@:
        n = job % H
        chunk = job // H  # counts through batches as well
        t = (chunk * 64 + r) * H + n
        aa = tl.load(a + t[:, None] * 64 + r[None, :])
        s = tl.load(beta + t)
        for e in tl.static_range(0, V, BD):
            at = t[:, None] * V + (e + c)[None, :]
            x = tl.load(v + at) * s[:, None]
            tl.store(u + at, <<aa|x>>)
        s = s * tl.exp(tl.load(g + t))
        for d in tl.static_range(0, K, BD):
            at = t[:, None] * K + (d + c)[None, :]
            x = tl.load(k + at) * s[:, None]
            tl.store(w + at, <<aa|x>>)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    total = B * (T // 64) * H
    sms = torch.cuda.get_device_properties(k.device).multi_processor_count
    w, u = torch.empty_like(k), torch.empty_like(v)
    grid = (min(total, @per_sm@ * sms),)
    persistent_w_u[grid](k, v, beta, A, g, w, u, H, total, K=K, V=V, BD=@bd@,
                         num_warps=@warps@, num_stages=1)
    return w, u
"""


def persistent(per_sm: int, bd: int, warps: int, precision: str, loop: str = "range") -> Draft:
    """A fixed number of programs that stride over chunks and heads."""
    choices = {"family": "persistent", "per_sm": per_sm, "bd": bd, "warps": warps, "loop": loop}
    bounds = "tl.program_id(0), total, tl.num_programs(0)"
    loops = {"range": f"range({bounds})", "staged": f"tl.range({bounds}, num_stages=2)"}
    code = fill(PERSISTENT, per_sm=per_sm, bd=bd, warps=warps, loop=loops[loop])
    return dotted(choices, code, precision)


SEVERAL = """
import torch
import triton
import triton.language as tl


@triton.jit
def several_chunks(Kp, Vp, Bp, Ap, Gp, Wp, Up, T, NH, DK: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
                   CHUNKS: tl.constexpr):
    b, n = tl.program_id(2) // NH, tl.program_id(2) % NH
    tile = tl.program_id(1)
    i = tl.arange(0, 64)
    is_key = tile < DK // BD
    col = tl.where(is_key, tile, tile - DK // BD) * BD + tl.arange(0, BD)
    width = tl.where(is_key, DK, DV)
    for s in @loop@:
        c = tl.program_id(0) * CHUNKS + s
        if c * 64 < T:
            tok = (b * T + c * 64 + i) * NH + n
            at = tok[:, None] * width + col[None, :]
            f = tl.load(Bp + tok)
            if is_key:
                x = tl.load(Kp + at)
                f = f * tl.exp(tl.load(Gp + tok))
            else:
                x = tl.load(Vp + at)
            a = tl.load(Ap + tok[:, None] * 64 + i[None, :]) * f[None, :]
            y = <<a|x>>
            if is_key:
                tl.store(Wp + at, y)
            else:
                tl.store(Up + at, y)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w, u = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(T // 64, @chunks@), (K + V) // @bd@, B * H)
    several_chunks[grid](k, v, beta, A, g, w, u, T, H, DK=K, DV=V, BD=@bd@, CHUNKS=@chunks@, num_warps=@warps@)
    return w, u
"""


def several(chunks: int, bd: int, warps: int, precision: str, loop: str = "range") -> Draft:
    """Several neighbouring chunks per program."""
    choices = {"family": "several", "chunks": chunks, "bd": bd, "warps": warps, "loop": loop}
    loops = {"range": f"range({chunks})", "static": "tl.static_range(CHUNKS)"}
    return dotted(choices, fill(SEVERAL, chunks=chunks, bd=bd, warps=warps, loop=loops[loop]), precision)


AUTOTUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BD": bd}, num_warps=w) for bd in @sizes@ for w in @warp_set@],
    key=["K", "V"],
)
@triton.jit
def tuned(k, v, beta, a, g, w, u, T, H, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr):
    c, bh, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, 64)
    d = tile * BD + tl.arange(0, BD)
    t = (bh // H * T + c * 64 + i) * H + bh % H
    m = tl.load(a + t[:, None] * 64 + i[None, :])
    s = tl.load(beta + t)
    if tile * BD < V:
        x = tl.load(v + t[:, None] * V + d[None, :]) * s[:, None]
        tl.store(u + t[:, None] * V + d[None, :], <<m|x>>)
    if tile * BD < K:
        s = s * tl.exp(tl.load(g + t))
        x = tl.load(k + t[:, None] * K + d[None, :]) * s[:, None]
        tl.store(w + t[:, None] * K + d[None, :], <<m|x>>)


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w, u = torch.empty_like(k), torch.empty_like(v)
    grid = lambda meta: (T // 64, B * H, triton.cdiv(max(K, V), meta["BD"]))
    tuned[grid](k, v, beta, A, g, w, u, T, H, K, V)
    return w, u
"""
AUTOTUNE = {
    "few": {"sizes": "(32, 64)", "warp_set": "(4,)"},
    "many": {"sizes": "(16, 32, 64)", "warp_set": "(2, 4)"},
}


def autotuned(configs: str, precision: str) -> Draft:
    """A list of configurations to choose from."""
    choices = {"family": "autotuned", "configs": configs}
    return dotted(choices, fill(AUTOTUNED, **AUTOTUNE[configs]), precision)


JOINED = (
    TRITON_IMPORTS
    + """
@triton.jit
def one_product(a_ptr, x_ptr, y_ptr, D: tl.constexpr, BD: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, 64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    a = tl.load(a_ptr + cell * 4096 + i[:, None] * 64 + i[None, :])
    at = cell * 64 * D + i[:, None] * D + d[None, :]
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, <<a|x>>)


def run(k, v, beta, A, g):
    # [k beta exp(g) | v beta] side by side, a chunk in one piece of memory
    B, T, H, K = k.shape
    V = v.shape[-1]
    both = torch.cat([k * (beta * g.exp()).unsqueeze(-1), v * beta.unsqueeze(-1)], dim=-1)
    x = both.view(B, T // 64, 64, H, K + V).transpose(2, 3).contiguous()
    a = A.view(B, T // 64, 64, H, 64).transpose(2, 3).contiguous()
    y = torch.empty_like(x)
    one_product[(B * (T // 64) * H, (K + V) // @bd@)](a, x, y, D=K + V, BD=@bd@, num_warps=@warps@)
    w, u = y.transpose(2, 3).reshape(B, T, H, K + V).split([K, V], dim=-1)
    return w.contiguous(), u.contiguous()
"""
)


def joined_product(bd: int, warps: int, precision: str) -> Draft:
    """Keys and values side by side, transposed by PyTorch, in one product."""
    choices = {"family": "joined_product", "bd": bd, "warps": warps}
    return dotted(choices, fill(JOINED, bd=bd, warps=warps), precision)
