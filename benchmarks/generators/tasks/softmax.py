"""Softmax over the rows of a float32 matrix.

Every source defines ``run(x)`` with x [rows, columns] in float32 and returns the same shape and type. The rows
have offsets of up to 120 in either direction, so that a softmax that forgets the maximum overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks import softmax_cuda
from benchmarks.generators.text import TRITON_IMPORTS, Manner, eviction, fill, joined

if TYPE_CHECKING:
    import torch

TASK = "softmax"
OPERATION = "softmax over the last axis, float32 in and out"
SHAPES: list[dict[str, int]] = [
    {"rows": 4096, "columns": 1024},
    {"rows": 8192, "columns": 8192},
    {"rows": 2048, "columns": 32768},
]
OUTPUT_DTYPES = ["float32"]
TOLERANCE: dict[str, float] = {"relative_norm": 2e-4, "rtol": 2e-3, "atol": 1e-5}


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws rows of normal numbers (deviation 3) around an offset of their own."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows, columns = shape["rows"], shape["columns"]
    x = 3 * torch.randn(rows, columns, device=device, generator=generator)
    x += 240 * torch.rand(rows, 1, device=device, generator=generator) - 120
    return (x,)


def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes the softmax in float64."""
    import torch

    return (torch.softmax(x.double(), dim=-1),)


HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "y = y.clone()"),
    "nan_check": ("", "assert not torch.isnan(y).any()"),
    "double_sync": ("torch.cuda.synchronize()", "torch.cuda.synchronize()"),
    "renormalise": ("", "y = y / y.sum(dim=-1, keepdim=True)"),
    "zeros_out": ("", "y = torch.zeros_like(y).add_(y)"),
}

MANNER = Manner(
    names={
        "x_ptr": ["input_ptr", "inp", "X"],
        "y_ptr": ["output_ptr", "out", "Y"],
        "n_cols": ["n_columns", "N", "width"],
        "row": ["row_idx", "pid", "i"],
        "cols": ["offs", "col_offsets", "j"],
        "mask": ["valid", "msk", "inside"],
        "BLOCK": ["BLOCK_SIZE", "BLOCK_N", "CHUNK"],
        "peak": ["row_max", "m_i", "mx"],
        "denom": ["row_sum", "l_i", "total"],
        "e": ["num", "p", "ex"],
        "y": ["output", "result", "probs"],
    },
    notes=(
        "Row-wise softmax.",
        "Numerically stable softmax in Triton (subtracts the row maximum).",
        "Softmax kernel.\n\nInput: float32 matrix; output: float32 matrix of the same shape.\n",
        "An attempt at a faster softmax.",
    ),
)

THREE_PASS = (
    TRITON_IMPORTS
    + """
@triton.jit
def softmax_rows(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    # maximum of the row
    @max_init@
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(x_ptr + cols, mask=mask, other=-float("inf"))
        @max_step@
    @max_end@
    # sum of the exponentials
    @sum_init@
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(x_ptr + cols, mask=mask, other=-float("inf"))
        e = tl.exp(v - peak)
        @keep@
        @sum_step@
    @sum_end@
    # write
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        @last@


def run(x):
    n_rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    softmax_rows[(n_rows,)](x, y, n_cols, BLOCK=@block@, num_warps=@warps@)
    @post@
    return y
"""
)


def three_pass(
    block: int,
    warps: int,
    reduce: str,
    last: str = "recompute",
    host: str | None = None,
) -> Draft:
    """Maximum, sum, write: three walks along the row."""
    choices = {
        "algorithm": "three_pass",
        "block": block,
        "warps": warps,
        "reduce": reduce,
        "last": last,
        "host": host,
    }
    pre, post = HOST[host]
    if reduce == "scalar":
        parts = {
            "max_init": 'peak = -float("inf")',
            "max_step": "peak = tl.maximum(peak, tl.max(v, axis=0))",
            "max_end": "",
            "sum_init": "denom = 0.0",
            "sum_step": "denom += tl.sum(e, axis=0)",
            "sum_end": "",
        }
    else:
        parts = {
            "max_init": 'high = tl.full([BLOCK], -float("inf"), dtype=tl.float32)',
            "max_step": "high = tl.maximum(high, v)",
            "max_end": "peak = tl.max(high, axis=0)",
            "sum_init": "acc = tl.zeros([BLOCK], dtype=tl.float32)",
            "sum_step": "acc += e",
            "sum_end": "denom = tl.sum(acc, axis=0)",
        }
    if last == "recompute":
        keep = ""
        end = "v = tl.load(x_ptr + cols, mask=mask)\ntl.store(y_ptr + cols, tl.exp(v - peak) / denom, mask=mask)"
    elif last == "hints":
        keep = ""
        end = (
            'v = tl.load(x_ptr + cols, mask=mask, eviction_policy="evict_first")\n'
            "inv = 1.0 / denom\n"
            'tl.store(y_ptr + cols, tl.exp(v - peak) * inv, mask=mask, eviction_policy="evict_first")'
        )
    else:
        keep = "tl.store(y_ptr + cols, e, mask=mask)"
        end = "e = tl.load(y_ptr + cols, mask=mask)\ntl.store(y_ptr + cols, e / denom, mask=mask)"
        parts["sum_end"] = joined(parts["sum_end"], "tl.debug_barrier()")
    code = fill(THREE_PASS, pre=pre, post=post, block=block, warps=warps, keep=keep, last=end, **parts)
    return Draft(choices, code, manner=MANNER)


ONLINE = (
    TRITON_IMPORTS
    + '''
@triton.jit
def online_softmax(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    """Running maximum and running sum in one pass, the result in a second."""
    row = tl.program_id(0)
    src = x_ptr + row * n_cols
    dst = y_ptr + row * n_cols
    @init@
    for start in @loop1@:
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(src + cols, mask=mask, other=-1e30@hint1@)
        @step@
    @end@
    for start in @loop2@:
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(src + cols, mask=mask, other=-1e30@hint2@)
        tl.store(dst + cols, @value@, mask=mask)


def run(x):
    n_rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    online_softmax[(n_rows,)](x, y, n_cols, BLOCK=@block@, num_warps=@warps@)
    @post@
    return y
'''
)


