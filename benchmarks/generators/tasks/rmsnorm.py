"""RMSNorm of bfloat16 rows: ``y = x * rsqrt(mean(x^2) + 1e-6) * weight``.

Every source defines ``run(x, weight)`` with x [rows, hidden] and weight [hidden], both bfloat16, and returns y
in bfloat16. The rows have very different magnitudes, so that a wrong epsilon shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks import rmsnorm_cuda
from benchmarks.generators.text import TRITON_IMPORTS, Manner, eviction, fill, joined, triton_configs

if TYPE_CHECKING:
    import torch

TASK = "rmsnorm"
OPERATION = "RMSNorm over the last axis, bfloat16 in and out, float32 arithmetic, eps 1e-6, with a weight"
SHAPES: list[dict[str, int]] = [
    {"rows": 4096, "hidden": 4096},
    {"rows": 8192, "hidden": 8192},
    {"rows": 16384, "hidden": 1024},
]
OUTPUT_DTYPES = ["bfloat16"]
TOLERANCE: dict[str, float] = {"relative_norm": 4e-3, "rtol": 0.03, "atol": 0.03}


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws rows whose magnitudes lie between 1e-3 and 30, and a weight around 1."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows, hidden = shape["rows"], shape["hidden"]
    x = torch.randn(rows, hidden, device=device, generator=generator)
    x *= 10 ** (torch.rand(rows, 1, device=device, generator=generator) * 4.5 - 3)
    weight = 1 + 0.2 * torch.randn(hidden, device=device, generator=generator)
    return x.to(torch.bfloat16), weight.to(torch.bfloat16)


def reference(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes the normalised rows in float32."""
    import torch

    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float(),)


# What a careless wrapper does around the launch: name -> (before, after).
HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "y = y.clone().contiguous()"),
    "nan_check": ("", 'if torch.isnan(y).any().item():\n    raise ValueError("NaN in the output")'),
    "item": ("peak = x.abs().max().item()\nassert peak < 1e30", ""),
    "roundtrip": ("x = x.to(torch.float32).to(torch.bfloat16)", ""),
    "fill_out": ("", "y = torch.zeros_like(y).copy_(y)"),
}

MANNER = Manner(
    names={
        "x_ptr": ["inp_ptr", "X", "x_data"],
        "w_ptr": ["gamma_ptr", "W", "weight_ptr"],
        "y_ptr": ["out_ptr", "Y", "result_ptr"],
        "n_cols": ["hidden", "N", "dim"],
        "row": ["row_idx", "pid", "r"],
        "cols": ["offs", "offsets", "col_idx"],
        "mask": ["valid", "m", "in_bounds"],
        "BLOCK": ["BLOCK_SIZE", "BLOCK_N", "TILE"],
        "total": ["sum_sq", "ssq", "acc_sum"],
        "inv": ["rstd", "scale", "inv_rms"],
        "y": ["out", "output", "res"],
    },
    notes=(
        "RMSNorm forward.",
        "Root mean square layer normalisation, written in Triton for bf16 activations.",
        "Fused RMSNorm kernel.\n\nEach row is normalised by its root mean square and scaled by a weight.\n",
        "Kernel candidate: try to reduce memory traffic.",
    ),
)

TWO_PASS = (
    TRITON_IMPORTS
    + """
@triton.jit
def rms_rows(x_ptr, w_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    # first pass: sum of squares
    @init@
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(x_ptr + cols, mask=mask, other=0.0@evict1@)@up@
        @accumulate@
    @finish@
    inv = 1.0 / tl.sqrt(total / n_cols + eps)
    # second pass: normalise and scale
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(x_ptr + cols, mask=mask, other=0.0@evict2@)@up@
        g = tl.load(w_ptr + cols, mask=mask, other=0.0)@up@
        tl.store(y_ptr + cols, @value@, mask=mask)


def run(x, weight):
    n_rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    rms_rows[(n_rows,)](x, weight, y, n_cols, 1e-6, BLOCK=@block@, num_warps=@warps@)
    @post@
    return y
"""
)


def two_pass(
    io: str,
    block: int,
    warps: int,
    acc: str,
    evict: bool = False,
    host: str | None = None,
) -> Draft:
    """A program per row that walks the row twice."""
    choices = {
        "algorithm": "two_pass",
        "io": io,
        "block": block,
        "warps": warps,
        "acc": acc,
        "evict": "hints" if evict else "none",
        "host": host,
    }
    if acc == "vector":
        init, add, finish = (
            "acc = tl.zeros([BLOCK], dtype=tl.float32)",
            "acc += v * v",
            "total = tl.sum(acc, axis=0)",
        )
    elif acc == "scalar":
        init, add, finish = "total = 0.0", "total += tl.sum(v * v, axis=0)", ""
    else:
        init, add, finish = (
            "total = tl.zeros([1], dtype=tl.float32)",
            "total += tl.sum(v * v)",
            "total = tl.sum(total)",
        )
    pre, post = HOST[host]
    if io == "cast":
        pre = joined(pre, "dtype = x.dtype\nx = x.float()\nweight = weight.float()")
        post = joined("y = y.to(dtype)", post)
    code = fill(
        TWO_PASS,
        init=init,
        accumulate=add,
        finish=finish,
        pre=pre,
        post=post,
        block=block,
        warps=warps,
        up="" if io == "cast" else ".to(tl.float32)",
        value="v * inv * g",
        evict1=eviction("last", evict),
        evict2=eviction("first", evict),
    )
    return Draft(choices, code, manner=MANNER)


FULL_ROW = (
    TRITON_IMPORTS
    + """
@triton.jit
def _rmsnorm_fwd(x_ptr, w_ptr, y_ptr, stride, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    # the whole row stays in registers
    v = tl.load(x_ptr + row * stride + cols, mask=mask, other=0.0@evict1@)@up@
    @weight_early@
    total = tl.sum(v * v, axis=0)
    inv = @rsqrt@
    @weight_late@
    tl.store(y_ptr + row * stride + cols, @value@, mask=mask@evict2@)


def run(x, weight):
    n_rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    BLOCK = triton.next_power_of_2(n_cols)
    @warp_rule@
    _rmsnorm_fwd[(n_rows,)](x, weight, y, x.stride(0), n_cols, 1e-6, BLOCK=BLOCK, num_warps=@warps@)
    @post@
    return y
"""
)