def online(
    block: int,
    warps: int,
    state: str,
    hints: bool = False,
    loop: str = "plain",
    host: str | None = None,
) -> Draft:
    """The online softmax: two walks along the row."""
    choices = {
        "algorithm": "online",
        "block": block,
        "warps": warps,
        "state": state,
        "hints": "evict" if hints else "none",
        "loop": loop,
        "host": host,
    }
    pre, post = HOST[host]
    value = "tl.exp(v - peak) / denom"
    if state == "scalar":
        init = 'peak = -float("inf")\ndenom = 0.0'
        step = (
            "new = tl.maximum(peak, tl.max(v, axis=0))\n"
            "denom = denom * tl.exp(peak - new) + tl.sum(tl.exp(v - new), axis=0)\n"
            "peak = new"
        )
        end = ""
    else:
        base = "exp2" if state == "lanes_exp2" else "exp"
        scaled = "v * 1.4426950408889634" if base == "exp2" else "v"
        init = (
            "# every lane keeps a maximum and a sum of its own; they are merged once, at the end\n"
            "ms = tl.full([BLOCK], -1e30, dtype=tl.float32)\nls = tl.zeros([BLOCK], dtype=tl.float32)"
        )
        step = (
            f"t = {scaled}\nnew = tl.maximum(ms, t)\n"
            f"ls = ls * tl.{base}(ms - new) + tl.where(mask, tl.{base}(t - new), 0.0)\nms = new"
        )
        end = f"big = tl.max(ms, axis=0)\nscale = 1.0 / tl.sum(ls * tl.{base}(ms - big), axis=0)"
        value = f"tl.{base}({scaled} - big) * scale"
    if loop == "staged":
        loop1 = loop2 = "tl.range(0, n_cols, BLOCK, num_stages=3)"
    elif loop == "backwards":
        # the end of the row is still in the cache
        loop1, loop2 = "range(0, n_cols, BLOCK)", "range(((n_cols - 1) // BLOCK) * BLOCK, -1, -BLOCK)"
    else:
        loop1 = loop2 = "range(0, n_cols, BLOCK)"
    code = fill(
        ONLINE,
        init=init,
        step=step,
        end=end,
        value=value,
        loop1=loop1,
        loop2=loop2,
        pre=pre,
        post=post,
        block=block,
        warps=warps,
        hint1=eviction("last", hints),
        hint2=eviction("first", hints),
    )
    return Draft(choices, code, manner=MANNER)


FULL_ROW = (
    TRITON_IMPORTS
    + """
@triton.jit
def softmax_kernel(y_ptr, x_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    v = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=-float("inf")@hint@)
    peak = tl.max(v, axis=0)
    @math@
    tl.store(y_ptr + row * y_stride + cols, out_row, mask=mask@hint@)


def run(x):
    n_rows, n_cols = x.shape
    @pre@
    BLOCK = triton.next_power_of_2(n_cols)
    @rule@
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](y, x, x.stride(0), y.stride(0), n_cols, BLOCK=BLOCK, num_warps=@warps@)
    @post@
    return y
"""
)
MATH = {
    "divide": "e = tl.exp(v - peak)\ndenom = tl.sum(e, axis=0)\nout_row = e / denom",
    "exp2": "e = tl.exp2((v - peak) * 1.4426950408889634)\nout_row = e * (1.0 / tl.sum(e, axis=0))",
    "log": "denom = tl.sum(tl.exp(v - peak), axis=0)\nout_row = tl.exp(v - peak - tl.log(denom))",
    "builtin": "out_row = tl.softmax(v)",
}


def full_row(warps: str, math: str = "divide", hints: bool = False, host: str | None = None) -> Draft:
    """A program per row that holds the row in registers."""
    choices = {
        "algorithm": "full_row",
        "warps": warps,
        "math": math,
        "hints": "evict" if hints else "none",
        "host": host,
    }
    pre, post = HOST[host]
    rule = {
        "tutorial": "num_warps = 4\nif BLOCK >= 2048:\n    num_warps = 8\nif BLOCK >= 4096:\n    num_warps = 16",
        "per_1024": "num_warps = min(32, max(1, BLOCK // 1024))",
        "per_512": "num_warps = min(32, max(1, BLOCK // 512))",
    }.get(warps, "")
    code = fill(
        FULL_ROW,
        math=MATH[math],
        pre=pre,
        post=post,
        rule=rule,
        warps="num_warps" if rule else warps,
        hint=eviction("first", hints),
    )
    if math == "builtin":
        code = code.replace("    peak = tl.max(v, axis=0)\n", "")
    return Draft(choices, code, manner=MANNER)


PERSISTENT = (
    TRITON_IMPORTS
    + """
@triton.jit
def row_loop(out_ptr, in_ptr, n_rows, N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    first = tl.program_id(0)
    step = tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    for r in tl.range(first, n_rows, step, num_stages=STAGES):
        z = tl.load(in_ptr + r * N + c, mask=c < N, other=-float("inf"))
        z = z - tl.max(z, axis=0)
        num = tl.exp(z)
        tl.store(out_ptr + r * N + c, num / tl.sum(num, axis=0), mask=c < N)


def run(x):
    rows, N = x.shape
    out = torch.empty_like(x)
    @grid@
    row_loop[(min(programs, rows),)](
        out, x, rows, N=N, BLOCK=triton.next_power_of_2(N), STAGES=@stages@, num_warps=@warps@
    )
    return out
"""
)


def persistent(waves: str, warps: int, stages: int) -> Draft:
    """A fixed number of programs that stride over the rows."""
    choices = {"algorithm": "persistent", "waves": waves, "warps": warps, "stages": stages}
    if waves == "one_per_sm_guess":
        grid = "programs = 108  # multiprocessors"
    else:
        grid = f"programs = {waves} * torch.cuda.get_device_properties(x.device).multi_processor_count"
    return Draft(choices, fill(PERSISTENT, grid=grid, warps=warps, stages=stages), manner=MANNER)


TILE = (
    TRITON_IMPORTS
    + """
@triton.jit
def tile_softmax(X, Y, M, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (r < M)[:, None]
    at = r[:, None] * N
    big = tl.full([ROWS], -1e30, tl.float32)
    tot = tl.zeros([ROWS], tl.float32)
    for c in range(0, N, COLS):
        k = (c + tl.arange(0, COLS))[None, :]
        t = tl.load(X + at + k, mask=live & (k < N), other=-1e30)
        @step@
    for c in range(0, N, COLS):
        k = (c + tl.arange(0, COLS))[None, :]
        t = tl.load(X + at + k, mask=live & (k < N), other=-1e30)
        tl.store(Y + at + k, tl.exp(t - big[:, None]) / tot[:, None], mask=live & (k < N))


def run(x):
    M, N = x.shape
    Y = torch.empty_like(x)
    tile_softmax[(triton.cdiv(M, @rows@),)](
        x, Y, M, N, ROWS=@rows@, COLS=@cols@, num_warps=@warps@, num_stages=@stages@
    )
    return Y
"""
)

TILE_SEPARATE = """big = tl.maximum(big, tl.max(t, axis=1))
    for c in range(0, N, COLS):
        k = (c + tl.arange(0, COLS))[None, :]
        t = tl.load(X + at + k, mask=live & (k < N), other=-1e30)
        tot += tl.sum(tl.exp(t - big[:, None]), axis=1)"""

TILE_FULL = (
    TRITON_IMPORTS
    + """
@triton.jit
def few_rows(x_ptr, y_ptr, M, N: tl.constexpr, R: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    idx = r[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x_ptr + idx, mask=r[:, None] < M, other=0.0)
    v -= tl.max(v, axis=1)[:, None]
    v = tl.exp(v)
    v /= tl.sum(v, axis=1)[:, None]
    tl.store(y_ptr + idx, v, mask=r[:, None] < M)


def run(x):
    M, N = x.shape
    y = torch.empty_like(x)
    @rule@
    few_rows[(triton.cdiv(M, R),)](x, y, M, N=N, R=R, num_warps=@warps@)
    return y
"""
)


def tile(rows: int, cols: int, warps: int, step: str = "online", stages: int = 2) -> Draft:
    """Two-dimensional tiles: several rows per program, columns in a loop."""
    choices = {
        "algorithm": "tile",
        "rows": rows,
        "cols": cols,
        "warps": warps,
        "step": step,
        "stages": stages,
    }
    body = (
        "new = tl.maximum(big, tl.max(t, axis=1))\n"
        "tot = tot * tl.exp(big - new) + tl.sum(tl.exp(t - new[:, None]), axis=1)\n"
        "big = new"
    )
    template = TILE if step == "online" else TILE.replace("        @step@", "        " + TILE_SEPARATE)
    code = fill(template, rows=rows, cols=cols, warps=warps, stages=stages, step=body)
    return Draft(choices, code, manner=MANNER)


def tile_full(rows: str, warps: str) -> Draft:
    """Several whole rows per program."""
    rule = "R = max(1, 4096 // N)" if rows == "adaptive" else f"R = {rows}"
    if warps == "per_1024":
        rule += "\nwarps = min(32, max(4, R * N // 1024))"
    code = fill(TILE_FULL, rule=rule, warps="warps" if warps == "per_1024" else warps)
    return Draft({"algorithm": "tile_full", "rows": rows, "warps": warps}, code, manner=MANNER)