def full_row(
    io: str,
    warps: str,
    evict: bool = False,
    weight: str = "late",
    host: str | None = None,
) -> Draft:
    """A program per row that holds the row in registers."""
    choices = {
        "algorithm": "full_row",
        "io": io,
        "warps": warps,
        "evict": "hints" if evict else "none",
        "weight": weight,
        "host": host,
    }
    up = "" if io == "cast" else ".to(tl.float32)"
    load = f"g = tl.load(w_ptr + cols, mask=mask, other=0.0){up}"
    pre, post = HOST[host]
    if io == "cast":
        pre = joined(pre, "orig = x.dtype\nx = x.to(torch.float32)\nweight = weight.to(torch.float32)")
        post = joined("y = y.to(orig)", post)
    rule = {
        "heuristic": "num_warps = 4 if BLOCK <= 1024 else (8 if BLOCK <= 4096 else 16)",
        "per_1024": "num_warps = max(1, min(32, BLOCK // 1024))",
        "per_256": "num_warps = max(1, min(32, BLOCK // 256))",
    }.get(warps, "")
    code = fill(
        FULL_ROW,
        pre=pre,
        post=post,
        up=up,
        warps="num_warps" if rule else warps,
        warp_rule=rule,
        weight_early=load if weight == "early" else "",
        weight_late="" if weight == "early" else load,
        rsqrt="tl.rsqrt(total / n_cols + eps)" if evict else "1.0 / tl.sqrt(total / n_cols + eps)",
        value="v * inv * g" if weight != "rounded" else "(v * inv).to(tl.bfloat16) * g.to(tl.bfloat16)",
        evict1=eviction("first", evict),
        evict2=eviction("first", evict),
    )
    return Draft(choices, code, manner=MANNER)


PERSISTENT = (
    TRITON_IMPORTS
    + """
@triton.jit
def persistent_rms(x_ptr, w_ptr, y_ptr, n_rows, eps, N: tl.constexpr, BLOCK: tl.constexpr@stage_arg@):
    start_row = tl.program_id(0)
    step = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    ok = cols < N
    @hoisted@
    for row in @loop@:
        p = x_ptr + row * N + cols
        xs = tl.load(p, mask=ok, other=0.0).to(tl.float32)
        ss = tl.sum(xs * xs, axis=0)
        inv = tl.rsqrt(ss / N + eps)
        @inside@
        tl.store(y_ptr + row * N + cols, (xs * inv * gamma).to(y_ptr.dtype.element_ty), mask=ok)


def run(x, weight):
    M, N = x.shape
    y = torch.empty_like(x)
    @grid@
    persistent_rms[(programs,)](x, weight, y, M, 1e-6, N=N, BLOCK=triton.next_power_of_2(N)\
@stage_value@, num_warps=@warps@)
    return y
"""
)


def persistent(waves: str, warps: int, hoist: bool, stages: int = 0) -> Draft:
    """A fixed number of programs that stride over the rows."""
    choices = {
        "algorithm": "persistent",
        "waves": waves,
        "warps": warps,
        "weight": "hoisted" if hoist else "inside",
        "stages": stages or "none",
    }
    load = "gamma = tl.load(w_ptr + cols, mask=ok, other=0.0).to(tl.float32)"
    if waves == "fixed_64":
        grid = "programs = 64"
    else:
        grid = (
            "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
            f"programs = min(M, sms * {waves})"
        )
    code = fill(
        PERSISTENT,
        hoisted=load if hoist else "",
        inside="" if hoist else load,
        grid=grid,
        warps=warps,
        loop="tl.range(start_row, n_rows, step, num_stages=STAGES)"
        if stages
        else "range(start_row, n_rows, step)",
        stage_arg=", STAGES: tl.constexpr" if stages else "",
        stage_value=f", STAGES={stages}" if stages else "",
    )
    return Draft(choices, code, manner=MANNER)


TWO_KERNELS = (
    TRITON_IMPORTS
    + '''
@triton.jit
def stats_kernel(X, RSTD, n_cols, BLOCK: tl.constexpr):
    """Computes 1/rms for one row."""
    i = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, tl.cdiv(n_cols, BLOCK)):
        idx = k * BLOCK + tl.arange(0, BLOCK)
        t = tl.load(X + i * n_cols + idx, mask=idx < n_cols, other=0).to(tl.float32)
        acc += t * t
    tl.store(RSTD + i, tl.rsqrt(tl.sum(acc) / n_cols + 1e-6))


@triton.jit
@apply@


def run(x, weight):
    rows, n_cols = x.shape
    rstd = torch.empty(rows, device=x.device, dtype=torch.float32)
    stats_kernel[(rows,)](x, rstd, n_cols, BLOCK=@stats_block@, num_warps=@warps@)
    out = torch.empty_like(x)
    @launch@
    return out
'''
)

APPLY = {
    "flat": (
        """def apply_kernel(X, W, RSTD, OUT, numel, n_cols, BLOCK: tl.constexpr):
    # one dimensional grid over all elements; row and column come from div and mod
    idx = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = idx < numel
    r = tl.load(RSTD + idx // n_cols, mask=live)
    w = tl.load(W + idx % n_cols, mask=live).to(tl.float32)
    t = tl.load(X + idx, mask=live).to(tl.float32)
    tl.store(OUT + idx, t * r * w, mask=live)""",
        "total = x.numel()\n"
        "apply_kernel[(triton.cdiv(total, {b}),)](x, weight, rstd, out, total, n_cols, BLOCK={b}, num_warps={w})",
    ),
    "grid2d": (
        """def apply_kernel(X, W, RSTD, OUT, n_cols, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    idx = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = idx < n_cols
    r = tl.load(RSTD + i)
    t = tl.load(X + i * n_cols + idx, mask=keep).to(tl.float32)
    w = tl.load(W + idx, mask=keep).to(tl.float32)
    tl.store(OUT + i * n_cols + idx, t * r * w, mask=keep)""",
        "grid = (rows, triton.cdiv(n_cols, {b}))\n"
        "apply_kernel[grid](x, weight, rstd, out, n_cols, BLOCK={b}, num_warps={w})",
    ),
    "transposed_grid": (
        """def apply_kernel(X, W, RSTD, OUT, n_rows, n_cols, BLOCK: tl.constexpr):
    # a program owns one column block and a strip of rows, so that the weight is read once
    idx = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = idx < n_cols
    w = tl.load(W + idx, mask=keep).to(tl.float32)
    for i in range(tl.program_id(1), n_rows, tl.num_programs(1)):
        r = tl.load(RSTD + i)
        t = tl.load(X + i * n_cols + idx, mask=keep).to(tl.float32)
        tl.store(OUT + i * n_cols + idx, t * r * w, mask=keep)""",
        "grid = (triton.cdiv(n_cols, {b}), 128)\n"
        "apply_kernel[grid](x, weight, rstd, out, rows, n_cols, BLOCK={b}, num_warps={w})",
    ),
}