THREE_KERNELS = (
    TRITON_IMPORTS
    + """
@triton.jit
def max_kernel(x, row_max, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    best = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    for s in range(0, n, BLOCK):
        i = s + tl.arange(0, BLOCK)
        best = tl.maximum(best, tl.load(x + r * n + i, mask=i < n, other=-float("inf")))
    tl.store(row_max + r, tl.max(best, axis=0))


@triton.jit
def exp_sum_kernel(x, row_max, row_sum, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    top = tl.load(row_max + r)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for s in range(0, n, BLOCK):
        i = s + tl.arange(0, BLOCK)
        e = tl.exp(tl.load(x + r * n + i, mask=i < n, other=-float("inf")) - top)
        @spill@
        acc += e
    tl.store(row_sum + r, tl.sum(acc, axis=0))


@triton.jit
def div_kernel(src, row_max, row_sum, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(src + r * n + i, mask=i < n)
    @final@


def run(x):
    rows, n = x.shape
    row_max = torch.empty(rows, device=x.device)
    row_sum = torch.empty(rows, device=x.device)
    y = torch.empty_like(x)
    @maxima@
    exp_sum_kernel[(rows,)](x, row_max, row_sum, y, n, BLOCK=@block@, num_warps=@warps@)
    div_kernel[(rows, triton.cdiv(n, @block@))](@src@, row_max, row_sum, y, n, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)

SPLIT = (
    TRITON_IMPORTS
    + """
@triton.jit
def stats(x_ptr, m_ptr, l_ptr, n, parts, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    p = tl.program_id(1)
    i = p * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x_ptr + r * n + i, mask=i < n, other=-1e30)
    top = tl.max(t, axis=0)
    tl.store(m_ptr + r * parts + p, top)
    tl.store(l_ptr + r * parts + p, tl.sum(tl.exp(t - top), axis=0))


@triton.jit
def merge(x_ptr, m_ptr, l_ptr, y_ptr, n, parts, P: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    p = tl.program_id(1)
    k = tl.arange(0, P)
    ms = tl.load(m_ptr + r * parts + k, mask=k < parts, other=-1e30)
    ls = tl.load(l_ptr + r * parts + k, mask=k < parts, other=0.0)
    big = tl.max(ms, axis=0)
    tot = tl.sum(ls * tl.exp(ms - big), axis=0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x_ptr + r * n + i, mask=i < n, other=-1e30)
    tl.store(y_ptr + r * n + i, tl.exp(t - big) / tot, mask=i < n)


def run(x):
    rows, n = x.shape
    parts = triton.cdiv(n, @block@)
    m = torch.empty(rows, parts, device=x.device, dtype=torch.float32)
    l = torch.empty(rows, parts, device=x.device, dtype=torch.float32)
    y = torch.empty_like(x)
    stats[(rows, parts)](x, m, l, n, parts, BLOCK=@block@, num_warps=@warps@)
    @between@
    merge[(rows, parts)](x, m, l, y, n, parts, P=triton.next_power_of_2(parts), BLOCK=@block@, num_warps=@warps@)
    return y
"""
)

SPLIT_TORCH = (
    "# combine the pieces with torch\ntop = m.amax(dim=1, keepdim=True)\n"
    "l = l * torch.exp(m - top)\nm = top.expand(-1, parts).contiguous()"
)


def three_kernels(maxima: str, spill: bool, block: int, warps: int) -> Draft:
    """A launch each for maximum, sum and division."""
    choices = {
        "algorithm": "three_kernels",
        "maxima": maxima,
        "last": "store_exp" if spill else "recompute",
        "block": block,
        "warps": warps,
    }
    find = (
        "row_max = x.amax(dim=-1)"
        if maxima == "torch"
        else f"max_kernel[(rows,)](x, row_max, n, BLOCK={block}, num_warps={warps})"
    )
    code = fill(
        THREE_KERNELS,
        block=block,
        warps=warps,
        maxima=find,
        src="y" if spill else "x",
        spill="tl.store(y + r * n + i, e, mask=i < n)" if spill else "",
        final="tl.store(y + r * n + i, t / tl.load(row_sum + r), mask=i < n)"
        if spill
        else "e = tl.exp(t - tl.load(row_max + r))\ntl.store(y + r * n + i, e / tl.load(row_sum + r), mask=i < n)",
    )
    return Draft(choices, code, manner=MANNER)


def split(block: int, warps: int, combine: str = "in_kernel") -> Draft:
    """Several programs share a row."""
    choices = {"algorithm": "split", "block": block, "warps": warps, "combine": combine}
    code = fill(SPLIT, block=block, warps=warps, between=SPLIT_TORCH if combine == "torch" else "")
    return Draft(choices, code, manner=MANNER)


AUTOTUNED = (
    TRITON_IMPORTS
    + """
def _configs():
    return [triton.Config({"BLOCK": b}, num_warps=w) for b, w in @configs@]


@triton.autotune(configs=_configs(), key=["n_cols"])
@triton.jit
def softmax_tuned(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    m = -float("inf")
    d = 0.0
    for off in range(0, n_cols, BLOCK):
        idx = off + tl.arange(0, BLOCK)
        val = tl.load(x_ptr + pid * n_cols + idx, mask=idx < n_cols, other=-float("inf"))
        m_new = tl.maximum(m, tl.max(val, axis=0))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(val - m_new), axis=0)
        m = m_new
    for off in range(0, n_cols, BLOCK):
        idx = off + tl.arange(0, BLOCK)
        val = tl.load(x_ptr + pid * n_cols + idx, mask=idx < n_cols, other=-float("inf"))
        tl.store(y_ptr + pid * n_cols + idx, tl.exp(val - m) / d, mask=idx < n_cols)


def run(x):
    y = torch.empty_like(x)
    softmax_tuned[(x.shape[0],)](x, y, x.shape[1])
    return y
"""
)


AUTOTUNE = {
    "small": [(128, 1), (256, 2), (256, 4)],
    "usual": [(1024, 4), (1024, 8), (2048, 8)],
    "wide": [(2048, 8), (4096, 8), (8192, 16)],
}


def autotuned(name: str) -> Draft:
    """The online softmax with a list of configurations to choose from."""
    code = fill(AUTOTUNED, configs=AUTOTUNE[name])
    return Draft({"algorithm": "autotuned", "configs": name}, code, manner=MANNER)


SLOW = {
    "lanes_over_rows": TRITON_IMPORTS
    + """
@triton.jit
def by_columns(x, y, M, N, R: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    ok = r < M
    m = tl.full([R], -1e30, tl.float32)
    s = tl.zeros([R], tl.float32)
    for c in range(0, N):
        v = tl.load(x + r * N + c, mask=ok, other=0.0)
        new = tl.maximum(m, v)
        s = s * tl.exp(m - new) + tl.exp(v - new)
        m = new
    for c in range(0, N):
        v = tl.load(x + r * N + c, mask=ok, other=0.0)
        tl.store(y + r * N + c, tl.exp(v - m) / s, mask=ok)


def run(x):
    M, N = x.shape
    y = torch.empty_like(x)
    by_columns[(triton.cdiv(M, @p@),)](x, y, M, N, R=@p@, num_warps=@warps@)
    return y
""",
    "narrow_blocks": TRITON_IMPORTS
    + """
@triton.jit
def narrow(x, y, N, B: tl.constexpr):
    r = tl.program_id(0)
    lane = tl.arange(0, B)
    m = float("-inf")
    for c in range(0, N, B):
        m = tl.maximum(m, tl.max(tl.load(x + r * N + c + lane)))
    s = 0.0
    for c in range(0, N, B):
        s += tl.sum(tl.exp(tl.load(x + r * N + c + lane) - m))
    for c in range(0, N, B):
        tl.store(y + r * N + c + lane, tl.exp(tl.load(x + r * N + c + lane) - m) / s)


def run(x):
    y = torch.empty_like(x)
    narrow[(x.shape[0],)](x, y, x.shape[1], B=@p@, num_warps=@warps@)
    return y
""",
    "block_redo": TRITON_IMPORTS
    + """
@triton.jit
def redo(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    # grid: rows x blocks; the statistics of the row are found anew by each block
    r = tl.program_id(1)
    b = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    hi = tl.full([BLOCK], -1e30, tl.float32)
    for k in range(0, n, BLOCK):
        hi = tl.maximum(hi, tl.load(x_ptr + r * n + k + i, mask=k + i < n, other=-1e30))
    top = tl.max(hi, 0)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in range(0, n, BLOCK):
        acc += tl.exp(tl.load(x_ptr + r * n + k + i, mask=k + i < n, other=-1e30) - top)
    t = tl.load(x_ptr + r * n + b * BLOCK + i, mask=b * BLOCK + i < n, other=-1e30)
    tl.store(y_ptr + r * n + b * BLOCK + i, tl.exp(t - top) / tl.sum(acc, 0), mask=b * BLOCK + i < n)


def run(x):
    rows, n = x.shape
    y = torch.empty_like(x)
    redo[(triton.cdiv(n, @p@), rows)](x, y, n, BLOCK=@p@, num_warps=@warps@)
    return y
""",
    "exp_kernel_and_torch": TRITON_IMPORTS
    + """
@triton.jit
def sub_exp(x, m, y, n, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    ok = i < n
    v = tl.load(x + i, mask=ok, other=0.0) - tl.load(m + i // N, mask=ok, other=0.0)
    tl.store(y + i, tl.exp(v), mask=ok)


def run(x):
    m = torch.max(x, dim=1).values
    e = torch.empty_like(x)
    n = x.numel()
    sub_exp[(triton.cdiv(n, @p@),)](x, m, e, n, x.shape[1], B=@p@, num_warps=@warps@)
    return e / e.sum(dim=1, keepdim=True)
""",
    "atomic_sums": TRITON_IMPORTS
    + """
@triton.jit
def exp_and_add(x, m, s, y, N, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.exp(tl.load(x + r * N + i, mask=i < N, other=-float("inf")) - tl.load(m + r))
    tl.store(y + r * N + i, v, mask=i < N)
    tl.atomic_add(s + r, tl.sum(v, axis=0))


@triton.jit
def divide(s, y, N, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(y + r * N + i, mask=i < N)
    tl.store(y + r * N + i, v / tl.load(s + r), mask=i < N)


def run(x):
    M, N = x.shape
    m = x.amax(dim=1)
    s = torch.zeros(M, device=x.device, dtype=torch.float32)
    y = torch.empty_like(x)
    grid = (M, triton.cdiv(N, @p@))
    exp_and_add[grid](x, m, s, y, N, B=@p@, num_warps=@warps@)
    divide[grid](s, y, N, B=@p@, num_warps=@warps@)
    return y
""",
}


def slow(name: str, parameter: int, warps: int) -> Draft:
    """Kernels with an unlucky idea."""
    choices = {"algorithm": name, "size": parameter, "warps": warps}
    return Draft(choices, fill(SLOW[name], p=parameter, warps=warps))


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH: dict[str, str] = {
    "functional": "import torch\nimport torch.nn.functional as F\n\n\ndef run(x):\n    return F.softmax(x, dim=-1)\n",
    "torch_softmax": (
        "import torch\n\n\ndef run(x):\n    # the library kernel is hard to beat\n"
        "    return torch.softmax(x, dim=1).contiguous()\n"
    ),
    "dtype_double": "import torch\n\n\ndef run(x):\n    return torch.softmax(x, dim=-1, dtype=torch.float64).float()\n",
    "double_cast": (
        "import torch\n\n\ndef run(x):\n    xd = x.double()\n"
        "    xd = xd - xd.amax(dim=-1, keepdim=True)\n    e = xd.exp()\n"
        "    return (e / e.sum(dim=-1, keepdim=True)).float()\n"
    ),
    "log_softmax_exp": (
        "import torch\nimport torch.nn.functional as F\n\n\ndef run(x):\n"
        "    return F.log_softmax(x, dim=-1).exp()\n"
    ),
    "log_softmax_exp_": "import torch\n\n\ndef run(x):\n    y = torch.log_softmax(x, dim=-1)\n    return y.exp_()\n",
    "chain": """import torch


def run(x):
    row_max = x.amax(dim=-1, keepdim=True)
    e = torch.exp(x - row_max)
    return e / e.sum(dim=-1, keepdim=True)
""",
    "chain_max_values": """import torch


def run(x):
    shifted = x - x.max(dim=-1, keepdim=True).values
    numerator = shifted.exp()
    denominator = numerator.sum(dim=-1, keepdim=True)
    return numerator.div(denominator)
""",
    "chain_in_place": """import torch


def run(x):
    y = x - x.amax(dim=-1, keepdim=True)
    y.exp_()
    y.mul_(y.sum(dim=-1, keepdim=True).reciprocal_())
    return y
""",
    "logsumexp": """import torch


def run(x):
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))
""",
    "clone_everything": """import torch


def run(x):
    a = x.clone()
    m = torch.max(a, dim=1, keepdim=True)[0].expand_as(a).contiguous()
    b = (a - m).clone()
    c = torch.exp(b).contiguous()
    s = torch.sum(c, dim=1, keepdim=True).repeat(1, x.shape[1])
    return torch.div(c, s).clone()
""",
    "transposed": """import torch


def run(x):
    t = x.t().contiguous()
    return torch.softmax(t, dim=0).t().contiguous()
""",
    "column_softmax_view": """import torch


def run(x):
    # softmax along dim 0 of the transposed view
    return torch.softmax(x.t(), dim=0).t()
""",
    "jit_script": """import torch


@torch.jit.script
def stable_softmax(x: torch.Tensor) -> torch.Tensor:
    z = x - x.amax(dim=-1, keepdim=True)
    e = torch.exp(z)
    return e / torch.sum(e, dim=-1, keepdim=True)


def run(x):
    return stable_softmax(x)
""",
    "module": """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        return self.softmax(x.contiguous())


model = Model().eval()


def run(x):
    with torch.no_grad():
        out = model(x)
    torch.cuda.synchronize()
    return out
""",
    "matmul_sum": """import torch


def run(x):
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))
    ones = torch.ones(x.shape[1], 1, device=x.device)
    return e / (e @ ones)
""",
    "sort_max": """import torch


def run(x):
    top = torch.topk(x, k=1, dim=-1).values
    e = torch.exp(x - top)
    return e / torch.sum(e, dim=-1, keepdim=True)
""",
    "cumsum": """import torch


def run(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / torch.cumsum(e, dim=-1)[:, -1:]
""",
    "two_halves": """import torch


def run(x):
    a, b = x.chunk(2, dim=1)
    m = torch.maximum(a.amax(1, keepdim=True), b.amax(1, keepdim=True))
    ea, eb = (a - m).exp(), (b - m).exp()
    s = ea.sum(1, keepdim=True) + eb.sum(1, keepdim=True)
    return torch.cat((ea / s, eb / s), dim=1)
""",
    "host_max": """import torch


def run(x):
    m = x.amax(dim=-1, keepdim=True).cpu().to(x.device)
    e = torch.exp(x - m)
    s = e.sum(dim=-1, keepdim=True)
    if float(s.min()) <= 0:
        raise ValueError("empty row")
    return e / s
""",
    "blocked_online": """import torch


def run(x):
    # online softmax over blocks of columns, so that the working set fits into the cache
    n, step = x.shape[1], 256
    m = torch.full((x.shape[0], 1), float("-inf"), device=x.device)
    s = torch.zeros_like(m)
    for c in range(0, n, step):
        block = x[:, c : c + step]
        new = torch.maximum(m, block.amax(dim=1, keepdim=True))
        s = s * torch.exp(m - new) + torch.exp(block - new).sum(dim=1, keepdim=True)
        m = new
    y = torch.empty_like(x)
    for c in range(0, n, step):
        y[:, c : c + step] = torch.exp(x[:, c : c + step] - m) / s
    return y
""",
    "sorted_rows": """import torch


def run(x):
    ordered = torch.sort(x, dim=-1, descending=True).values
    top = ordered[:, :1]
    total = torch.exp(ordered - top).sum(dim=-1, keepdim=True)
    return torch.exp(x - top) / total
""",
    "exp2_chain": """import torch

LOG2E = 1.4426950408889634


def run(x):
    scaled = (x - x.amax(dim=1, keepdim=True)) * LOG2E
    powers = torch.exp2(scaled)
    return powers * powers.sum(dim=1, keepdim=True).reciprocal()
""",
    "power_of_e": """import math

import torch


def run(x):
    z = x - torch.max(x, dim=-1, keepdim=True)[0]
    p = torch.pow(torch.full_like(z, math.e), z)
    return torch.div(p, torch.sum(p, dim=-1, keepdim=True))
""",
    "addcdiv": """import torch


def run(x):
    e = torch.exp(torch.sub(x, x.amax(-1, keepdim=True)))
    s = e.sum(-1, keepdim=True).expand_as(e)
    return torch.addcdiv(torch.zeros_like(e), e, s)
""",
    "einsum_sum": """import torch


def run(x):
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    s = torch.einsum("ij->i", e)
    return torch.einsum("ij,i->ij", e, 1.0 / s)
""",
    "guarded": """import torch


def softmax(x, dim=-1, eps=1e-12):
    x = x.float()
    x = torch.nan_to_num(x, nan=0.0, posinf=1e30, neginf=-1e30)
    m = torch.amax(x, dim=dim, keepdim=True)
    e = torch.exp(torch.clamp(x - m, max=0.0))
    return e / (e.sum(dim=dim, keepdim=True) + eps)


def run(x):
    return softmax(x).to(x.dtype)
""",
    "two_step_log": """import torch


def run(x):
    m = x.amax(dim=-1, keepdim=True)
    z = x - m
    log_sum = torch.log(torch.exp(z).sum(dim=-1, keepdim=True))
    return torch.exp(z - log_sum)
""",
    "double_sum": """import torch


def run(x):
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))
    # accumulate in float64 for accuracy
    s = e.double().sum(dim=-1, keepdim=True)
    return (e / s).float()
""",
    "list_of_rows": """import torch


def run(x):
    outs = []
    for part in x.split(64):
        m, _ = part.max(dim=1, keepdim=True)
        e = torch.exp(part - m)
        outs.append(e / e.sum(dim=1, keepdim=True))
    return torch.vstack(outs)
""",
    "where_mask": """import torch


def run(x):
    finite = torch.isfinite(x)
    z = torch.where(finite, x, torch.full_like(x, float("-inf")))
    z = z - z.amax(dim=-1, keepdim=True)
    e = torch.where(finite, z.exp(), torch.zeros_like(z))
    return e / e.sum(dim=-1, keepdim=True).clamp_min(1e-20)
""",
}

CHUNKED = """
import torch
@imports@

@kernel@
def run(x):
    y = torch.empty_like(x)
    for start in range(0, x.shape[0], @chunk@):
        stop = min(start + @chunk@, x.shape[0])
        @body@
    return y
"""
CHUNK_BODIES: dict[str, tuple[str, str, str]] = {
    "library": ("", "", "y[start:stop] = torch.softmax(x[start:stop], dim=-1)"),
    "chain": (
        "",
        "",
        "piece = x[start:stop]\ne = torch.exp(piece - piece.amax(-1, keepdim=True))\n"
        "y[start:stop] = e / e.sum(-1, keepdim=True)",
    ),
    "triton": (
        "import triton\nimport triton.language as tl\n",
        """
@triton.jit
def piece_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x_ptr + r * n + c, mask=c < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y_ptr + r * n + c, v / tl.sum(v, 0), mask=c < n)

""",
        "n = x.shape[1]\npiece_kernel[(stop - start,)](x[start:stop], y[start:stop], n, "
        "B=triton.next_power_of_2(n), num_warps=16)",
    ),
}


def torch_source(name: str) -> Draft:
    """Plain PyTorch."""
    return Draft({"algorithm": "torch", "form": name}, TORCH[name], "pytorch")


def chunked(body: str, chunk: int) -> Draft:
    """A Python loop over slices of the rows."""
    imports, kernel, inner = CHUNK_BODIES[body]
    code = fill(CHUNKED, imports=imports, kernel=kernel, body=inner, chunk=chunk)
    choices = {"algorithm": "chunked", "form": body, "chunk": chunk}
    return Draft(choices, code, "triton" if body == "triton" else "pytorch")


WRAPS = {
    "copies": """

def run(x):
    source = x.detach().clone().contiguous()
    result = launch(source).clone()
    total = result.sum(dim=-1, keepdim=True)
    return result / total  # sums to one exactly
""",
    "sliced": """

def run(x):
    result = torch.zeros_like(x)
    for k in range(0, x.shape[0], 128):
        result[k : k + 128] = launch(x[k : k + 128])
    return result
""",
    "checked": """

def run(x):
    y = launch(x)
    expected = torch.softmax(x, dim=-1)
    error = (y - expected).abs().max().item()
    if error > 1e-3:
        print("kernel deviates", error)
        return expected
    return y
""",
}


# ------------------------------------------------------------------------------------------------- the pool

# A first version as one writes it: three walks along the row, one value of it per step.
SEED = three_pass(256, 8, "scalar", "store_exp")


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    for last in ("recompute", "store_exp"):
        pool.add(three_pass(b, w, r, last) for b, w, r in product((256, 1024), (4, 8), ("scalar", "vector")))
        pool.add(three_pass(128, w, "scalar", last) for w in (1, 4))
    pool.add(
        [
            three_pass(128, 4, "vector"),
            three_pass(4096, 16, "vector"),
            three_pass(4096, 16, "scalar"),
            three_pass(1024, 8, "scalar", "hints"),
            three_pass(1024, 8, "vector", "hints"),
            three_pass(2048, 8, "vector", "hints"),
        ]
    )
    pool.add(
        three_pass(256, 4, "scalar", "store_exp", host=h)
        for h in ("clone_in", "sync", "nan_check", "renormalise")
    )
    pool.add(three_pass(1024, 4, "vector", "recompute", host=h) for h in ("clone_out", "zeros_out"))
    pool.add(online(b, w, s) for b, w, s in product((256, 1024), (4, 8), ("scalar", "lanes")))
    pool.add(
        [
            online(2048, 8, "lanes_exp2"),
            online(128, 1, "scalar"),
            online(4096, 16, "scalar"),
            online(2048, 8, "lanes"),
        ]
    )
    pool.add(online(b, 8, s, hints=True) for b, s in ((1024, "scalar"), (1024, "lanes")))
    pool.add(online(2048, 8, "lanes", loop=loop) for loop in ("staged", "backwards"))
    pool.add(online(1024, 8, "scalar", loop=loop) for loop in ("staged", "backwards"))
    pool.add([online(2048, 8, "lanes_exp2", hints=True, loop="backwards")])
    pool.add(online(1024, 4, "scalar", host=h) for h in ("clone_in", "sync", "double_sync", "nan_check"))
    pool.add(full_row(w) for w in ("2", "4", "8", "16", "32", "tutorial", "per_1024", "per_512"))
    pool.add(full_row("16", m) for m in ("exp2", "builtin"))
    pool.add(
        [
            full_row("per_512", "exp2"),
            full_row("16", hints=True),
            full_row("8", "log"),
        ]
    )
    pool.add(
        full_row("16", host=h)
        for h in ("clone_in", "sync", "nan_check", "clone_out", "renormalise", "zeros_out")
    )
    pool.add(
        persistent(v, w, s)
        for v, w, s in (("1", 8, 1), ("1", 8, 2), ("1", 16, 1), ("4", 16, 1), ("4", 16, 2))
    )
    pool.add(
        [
            persistent("2", 16, 1),
            persistent("2", 16, 3),
            persistent("one_per_sm_guess", 8, 1),
            persistent("one_per_sm_guess", 16, 2),
        ]
    )
    pool.add(tile(r, c, w) for r, c, w in product((2, 4), (128, 512), (4, 8)))
    pool.add(tile(r, c, 4, "separate") for r, c in ((2, 128), (4, 512)))
    pool.add([tile(16, 64, 4), tile(8, 64, 2), tile(2, 2048, 8)])
    pool.add(tile(4, 512, 4, stages=s) for s in (1, 4))
    pool.add(tile_full(r, w) for r, w in (("2", "8"), ("2", "16"), ("4", "8"), ("4", "32")))
    pool.add(tile_full("adaptive", w) for w in ("8", "per_1024"))
    pool.add(
        three_kernels(m, s, b, w)
        for m, s, b, w in product(("kernel", "torch"), (True, False), (256, 1024), (4,))
    )
    pool.add(three_kernels("kernel", s, 1024, 8) for s in (True, False))
    pool.add(split(b, w) for b, w in ((256, 4), (256, 8), (1024, 4), (2048, 8)))
    pool.add(split(b, 4, "torch") for b in (256, 1024))
    pool.add(autotuned(name) for name in AUTOTUNE)


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(name) for name in TORCH)
    pool.add(chunked(b, c) for b, c in product(("library", "triton", "chain"), (128, 512, 2048)))
    pool.add(
        [
            chunked("library", 32),
            chunked("library", 16),
            chunked("chain", 64),
            chunked("chain", 256),
            chunked("triton", 64),
        ]
    )


def add_slow(pool: Pool) -> None:
    """Adds kernels with an unlucky idea."""
    pool.add(slow("lanes_over_rows", p, w) for p, w in ((32, 1), (64, 2), (128, 4)))
    pool.add(
        slow("narrow_blocks", p, w)
        for p, w in ((16, 1), (32, 1), (32, 4), (64, 1), (64, 4), (64, 8), (128, 4))
    )
    pool.add(slow("block_redo", p, w) for p, w in ((1024, 4), (2048, 8), (4096, 8)))
    pool.add(slow("exp_kernel_and_torch", p, w) for p, w in ((256, 4), (1024, 4), (1024, 8)))
    pool.add(slow("atomic_sums", p, w) for p, w in ((256, 4), (1024, 4), (1024, 8)))


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        full_row("16"),
        full_row("per_512", "exp2"),
        three_pass(256, 4, "scalar", "store_exp"),
        online(1024, 4, "scalar"),
        online(1024, 8, "lanes"),
        persistent("4", 16, 1),
        tile(4, 512, 4),
        tile_full("adaptive", "8"),
        split(1024, 4),
        three_kernels("kernel", False, 1024, 4),
        three_pass(1024, 4, "vector"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        three_pass(256, 4, "scalar", "store_exp"),
        half_row={"range(0, n_cols, BLOCK)": "range(0, n_cols // 2, BLOCK)"},
        syntax={"row = tl.program_id(0)": "row = tl.program_id(0"},
        undefined_name={"denom += tl.sum(e, axis=0)": "denom += tl.sum(ex_vals, axis=0)"},
        block_not_power_of_two={"BLOCK=256": "BLOCK=300"},
        partial_rows={"[(n_rows,)]": "[(n_rows // 2,)]"},
        reciprocal={"e / denom": "e * denom"},
    )
    pool.add_broken(
        three_pass(1024, 4, "vector"),
        no_max={"tl.exp(v - peak)": "tl.exp(v)"},
        no_mask_store={
            "tl.store(y_ptr + cols,": "tl.store(y_ptr + cols * 2048,",
            "/ denom, mask=mask)": "/ denom)",
        },
        runtime_block={"BLOCK: tl.constexpr": "BLOCK"},
        fp16={"tl.zeros([BLOCK], dtype=tl.float32)": "tl.zeros([BLOCK], dtype=tl.float16)"},
        wild_pointer={
            "x_ptr += row * n_cols": "x_ptr += (row * n_cols).to(tl.int64) * 65536 + 1099511627776"
        },
        row_stride={"row * n_cols": "row * BLOCK"},
        long_loop={
            "range(0, n_cols, BLOCK):": "range(0, n_cols * 20000, BLOCK):",
            "cols = start +": "cols = start % n_cols +",
        },
    )
    pool.add_broken(
        online(1024, 4, "scalar"),
        no_rescale={"denom = denom * tl.exp(peak - new) +": "denom = denom +"},
        wrong_argument={"x, y, n_cols,": "x, y, x.stride(0), n_cols,"},
        off_by_one={"mask = cols < n_cols": "mask = cols < n_cols - 1"},
        type_mixup={'peak = -float("inf")': "peak = 0"},
    )
    pool.add_broken(
        online(1024, 8, "lanes"),
        not_merged={"big = tl.max(ms, axis=0)": "big = tl.sum(ms, axis=0)"},
        cpu_output={"torch.empty_like(x)": "torch.empty(x.shape)"},
    )
    pool.add_broken(
        full_row("16"),
        no_max={"tl.exp(v - peak)": "tl.exp(v)"},
        no_such_function={"tl.exp(": "tl.expf("},
        wrong_shape={"return y": "return y.sum(dim=1)"},
        no_exp={"tl.exp(v - peak)": "(v - peak)"},
    )
    pool.add_broken(full_row("8"), too_many_warps={"num_warps=8": "num_warps=64"})
    pool.add_broken(full_row("tutorial"), no_import={"import triton.language as tl\n": ""})
    pool.add_broken(full_row("4"), bad_method={"torch.empty_like(x)": "torch.empty_as(x)"})
    pool.add_broken(tile(4, 512, 4), wrong_axis={"axis=1": "axis=0"})
    pool.add_broken(tile(2, 128, 4), no_max={"tl.exp(t - big[:, None])": "tl.exp(t)"})
    pool.add_broken(tile_full("2", "8"), wrong_axis={"axis=1": "axis=0"})
    pool.add_broken(split(1024, 4), not_merged={"big = tl.max(ms, axis=0)": "big = tl.sum(ms, axis=0)"})
    pool.add_broken(three_kernels("torch", False, 1024, 4), no_such_function={"tl.exp(": "tl.expf("})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("chain"),
        wrong_axis={"dim=-1": "dim=0"},
        global_max={".amax(dim=-1, keepdim=True)": ".max()"},
    )
    pool.add_broken(torch_source("functional"), log_softmax={"F.softmax(": "F.log_softmax("})
    pool.add_broken(torch_source("torch_softmax"), fp16={"torch.softmax(x,": "torch.softmax(x.half(),"})
    pool.add_broken(torch_source("chain_in_place"), bad_method={".amax(": ".maximum_along("})
    pool.add_broken(torch_source("chain_max_values"), no_keepdim={", keepdim=True": ""})
    pool.add_broken(torch_source("log_softmax_exp"), no_import={"import torch.nn.functional as F\n": ""})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    narrow = slow("narrow_blocks", 64, 4)
    stored = three_pass(256, 4, "scalar", "store_exp")
    usual = three_pass(1024, 4, "vector")
    row = full_row("16")
    pool.link(stored, three_kernels("kernel", True, 256, 4))
    pool.link(stored, slow("narrow_blocks", 128, 4))
    pool.link(narrow, stored)
    pool.link(narrow, torch_source("chain"))
    pool.link(narrow, three_pass(128, 4, "scalar"))
    pool.link(stored, torch_source("chain"))
    pool.link(three_pass(256, 4, "scalar"), online(256, 4, "scalar"))
    pool.link(three_pass(1024, 8, "vector"), online(1024, 8, "lanes"))
    pool.link(usual, three_kernels("kernel", False, 1024, 4))
    pool.link(three_pass(4096, 16, "vector"), row)
    pool.link(online(4096, 16, "scalar"), row)
    pool.link(online(1024, 8, "scalar"), autotuned("usual"))
    pool.link(online(256, 4, "scalar"), tile(2, 128, 4))
    pool.link(online(1024, 4, "scalar"), split(1024, 4))
    pool.link(row, persistent("4", 16, 1))
    pool.link(row, tile_full("2", "16"))
    pool.link(row, chunked("triton", 2048))
    pool.link(tile(4, 512, 4), tile_full("4", "8"))
    pool.link(torch_source("chain"), slow("exp_kernel_and_torch", 256, 4))
    pool.link(torch_source("functional"), chunked("library", 2048))
    pool.link(torch_source("chain"), chunked("chain", 2048))
    pool.link(slow("exp_kernel_and_torch", 1024, 4), slow("atomic_sums", 1024, 4))
    pool.link(slow("narrow_blocks", 32, 1), slow("lanes_over_rows", 32, 1))
    pool.link(usual, slow("block_redo", 1024, 4))
    pool.link(torch_source("log_softmax_exp"), torch_source("functional"))
    pool.link(slow("atomic_sums", 256, 4), split(256, 4))


def add_cuda(pool: Pool) -> None:
    """Adds the sources in CUDA C++ and their edits from Triton and PyTorch."""
    softmax_cuda.add_cuda(pool)
    softmax_cuda.break_cuda(pool)
    passes = softmax_cuda.three_passes(1, 256)
    pool.link(three_pass(256, 4, "scalar"), passes, softmax_cuda.elements(1, 256), torch_source("chain"))
    pool.link(passes, softmax_cuda.thread_row(64), softmax_cuda.warp_row(1, 64))
    pool.link(softmax_cuda.three_passes(4, 512), softmax_cuda.online(4, 512), softmax_cuda.registers(4, 512))
    pool.link(online(1024, 8, "lanes"), softmax_cuda.online(4, 256), softmax_cuda.warp_row(4, 256))
    pool.link(full_row("16"), softmax_cuda.registers(4, 512), softmax_cuda.staged(4, 512))
    pool.link(split(1024, 4), softmax_cuda.split_row(4, 128), softmax_cuda.three_passes(1, 128))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton, add_torch, add_slow, add_wrapped, break_triton, break_torch, link_families, add_cuda
    )