def two_kernels(apply: str, stats_block: int, block: int, warps: int) -> Draft:
    """One launch for the row statistics, one to apply them."""
    choices = {
        "algorithm": "two_kernels",
        "apply": apply,
        "stats_block": stats_block,
        "block": block,
        "warps": warps,
    }
    if apply == "torch":
        kernel, launch = "", "out.copy_(x.float() * rstd[:, None] * weight.float())"
        template = TWO_KERNELS.replace("@triton.jit\n@apply@\n\n\n", "")
        code = fill(template, launch=launch, stats_block=stats_block, warps=warps)
    else:
        kernel, launch = APPLY[apply]
        code = fill(
            TWO_KERNELS,
            apply=kernel,
            launch=launch.format(b=block, w=warps),
            stats_block=stats_block,
            warps=warps,
        )
    return Draft(choices, code, manner=MANNER)


SPLIT_ATOMIC = (
    TRITON_IMPORTS
    + """
@triton.jit
def partial_sums(x, sums, n_cols, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    piece = tl.program_id(1)
    part = 0.0
    for j in tl.static_range(0, CHUNK, BLOCK):
        inner = j + tl.arange(0, BLOCK)
        cols = piece * CHUNK + inner
        t = tl.load(x + row * n_cols + cols, mask=inner < CHUNK, other=0.0).to(tl.float32)
        part += tl.sum(t * t, axis=0)
    tl.atomic_add(sums + row, part)


@triton.jit
def scale_rows(x, w, sums, y, n_cols, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    piece = tl.program_id(1)
    inv = tl.rsqrt(tl.load(sums + row) / n_cols + 1e-6)
    for j in tl.static_range(0, CHUNK, BLOCK):
        inner = j + tl.arange(0, BLOCK)
        cols = piece * CHUNK + inner
        mask = inner < CHUNK
        t = tl.load(x + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(w + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + row * n_cols + cols, t * inv * g, mask=mask)


def run(x, weight):
    n_rows, n_cols = x.shape
    sums = torch.zeros(n_rows, dtype=torch.float32, device=x.device)
    y = torch.empty_like(x)
    chunk = n_cols // @splits@
    grid = (n_rows, @splits@)
    partial_sums[grid](x, sums, n_cols, CHUNK=chunk, BLOCK=@block@, num_warps=@warps@)
    scale_rows[grid](x, weight, sums, y, n_cols, CHUNK=chunk, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)

SPLIT_REDUCE = (
    TRITON_IMPORTS
    + """
@triton.jit
def block_squares(src, partials, n_cols, n_parts, BLOCK: tl.constexpr):
    r, c = tl.program_id(1), tl.program_id(0)
    at = c * BLOCK + tl.arange(0, BLOCK)
    val = tl.load(src + r * n_cols + at, mask=at < n_cols, other=0.0).to(tl.float32)
    tl.store(partials + r * n_parts + c, tl.sum(val * val, axis=0))


@triton.jit
def block_apply(src, weight, partials, dst, n_cols, n_parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    r, c = tl.program_id(1), tl.program_id(0)
    # every block adds up the partial sums of its row again
    k = tl.arange(0, PARTS)
    ms = tl.sum(tl.load(partials + r * n_parts + k, mask=k < n_parts, other=0.0), axis=0) / n_cols
    at = c * BLOCK + tl.arange(0, BLOCK)
    val = tl.load(src + r * n_cols + at, mask=at < n_cols, other=0.0).to(tl.float32)
    wt = tl.load(weight + at, mask=at < n_cols, other=0.0).to(tl.float32)
    tl.store(dst + r * n_cols + at, val * tl.rsqrt(ms + 1e-6) * wt, mask=at < n_cols)


def run(x, weight):
    rows, n_cols = x.shape
    parts = triton.cdiv(n_cols, @block@)
    partials = torch.empty((rows, parts), device=x.device, dtype=torch.float32)
    result = torch.empty_like(x)
    block_squares[(parts, rows)](x, partials, n_cols, parts, BLOCK=@block@, num_warps=@warps@)
    block_apply[(parts, rows)](
        x, weight, partials, result, n_cols, parts,
        PARTS=triton.next_power_of_2(parts), BLOCK=@block@, num_warps=@warps@,
    )
    return result
"""
)


def split_row(how: str, splits: int, block: int, warps: int) -> Draft:
    """Several programs share a row; their sums meet by atomics or in a buffer."""
    choices = {
        "algorithm": "split_row",
        "combine": how,
        "splits": splits if how == "atomic" else None,
        "block": block,
        "warps": warps,
    }
    template = SPLIT_ATOMIC if how == "atomic" else SPLIT_REDUCE
    return Draft(choices, fill(template, splits=splits, block=block, warps=warps), manner=MANNER)


TILE_LOOP = (
    TRITON_IMPORTS
    + """
@triton.jit
def tile_kernel(
    x_ptr, w_ptr, y_ptr,
    n_rows, n_cols,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rmask = rows[:, None] < n_rows
    base = rows[:, None] * n_cols
    @init@
    for c in range(0, n_cols, BLOCK):
        cols = c + tl.arange(0, BLOCK)
        mask = rmask & (cols[None, :] < n_cols)
        t = tl.load(x_ptr + base + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        @accumulate@
    inv = 1.0 / tl.sqrt(@total@ / n_cols + eps)
    for c in range(0, n_cols, BLOCK):
        cols = c + tl.arange(0, BLOCK)
        mask = rmask & (cols[None, :] < n_cols)
        t = tl.load(x_ptr + base + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        g = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        tl.store(y_ptr + base + cols[None, :], t * inv[:, None] * g[None, :], mask=mask)


def run(x, weight):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    tile_kernel[(triton.cdiv(n_rows, @rows@),)](
        x, weight, y, n_rows, n_cols, 1e-6, ROWS=@rows@, BLOCK=@block@, num_warps=@warps@, num_stages=@stages@
    )
    return y
"""
)

TILE_FULL = (
    TRITON_IMPORTS
    + """
@triton.jit
def rows_kernel(x_ptr, w_ptr, y_ptr, n_rows, N: tl.constexpr, R: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, N)[None, :]
    live = r < n_rows
    t = tl.load(x_ptr + r * N + c, mask=live, other=0.0).to(tl.float32)
    ms = tl.sum(t * t, axis=1) * (1.0 / N)
    g = tl.load(w_ptr + c).to(tl.float32)
    tl.store(y_ptr + r * N + c, (t * tl.rsqrt(ms + 1e-6)[:, None] * g).to(tl.bfloat16), mask=live)


def run(x, weight):
    n_rows, n_cols = x.shape
    assert n_cols & (n_cols - 1) == 0
    y = torch.empty_like(x)
    @rows_rule@
    rows_kernel[(triton.cdiv(n_rows, R),)](x, weight, y, n_rows, N=n_cols, R=R, num_warps=@warps@)
    return y
"""
)


def tile(rows: int, block: int, warps: int, acc: str = "row_sums", stages: int = 2) -> Draft:
    """Two-dimensional tiles: several rows per program, columns in a loop."""
    choices = {
        "algorithm": "tile",
        "rows": rows,
        "block": block,
        "warps": warps,
        "acc": acc,
        "stages": stages,
    }
    if acc == "row_sums":
        init, add, total = "acc = tl.zeros([ROWS], dtype=tl.float32)", "acc += tl.sum(t * t, axis=1)", "acc"
    else:
        init, add, total = (
            "acc = tl.zeros([ROWS, BLOCK], dtype=tl.float32)",
            "acc += t * t",
            "tl.sum(acc, axis=1)",
        )
    code = fill(
        TILE_LOOP, rows=rows, block=block, warps=warps, stages=stages, init=init, accumulate=add, total=total
    )
    return Draft(choices, code, manner=MANNER)


def tile_full(rows: str, warps: int) -> Draft:
    """Several whole rows per program, in registers."""
    choices = {"algorithm": "tile_full", "rows": rows, "warps": warps}
    rule = "R = max(1, 8192 // n_cols)" if rows == "adaptive" else f"R = {rows}"
    return Draft(choices, fill(TILE_FULL, rows_rule=rule, warps=warps), manner=MANNER)


BLOCK_POINTER = (
    TRITON_IMPORTS
    + """
@triton.jit
def rmsnorm_bp(x, w, y, M, N, eps, BN: tl.constexpr, SINGLE: tl.constexpr):
    pid = tl.program_id(0)
    src = tl.make_block_ptr(x, shape=(M, N), strides=(N, 1), offsets=(pid, 0), block_shape=(1, BN), order=(1, 0))
    dst = tl.make_block_ptr(y, shape=(M, N), strides=(N, 1), offsets=(pid, 0), block_shape=(1, BN), order=(1, 0))
    wts = tl.make_block_ptr(w, shape=(N,), strides=(1,), offsets=(0,), block_shape=(BN,), order=(0,))
    if SINGLE:
        v = tl.load(src, boundary_check=(1,), padding_option="zero").to(tl.float32)
        rms = tl.sqrt(tl.sum(v * v, axis=1) / N + eps)
        g = tl.load(wts, boundary_check=(0,), padding_option="zero").to(tl.float32)
        tl.store(dst, (v / rms[:, None] * g[None, :]).to(y.dtype.element_ty), boundary_check=(1,))
    else:
        acc = tl.zeros((1, BN), dtype=tl.float32)
        first = src
        for _ in range(0, N, BN):
            v = tl.load(src, boundary_check=(1,), padding_option="zero").to(tl.float32)
            acc += v * v
            src = tl.advance(src, (0, BN))
        rms = tl.sqrt(tl.sum(acc, axis=1) / N + eps)
        src = first
        for _ in range(0, N, BN):
            v = tl.load(src, boundary_check=(1,), padding_option="zero").to(tl.float32)
            g = tl.load(wts, boundary_check=(0,), padding_option="zero").to(tl.float32)
            tl.store(dst, (v / rms[:, None] * g[None, :]).to(y.dtype.element_ty), boundary_check=(1,))
            src = tl.advance(src, (0, BN))
            dst = tl.advance(dst, (0, BN))
            wts = tl.advance(wts, (BN,))


def run(x, weight):
    M, N = x.shape
    y = torch.empty_like(x)
    rmsnorm_bp[(M,)](x, weight, y, M, N, 1e-6, BN=@bn@, SINGLE=@single@, num_warps=@warps@)
    return y
"""
)


def block_pointer(block: str, warps: int) -> Draft:
    """Block pointers, over the whole row or in a loop."""
    choices = {"algorithm": "block_pointer", "block": block, "warps": warps}
    whole = block == "row"
    code = fill(BLOCK_POINTER, bn="triton.next_power_of_2(N)" if whole else block, single=whole, warps=warps)
    return Draft(choices, code, manner=MANNER)


AUTOTUNED = (
    TRITON_IMPORTS
    + """
@triton.autotune(
    configs=[
        @configs@
    ],
    key=["n_cols"],
)
@triton.jit
def tuned_rms(x_ptr, w_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        acc += v * v
    inv = tl.rsqrt(tl.sum(acc, axis=0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, v * inv * g, mask=mask)


def run(x, weight):
    y = torch.empty_like(x)
    tuned_rms[(x.shape[0],)](x, weight, y, x.shape[1], 1e-6)
    return y
"""
)


AUTOTUNE = {
    "small": ((128, 1), (256, 1), (256, 2)),
    "usual": ((512, 4), (1024, 4), (1024, 8), (2048, 8)),
    "wide": ((1024, 8), (2048, 8), (4096, 8), (8192, 16)),
}


def autotuned(name: str) -> Draft:
    """The two-pass kernel with a list of configurations to choose from."""
    code = fill(AUTOTUNED, configs=triton_configs(AUTOTUNE[name]))
    return Draft({"algorithm": "autotuned", "configs": name}, code, manner=MANNER)


CHUNKED = """
import torch
@imports@

EPS = 1e-6

@kernel@

def run(x, weight):
    out = torch.empty_like(x)
    step = @chunk@
    # work through the batch in slices, to keep the working set small
    for lo in range(0, x.shape[0], step):
        part = x[lo : lo + step]
        @body@
    return out
"""

# -------------------------------------------------------------------------------------------------- PyTorch

TORCH: dict[str, str] = {
    "chain": """import torch


def run(x, weight):
    wide = x.float()
    var = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(var + 1e-6)
    return (weight.float() * wide).to(x.dtype)
""",
    "chain_bf16_mul": """import torch


def run(hidden_states, weight):
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
    return weight * hidden_states.to(input_dtype)
""",
    "functional": """import torch
import torch.nn.functional as F


def run(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, eps=1e-6)
""",
    "functional_float": """import torch
import torch.nn.functional as F


def run(x, weight):
    y = F.rms_norm(x.float(), (x.size(-1),), weight.float(), eps=1e-6)
    return y.bfloat16()
""",
    "functional_no_weight": """import torch
import torch.nn.functional as F


def run(x, weight):
    return F.rms_norm(x, x.shape[-1:], eps=1e-6) * weight
""",
    "vector_norm": """import torch


def run(x, weight):
    # ||x||_2^2 / n is the mean square
    n = x.shape[1]
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    rms = torch.sqrt(norm * norm / n + 1e-6)
    return (x / rms * weight).to(x.dtype)
""",
    "vector_norm_bf16": """import torch


def run(x, weight):
    n = x.shape[1]
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    inv = torch.rsqrt(norm.square() / n + 1e-6).to(x.dtype)
    return x * inv * weight
""",
    "einsum": """import torch


def run(x, weight):
    xf = x.float()
    ms = torch.einsum("ij,ij->i", xf, xf) / xf.shape[1]
    return torch.einsum("ij,i,j->ij", xf, torch.rsqrt(ms + 1e-6), weight.float()).to(torch.bfloat16)
""",
    "bmm": """import torch


def run(x, weight):
    m, n = x.shape
    ss = torch.bmm(x.view(m, 1, n).float(), x.view(m, n, 1).float()).view(m, 1)
    return (x.float() * torch.rsqrt(ss / n + 1e-6) * weight.float()).to(x.dtype)
""",
    "double": """import torch


def run(x, weight):
    d = x.double()
    r = (d * d).mean(dim=-1, keepdim=True).add(1e-6).rsqrt()
    return (d * r * weight.double()).to(torch.bfloat16)
""",
    "in_place": """import torch


def run(x, weight):
    buf = x.float()
    r = buf.square().mean(-1, keepdim=True).add_(1e-6).rsqrt_()
    buf.mul_(r).mul_(weight.float())
    return buf.to(x.dtype)
""",
    "module": """import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, weight, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return (self._norm(x.float()) * self.weight).type_as(x)


def run(x, weight):
    return RMSNorm(weight)(x)
""",
    "diag_matmul": """import torch


def run(x, weight):
    # weight as a diagonal matrix, so that tensor cores do the scaling
    xf = x.float()
    r = torch.rsqrt(xf.square().mean(-1, keepdim=True) + 1e-6)
    return ((xf * r).to(torch.bfloat16) @ torch.diag(weight))
""",
    "expand": """import torch


def run(x, weight):
    rows, cols = x.shape
    xf = x.to(torch.float32)
    sq = torch.mul(xf, xf)
    mean = torch.sum(sq, dim=-1, keepdim=True).expand(rows, cols).contiguous() / cols
    denom = torch.sqrt(mean + 1e-6)
    full_weight = weight.to(torch.float32).unsqueeze(0).repeat(rows, 1)
    return torch.div(xf, denom).mul(full_weight).to(torch.bfloat16)
""",
    "transposed": """import torch


def run(x, weight):
    t = x.t().contiguous().float()
    inv = torch.rsqrt(t.square().mean(0, keepdim=True) + 1e-6)
    return (t * inv * weight.float()[:, None]).to(x.dtype).t().contiguous()
""",
    "jit_script": """import torch


@torch.jit.script
def _rms(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    h = x.float()
    h = h * torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + eps)
    return (h * w.float()).to(x.dtype)


def run(x, weight):
    return _rms(x, weight, 1e-6)
""",
    "matvec_sum": """import torch


def run(x, weight):
    n = x.shape[1]
    ones = torch.full((n, 1), 1.0 / n, device=x.device)
    xf = x.float()
    ms = (xf * xf) @ ones
    return (xf * (ms + 1e-6).rsqrt() * weight).to(x.dtype)
""",
    "two_halves": """import torch


def run(x, weight):
    left, right = x.chunk(2, dim=1)
    a, b = left.float(), right.float()
    ms = (a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True)) / x.shape[1]
    inv = torch.rsqrt(ms + 1e-6)
    wa, wb = weight.float().chunk(2)
    return torch.cat([a * inv * wa, b * inv * wb], dim=1).to(x.dtype)
""",
    "streams": """import torch


def run(x, weight):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wide_weight = weight.float()
    h = x.float()
    inv = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.cuda.current_stream().wait_stream(side)
    return (h * inv * wide_weight).to(x.dtype)
""",
    "blocked": """import torch


def run(x, weight):
    rows, cols = x.shape
    step = 256
    total = torch.zeros(rows, 1, device=x.device)
    for c in range(0, cols, step):
        piece = x[:, c : c + step].float()
        total += (piece * piece).sum(dim=1, keepdim=True)
    inv = torch.rsqrt(total / cols + 1e-6)
    y = torch.empty_like(x)
    for c in range(0, cols, step):
        y[:, c : c + step] = x[:, c : c + step].float() * inv * weight[c : c + step].float()
    return y
""",
    "gram_diagonal": """import torch


def run(x, weight):
    # the diagonal of x x^T, in blocks of 512 rows, holds the sums of squares
    xf = x.float()
    ss = torch.cat([torch.diagonal(b @ b.t()) for b in xf.split(512)])
    return (xf * torch.rsqrt(ss / x.shape[1] + 1e-6)[:, None] * weight.float()).to(x.dtype)
""",
    "host_rsqrt": """import torch


def run(x, weight):
    ms = x.float().pow(2).mean(-1, keepdim=True)
    inv = torch.rsqrt(ms.cpu() + 1e-6).to(x.device)   # the row factors are tiny
    return (x * inv * weight).to(x.dtype)
""",
}

CHUNK_BODIES: dict[str, tuple[str, str, str]] = {
    "torch": (
        "",
        "",
        "f = part.float()\nr = torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)\n"
        "out[lo : lo + step] = (f * r * weight).to(x.dtype)",
    ),
    "functional": (
        "",
        "",
        "out[lo : lo + step] = torch.nn.functional.rms_norm(part, (x.shape[1],), weight, EPS)",
    ),
    "triton": (
        "import triton\nimport triton.language as tl",
        """
@triton.jit
def slice_kernel(x_ptr, w_ptr, y_ptr, n, eps, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    a = tl.load(x_ptr + r * n + i, mask=i < n, other=0.0).to(tl.float32)
    b = tl.load(w_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + r * n + i, a * tl.rsqrt(tl.sum(a * a, 0) / n + eps) * b, mask=i < n)

""",
        "n = x.shape[1]\nslice_kernel[(part.shape[0],)](part, weight, out[lo : lo + step], n, EPS, "
        "B=triton.next_power_of_2(n), num_warps=8)",
    ),
}


def torch_source(name: str) -> Draft:
    """Plain PyTorch."""
    return Draft({"algorithm": "torch", "form": name}, TORCH[name], "pytorch")


def chunked(body: str, chunk: int) -> Draft:
    """A Python loop over slices of the batch."""
    imports, kernel, inner = CHUNK_BODIES[body]
    code = fill(CHUNKED, imports=imports, kernel=kernel, body=inner, chunk=chunk)
    choices = {"algorithm": "chunked", "form": body, "chunk": chunk}
    return Draft(choices, code, "triton" if body == "triton" else "pytorch")


SLOW = {
    # A thread-poor, column-strided and otherwise unlucky set of kernels.
    "one_column_tiles": TRITON_IMPORTS
    + """
@triton.jit
def strided(x, w, y, M, N, R: tl.constexpr):
    # lanes run over rows, so neighbouring lanes are a whole row apart in memory
    rows = tl.program_id(0) * R + tl.arange(0, R)
    ok = rows < M
    acc = tl.zeros([R], dtype=tl.float32)
    for c in range(0, N):
        e = tl.load(x + rows * N + c, mask=ok, other=0.0).to(tl.float32)
        acc += e * e
    inv = tl.rsqrt(acc / N + 1e-6)
    for c in range(0, N):
        e = tl.load(x + rows * N + c, mask=ok, other=0.0).to(tl.float32)
        tl.store(y + rows * N + c, e * inv * tl.load(w + c).to(tl.float32), mask=ok)


def run(x, weight):
    y = torch.empty_like(x)
    M, N = x.shape
    strided[(triton.cdiv(M, @p@),)](x, weight, y, M, N, R=@p@, num_warps=@warps@)
    return y
""",
    "narrow_blocks": TRITON_IMPORTS
    + """
@triton.jit
def narrow(x, w, y, N, eps, B: tl.constexpr):
    r = tl.program_id(0)
    ss = 0.0
    for c in range(0, N, B):
        o = c + tl.arange(0, B)
        e = tl.load(x + r * N + o).to(tl.float32)
        ss += tl.sum(e * e)
    rms = tl.sqrt(ss / N + eps)
    for c in range(0, N, B):
        o = c + tl.arange(0, B)
        e = tl.load(x + r * N + o).to(tl.float32)
        tl.store(y + r * N + o, e / rms * tl.load(w + o).to(tl.float32))


def run(x, weight):
    y = torch.empty_like(x)
    narrow[(x.shape[0],)](x, weight, y, x.shape[1], 1e-6, B=@p@, num_warps=@warps@)
    return y
""",
    "square_buffer": TRITON_IMPORTS
    + """
@triton.jit
def square(x, s, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    e = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(s + i, e * e, mask=i < n)


@triton.jit
def scale(x, m, w, y, n, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    e = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    ms = tl.load(m + i // N, mask=i < n, other=1.0)
    g = tl.load(w + i % N, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + i, e / tl.sqrt(ms + 1e-6) * g, mask=i < n)


def run(x, weight):
    n = x.numel()
    squares = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, @p@),)
    square[grid](x, squares, n, B=@p@, num_warps=@warps@)
    means = squares.mean(dim=1)
    y = torch.empty_like(x)
    scale[grid](x, means, weight, y, n, x.shape[1], B=@p@, num_warps=@warps@)
    return y
""",
    "recompute_per_block": TRITON_IMPORTS
    + """
@triton.jit
def redo(x_ptr, w_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    # each block of a row works out the sum of the whole row for itself
    r = tl.program_id(0)
    b = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(0, n_cols, BLOCK):
        e = tl.load(x_ptr + r * n_cols + k + lane, mask=k + lane < n_cols, other=0.0).to(tl.float32)
        acc += e * e
    inv = tl.rsqrt(tl.sum(acc, 0) / n_cols + 1e-6)
    mine = b * BLOCK + lane
    e = tl.load(x_ptr + r * n_cols + mine, mask=mine < n_cols, other=0.0).to(tl.float32)
    g = tl.load(w_ptr + mine, mask=mine < n_cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + r * n_cols + mine, e * inv * g, mask=mine < n_cols)


def run(x, weight):
    y = torch.empty_like(x)
    m, n = x.shape
    redo[(m, triton.cdiv(n, @p@))](x, weight, y, n, BLOCK=@p@, num_warps=@warps@)
    return y
""",
}


def slow(name: str, parameter: int, warps: int) -> Draft:
    """The unlucky ones."""
    choices = {"algorithm": name, "size": parameter, "warps": warps}
    return Draft(choices, fill(SLOW[name], p=parameter, warps=warps))


WRAPS = {
    "float": """

def run(x, weight):
    # do everything in float32 and convert at the end
    y = launch(x.float(), weight.float())
    return y.to(torch.bfloat16)
""",
    "twice": """

def run(x, weight):
    launch(x, weight)  # warm up
    torch.cuda.synchronize()
    return launch(x, weight)
""",
    "sliced": """

def run(x, weight):
    pieces = []
    for piece in torch.split(x, 256, dim=0):
        pieces.append(launch(piece.contiguous(), weight))
    return torch.cat(pieces, dim=0)
""",
    "checked": """

def run(x, weight):
    y = launch(x, weight)
    # make sure that the kernel is right before the result is handed out
    check = x.float()
    check = check * torch.rsqrt(check.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
    if not torch.allclose(y.float(), check, rtol=0.05, atol=0.05):
        return check.to(x.dtype)
    return y
""",
}


# ------------------------------------------------------------------------------------------------- the pool

SEED = slow("square_buffer", 256, 4)


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(
        two_pass("cast", b, w, a) for b, w, a in product((128, 256, 1024), (1, 4, 8), ("scalar", "vector"))
    )
    pool.add(
        two_pass("native", b, w, a) for b, w, a in product((256, 1024, 2048), (4, 8), ("scalar", "vector"))
    )
    pool.add([two_pass("native", 256, 1, "vector"), two_pass("native", 4096, 8, "vector")])
    pool.add([two_pass("native", 1024, 4, "tensor_of_one")])
    pool.add(two_pass(io, 1024, w, "vector", evict=True) for io, w in product(("native", "cast"), (4, 8)))
    pool.add(two_pass("cast", 256, 4, "scalar", host=h) for h in ("clone_in", "sync", "nan_check"))
    pool.add(
        two_pass("native", 1024, 4, "vector", host=h)
        for h in ("clone_in", "sync", "item", "roundtrip", "clone_out")
    )
    pool.add(full_row("native", w) for w in ("1", "4", "8", "16", "32", "heuristic", "per_1024", "per_256"))
    pool.add(full_row("cast", w) for w in ("4", "8", "16", "heuristic"))
    pool.add(full_row("native", w, evict=True) for w in ("8", "heuristic"))
    pool.add(full_row("native", w, weight="early") for w in ("4", "8"))
    pool.add(
        [
            full_row("native", "heuristic", evict=True, weight="early"),
            full_row("native", "8", weight="rounded"),
        ]
    )
    pool.add(
        full_row("native", "8", host=h)
        for h in ("clone_in", "sync", "nan_check", "item", "clone_out", "fill_out")
    )
    pool.add(persistent(v, 8, h) for v, h in product(("1", "4"), (True, False)))
    pool.add(
        [
            persistent("1", 4, True),
            persistent("2", 16, True),
            persistent("8", 4, True),
        ]
    )
    pool.add(persistent("fixed_64", 8, h) for h in (True, False))
    pool.add(
        [
            persistent("2", 8, True),
            persistent("1", 8, True, stages=2),
            persistent("2", 8, True, stages=3),
        ]
    )
    pool.add(two_kernels(a, s, b, 4) for a, s, b in product(("flat", "grid2d"), (512, 1024), (256, 1024)))
    pool.add(
        [
            two_kernels("grid2d", 1024, 1024, 8),
            two_kernels("flat", 1024, 4096, 8),
            two_kernels("flat", 1024, 1024, 8),
        ]
    )
    pool.add(two_kernels("transposed_grid", s, b, 4) for s, b in product((512, 1024), (512, 1024)))
    pool.add(two_kernels("torch", s, 1024, w) for s, w in ((512, 4), (1024, 4), (1024, 8)))
    pool.add(split_row("atomic", s, b, 4) for s, b in product((2, 4), (256, 512)))
    pool.add([split_row("atomic", 2, 256, 2)])
    pool.add(split_row("buffer", 0, b, w) for b, w in ((256, 2), (256, 4), (512, 4), (1024, 4)))
    pool.add(
        tile(r, b, w)
        for r, b, w in (
            (2, 128, 4),
            (2, 512, 4),
            (2, 512, 8),
            (4, 128, 4),
            (4, 512, 4),
            (4, 512, 8),
            (8, 128, 4),
            (8, 512, 8),
        )
    )
    pool.add(tile(r, b, 4, acc="tile") for r, b in product((2, 4), (512, 1024)))
    pool.add(
        [
            tile(16, 64, 4),
            tile(16, 64, 2),
            tile(16, 128, 4),
            tile(4, 512, 4, stages=4),
            tile(4, 512, 4, stages=1),
        ]
    )
    pool.add(tile_full(r, w) for r, w in (("2", 8), ("2", 16), ("4", 8)))
    pool.add(tile_full("adaptive", w) for w in (8, 16))
    pool.add(block_pointer(b, w) for b, w in product(("row", "512", "2048"), (4, 8)))
    pool.add(autotuned(name) for name in AUTOTUNE)


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(name) for name in TORCH)
    pool.add(chunked(b, c) for b, c in product(("torch", "triton"), (256, 1024, 4096)))
    pool.add(chunked("functional", c) for c in (64, 512, 2048))
    pool.add([chunked("torch", 64)])


def add_slow(pool: Pool) -> None:
    """Adds kernels with an unlucky idea."""
    pool.add(slow("one_column_tiles", p, w) for p, w in ((32, 1), (64, 2), (128, 4)))
    pool.add(slow("narrow_blocks", p, w) for p, w in ((16, 1), (32, 1), (64, 1), (64, 2), (128, 4)))
    pool.add(slow("square_buffer", p, w) for p, w in ((256, 4), (1024, 4), (1024, 8)))
    pool.add(slow("recompute_per_block", p, w) for p, w in ((1024, 4), (1024, 8), (2048, 8), (512, 4)))


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        full_row("native", "8"),
        full_row("native", "heuristic"),
        tile(4, 512, 4),
        persistent("4", 8, True),
        two_kernels("grid2d", 1024, 1024, 4),
        two_pass("native", 1024, 4, "vector"),
        split_row("atomic", 2, 512, 4),
        block_pointer("row", 8),
        tile_full("2", 8),
        two_pass("native", 256, 4, "scalar"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        two_pass("cast", 256, 4, "scalar"),
        eps_1e_3={"1e-6": "1e-3"},
        half_row={"range(0, n_cols, BLOCK)": "range(0, n_cols // 2, BLOCK)"},
        syntax={"for start in range(0, n_cols, BLOCK):": "for start in range(0, n_cols, BLOCK)"},
        undefined_name={"inv = 1.0 / tl.sqrt(total / n_cols + eps)": "inv = 1.0 / tl.sqrt(variance + eps)"},
        block_not_power_of_two={"BLOCK=256": "BLOCK=384"},
        long_loop={"for start in range(0, n_cols, BLOCK):": "for start in range(0, n_cols * 20000, BLOCK):"},
    )
    pool.add_broken(
        two_pass("native", 1024, 4, "vector"),
        missing_mask={
            "tl.store(y_ptr + cols, v * inv * g, mask=mask)": "tl.store(y_ptr + cols * 4096, v * inv * g)"
        },
        no_eps_mean={"total / n_cols + eps": "total + eps"},
        runtime_block={"BLOCK: tl.constexpr": "BLOCK"},
        mean_not_square={"acc += v * v": "acc += v"},
        bf16_accumulate={"dtype=tl.float32": "dtype=tl.bfloat16"},
        wild_pointer={"x_ptr += row * n_cols": "x_ptr += (row + 1) * n_cols * 1048576"},
    )
    pool.add_broken(
        two_pass("native", 256, 4, "scalar"),
        no_loop_reset={"cols = start + tl.arange(0, BLOCK)": "cols = tl.arange(0, BLOCK)"},
        row_stride={"row * n_cols": "row * BLOCK"},
        wrong_argument={"n_cols, 1e-6,": "n_cols, n_rows, 1e-6,"},
    )
    pool.add_broken(
        full_row("native", "8"),
        sqrt_for_rsqrt={"1.0 / tl.sqrt(": "tl.sqrt("},
        off_by_one={"mask = cols < n_cols": "mask = cols < n_cols - 1"},
        missing_constexpr_range={"tl.arange(0, BLOCK)": "tl.arange(0, n_cols)"},
        weight_left_out={"v * inv * g": "v * inv"},
        cpu_output={"torch.empty_like(x)": 'torch.empty(x.shape, dtype=x.dtype, device="cpu")'},
        too_many_warps={"num_warps=8": "num_warps=64"},
    )
    pool.add_broken(full_row("native", "heuristic"), no_import={"import triton.language as tl\n": ""})
    pool.add_broken(full_row("native", "4"), bad_method={"torch.empty_like(x)": "x.new_empty_like()"})
    pool.add_broken(full_row("cast", "8"), no_such_function={"tl.sqrt(": "tl.sqroot("})
    pool.add_broken(persistent("2", 8, True), sqrt_for_rsqrt={"tl.rsqrt(": "tl.sqrt("})
    pool.add_broken(persistent("1", 8, True, stages=2), no_import={"import triton.language as tl\n": ""})
    pool.add_broken(
        split_row("atomic", 4, 512, 4),
        no_contribution={"tl.atomic_add(sums + row, part)": "tl.store(sums + row, part)"},
        stale_sum={"torch.zeros(": "torch.empty("},
    )
    pool.add_broken(split_row("buffer", 0, 512, 4), fp16_overflow={"tl.float32": "tl.float16"})
    pool.add_broken(
        tile(4, 512, 4),
        wrong_axis={"axis=1": "axis=0"},
        weight_left_out={"* inv[:, None] * g[None, :]": "* inv[:, None]"},
    )
    pool.add_broken(tile_full("2", 8), wrong_axis={"axis=1": "axis=0"})
    pool.add_broken(two_kernels("grid2d", 1024, 1024, 4), mean_not_square={"acc += t * t": "acc += t"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("chain"),
        wrong_axis={"mean(-1": "mean(0"},
        no_keepdim={", keepdim=True": ""},
    )
    pool.add_broken(torch_source("functional"), no_import={"import torch.nn.functional as F\n": ""})
    pool.add_broken(torch_source("in_place"), bad_method={".square()": ".squared()"})
    pool.add_broken(torch_source("chain_bf16_mul"), eps_1e_3={"1e-6": "1e-3"})
    pool.add_broken(torch_source("einsum"), fp16_overflow={"x.float()": "x.half()"})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    cast = two_pass("cast", 256, 4, "scalar")
    usual = two_pass("native", 1024, 4, "vector")
    row = full_row("native", "8")
    pool.link(SEED, torch_source("chain"))
    pool.link(SEED, cast)
    pool.link(SEED, torch_source("vector_norm"))
    pool.link(cast, torch_source("chain"))
    pool.link(SEED, two_kernels("flat", 512, 256, 4))
    pool.link(SEED, split_row("buffer", 0, 256, 4))
    pool.link(cast, slow("narrow_blocks", 128, 4))
    pool.link(usual, two_kernels("grid2d", 1024, 1024, 4))
    pool.link(usual, autotuned("usual"))
    pool.link(two_pass("native", 1024, 8, "vector"), row)
    pool.link(two_pass("cast", 1024, 8, "vector"), full_row("cast", "8"))
    pool.link(two_pass("native", 256, 4, "vector"), tile(2, 512, 4))
    pool.link(usual, block_pointer("2048", 4))
    pool.link(row, persistent("1", 8, False))
    pool.link(row, persistent("4", 8, False))
    pool.link(row, block_pointer("row", 8))
    pool.link(row, chunked("triton", 4096))
    pool.link(row, tile_full("2", 8))
    pool.link(row, slow("recompute_per_block", 1024, 8))
    pool.link(tile(4, 512, 4), tile_full("4", 8))
    pool.link(two_kernels("grid2d", 512, 256, 4), split_row("buffer", 0, 256, 4))
    pool.link(two_kernels("grid2d", 512, 1024, 4), split_row("atomic", 4, 512, 4))
    pool.link(two_kernels("flat", 1024, 1024, 4), slow("square_buffer", 1024, 4))
    pool.link(two_kernels("torch", 1024, 1024, 4), torch_source("in_place"))
    pool.link(torch_source("chain"), chunked("torch", 4096))
    pool.link(torch_source("functional"), chunked("functional", 2048))
    pool.link(slow("narrow_blocks", 64, 2), slow("one_column_tiles", 32, 1))
    pool.link(tile(16, 64, 2), slow("one_column_tiles", 128, 4))


def add_cuda(pool: Pool) -> None:
    """Adds the sources in CUDA C++ and their edits from Triton and PyTorch."""
    rmsnorm_cuda.add_cuda(pool)
    rmsnorm_cuda.break_cuda(pool)
    block = rmsnorm_cuda.block_row(4, 256)
    pool.link(two_pass("native", 1024, 8, "vector"), block, rmsnorm_cuda.registers(4, 256))
    pool.link(full_row("native", "8"), rmsnorm_cuda.registers(8, 256), rmsnorm_cuda.staged(8, 256))
    pool.link(block, rmsnorm_cuda.warp_row(4, 128))
    pool.link(
        two_kernels("flat", 1024, 1024, 8), rmsnorm_cuda.two_kernels(256), rmsnorm_cuda.block_row(1, 256)
    )
    pool.link(torch_source("chain"), rmsnorm_cuda.two_kernels(256, second="torch"))
    pool.link(torch_source("chain"), rmsnorm_cuda.two_kernels(256, first="torch"))
    pool.link(slow("one_column_tiles", 32, 1), rmsnorm_cuda.thread_row(32), rmsnorm_cuda.warp_row(1, 128))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton, add_torch, add_slow, add_wrapped, break_triton, break_torch, link_families, add_cuda
    )
