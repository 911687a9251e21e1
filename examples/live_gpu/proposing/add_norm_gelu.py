"""Kernels for ``add_norm_gelu``: from a kernel per step to one pass over the rows."""

from __future__ import annotations

from proposing.space import MISTAKE, Family, Knob, Space, numbers, switch

__all__ = ["SPACE"]

_IMPORTS = '''"""Residual add, LayerNorm and GELU of bfloat16 rows."""

import torch
import triton
import triton.language as tl
'''

_ERF = "0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))"
_TANH = "z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))"

_GELU = switch("gelu", erf=_ERF, tanh=_TANH)
_INPUT_HINT = switch(
    "input_hint",
    none="",
    evict_first=', eviction_policy="evict_first"',
    evict_last=', eviction_policy="evict_last"',
    cg=', cache_modifier=".cg"',
)
_OUTPUT_HINT = switch(
    "output_hint",
    none="",
    evict_first=', eviction_policy="evict_first"',
    cs=', cache_modifier=".cs"',
    wt=', cache_modifier=".wt"',
)
_WEIGHT_HINT = switch(
    "weight_hint", none="", evict_last=', eviction_policy="evict_last"', ca=', cache_modifier=".ca"'
)
_ALIGNED = switch("aligned", no="", yes="cols = tl.max_contiguous(tl.multiple_of(cols, 8), 8)")
_ROOT = switch("root", divide="1.0 / tl.sqrt(variance + eps)", rsqrt="tl.rsqrt(variance + eps)")
_SMALL_WARPS = numbers("warps", 4, 1, 2, 8, 16)
_WARPS = numbers("warps", 4, 1, 2, 8, 16, 32)
_LOOP_WARPS = numbers("warps", 8, 1, 2, 4, 16, 32)
_BLOCK = numbers("block", 512, 128, 256, 1024, 2048, 4096)
_ORDER = switch("order", forward="tl.program_id(0)", backward="(tl.num_programs(0) - 1 - tl.program_id(0))")
_OUTPUTS = switch("outputs", empty="torch.empty_like(x)", zeros="torch.zeros_like(x)")
_HOST = Knob(
    "host",
    {
        "none": {},
        "clone": {"before": "x = x.clone()"},
        "widen": {"before": "x, residual = x.float().bfloat16(), residual.float().bfloat16()"},
        "wait": {"after": "torch.cuda.synchronize() if x.is_cuda else None"},
        "look": {"after": 'if torch.isnan(y).any():\n    raise ValueError("the output has a NaN")'},
    },
)


def _mistakes(**texts: dict[str, str]) -> Knob:
    """A knob of mistakes; each overrides slots that are right in the option ``none``."""
    return Knob(MISTAKE, texts)


_STEPS = f"""{_IMPORTS}
BLOCK = @block@
WARPS = @warps@
ROW_BLOCK = @row_block@
ROW_WARPS = @row_warps@


@triton.jit
def add(x_ptr, r_ptr, total_ptr, size, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    @aligned@
    mask = cols < size
    x = tl.load(x_ptr + cols, mask=mask@input_hint@).to(tl.float32)
    r = tl.load(r_ptr + cols, mask=mask@input_hint@).to(tl.float32)
    tl.store(total_ptr + cols, x @plus@ r, mask=mask)


@triton.jit
def statistics(total_ptr, mean_ptr, rstd_ptr, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total_ptr += row * hidden
    summed = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        summed += tl.load(total_ptr + cols, mask=cols < hidden, other=0.0).to(tl.float32)
    mean = tl.sum(summed, axis=0) / hidden
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        value = tl.load(total_ptr + cols, mask=cols < hidden, other=@centre@).to(tl.float32)
        squares += tl.where(cols < hidden, (value - mean) * (value - mean), 0.0)
    variance = tl.sum(squares, axis=@axis@) / hidden
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, @root@)


@triton.jit
def normalise(total_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, z_ptr, size, hidden, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    row = cols // hidden
    col = cols @modulo@ hidden
    mean = tl.load(mean_ptr + row, mask=mask)
    rstd = tl.load(rstd_ptr + row, mask=mask)
    w = tl.load(w_ptr + col, mask=mask@weight_hint@).to(tl.float32)
    b = tl.load(b_ptr + col, mask=mask@weight_hint@).to(tl.float32)
    value = tl.load(total_ptr + cols, mask=mask).to(tl.float32)
    tl.store(z_ptr + cols, (value - mean) * rstd * w + b, mask=mask)


@triton.jit
def gelu(z_ptr, y_ptr, size, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    z = tl.load(z_ptr + cols, mask=mask).to(tl.float32)
    tl.store(y_ptr + cols, @gelu@, mask=mask@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    size = rows * hidden
    y, total = @outputs@, torch.empty_like(x)
    z = torch.empty(x.shape, dtype=@between@, device=x.device)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    grid = (triton.cdiv(size, BLOCK),)
    add[grid](x, residual, total, size, BLOCK=BLOCK, num_warps=WARPS)
    statistics[(rows,)](total, mean, rstd, hidden, 1e-5, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS)
    normalise[grid](total, mean, rstd, weight, bias, z, size, hidden, BLOCK=BLOCK, num_warps=WARPS)
    gelu[@grid@](z, y, size, BLOCK=BLOCK, num_warps=WARPS)
    @after@
    return y, total
"""

_RIGHT_STEPS = {"plus": "+", "axis": "0", "modulo": "%", "grid": "grid", "centre": "0.0"}

_TWO = f"""{_IMPORTS}
BLOCK = @block@
WARPS = @warps@
ROW_BLOCK = @row_block@
ROW_WARPS = @row_warps@


@triton.jit
def add_and_reduce(x_ptr, r_ptr, total_ptr, mean_ptr, rstd_ptr, hidden, eps, BLOCK: tl.constexpr):
    row = @order@
    summed = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in @loop@:
        cols = start + tl.arange(0, BLOCK)
        @aligned@
        mask = cols < hidden
        x = tl.load(x_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
        r = tl.load(r_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
        value = x + r
        tl.store(total_ptr + row * hidden + cols, value, mask=mask)
        summed += value
        squares += value * value
    mean = tl.sum(summed, axis=0) / hidden
    variance = tl.sum(squares, axis=0) / hidden@centred@
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, @root@)


@triton.jit
def apply(total_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(@row_axis@)
    cols = tl.program_id(@col_axis@) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < hidden
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    w = tl.load(w_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
    value = tl.load(total_ptr + row * hidden + cols, mask=mask).to(tl.float32)
    z = (value - mean) * rstd * w + b
    tl.store(y_ptr + row * hidden + cols, @gelu@, mask=mask@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    add_and_reduce[(rows,)](x, residual, total, mean, rstd, hidden, 1e-5, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS)
    blocks = triton.cdiv(hidden, BLOCK)
    apply[@grid@](total, mean, rstd, weight, bias, y, hidden, BLOCK=BLOCK, num_warps=WARPS)
    @after@
    return y, total
"""

_GRIDS = Knob(
    "grid_order",
    {
        "columns_first": {"row_axis": "1", "col_axis": "0", "grid": "(blocks, rows)"},
        "rows_first": {"row_axis": "0", "col_axis": "1", "grid": "(rows, blocks)"},
    },
)

_LOOP = f"""{_IMPORTS}
BLOCK = @block@
WARPS = @warps@


@triton.jit
def row_kernel(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, total_ptr, hidden, eps, BLOCK: tl.constexpr):
    row = @order@
    x_ptr += row * hidden
    r_ptr += row * hidden
    y_ptr += row * hidden
    total_ptr += row * hidden
    summed = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=@accumulator@)
    for start in @loop@:
        cols = start + tl.arange(0, BLOCK)
        @aligned@
        mask = cols < hidden
        x = tl.load(x_ptr + cols, mask=mask, other=@padding@@input_hint@).to(tl.float32)
        r = tl.load(r_ptr + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
        value = x + r
        tl.store(total_ptr + cols, value, mask=mask)
        summed += value
        squares += value * value
    mean = tl.sum(summed, axis=0) / @count@
    variance = tl.sum(squares, axis=0) / hidden - mean * mean
    rstd = @root@
    for start in @second_loop@:
        cols = start + tl.arange(0, BLOCK)
        mask = cols < hidden
        @reread@
        w = tl.load(w_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
        b = tl.load(b_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
        z = (value - mean) * rstd * w + b
        tl.store(y_ptr + cols, @gelu@, mask=mask@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    row_kernel[(rows,)](x, residual, weight, bias, y, total, hidden, 1e-5, BLOCK=BLOCK, num_warps=WARPS)
    @after@
    return y, total
"""

_LOOPS = switch(
    "loop",
    plain="range(0, hidden, BLOCK)",
    pipelined="tl.range(0, hidden, BLOCK, num_stages=3)",
    deep="tl.range(0, hidden, BLOCK, num_stages=5)",
)
_SECOND_LOOPS = switch(
    "second_loop",
    plain="range(0, hidden, BLOCK)",
    pipelined="tl.range(0, hidden, BLOCK, num_stages=3)",
    unrolled="tl.range(0, hidden, BLOCK, loop_unroll_factor=2)",
)
_REREAD = switch(
    "reread",
    total="value = tl.load(total_ptr + cols, mask=mask).to(tl.float32)",
    inputs="""value = tl.load(x_ptr + cols, mask=mask).to(tl.float32)
value += tl.load(r_ptr + cols, mask=mask).to(tl.float32)""",
)

_REGISTERS = f"""{_IMPORTS}
WARPS = @warps@
ROWS = @rows@


@triton.jit
def row_kernel(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, total_ptr, n_rows, hidden, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    cols = tl.arange(0, BLOCK)
    @aligned@
    mask = cols < hidden
    @weights_early@
    for number in @row_loop@:
        row = @order@ * ROWS + number
        live = cols < tl.where(row < n_rows, hidden, 0)
        x = tl.load(x_ptr + row * hidden + cols, mask=live, other=0.0@input_hint@).to(tl.float32)
        r = tl.load(r_ptr + row * hidden + cols, mask=live, other=0.0@input_hint@).to(tl.float32)
        value = x + r
        tl.store(total_ptr + row * hidden + cols, value, mask=live@output_hint@)
        @moments@
        rstd = @root@
        @weights_late@
        z = (value - mean) * rstd * w + b
        tl.store(y_ptr + row * hidden + cols, @gelu@, mask=@store_mask@@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    row_kernel[(triton.cdiv(rows, ROWS),)](
        x, residual, weight, bias, y, total, rows, hidden, 1e-5,
        ROWS=ROWS, BLOCK=@width@, num_warps=WARPS@launch@,
    )
    @after@
    return y, total
"""

_WEIGHTS = """w = tl.load(w_ptr + cols, mask=mask@, other=0.0).to(tl.float32)
b = tl.load(b_ptr + cols, mask=mask@, other=0.0).to(tl.float32)"""


def _weights(hint: str) -> str:
    return _WEIGHTS.replace("@", hint)


_LAST = ', eviction_policy="evict_last"'
_WEIGHTS_WHEN = Knob(
    "weights",
    {
        "late": {"weights_late": _weights("")},
        "late_kept": {"weights_late": _weights(_LAST)},
        "early": {"weights_early": _weights("")},
        "early_kept": {"weights_early": _weights(_LAST)},
    },
)
_MOMENTS = switch(
    "moments",
    centred="""mean = tl.sum(value, axis=0) / hidden
centred = tl.where(mask, value - mean, 0.0)
variance = tl.sum(centred * centred, axis=0) / hidden""",
    squares="""mean = tl.sum(value, axis=0) / hidden
variance = tl.sum(value * value, axis=0) / hidden - mean * mean""",
)
_ROW_LOOPS = switch(
    "row_loop",
    static="tl.static_range(ROWS)",
    plain="range(ROWS)",
    pipelined="tl.range(0, ROWS, num_stages=2)",
)
_LAUNCH = switch("launch", usual="", few_registers=", maxnreg=64", fewest_registers=", maxnreg=40")

_TILES = f"""{_IMPORTS}
WARPS = @warps@
ROWS = @tile_rows@


@triton.jit
def tile_kernel(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, total_ptr, n_rows, hidden, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    rows = @order@ * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    live = (rows < n_rows) & (cols < hidden)
    where = rows * hidden + cols
    x = tl.load(x_ptr + where, mask=live, other=0.0@input_hint@).to(tl.float32)
    r = tl.load(r_ptr + where, mask=live, other=0.0@input_hint@).to(tl.float32)
    value = x + r
    tl.store(total_ptr + where, value, mask=live@output_hint@)
    mean = tl.sum(value, axis=@axis@)@expand@ / hidden
    @tile_variance@
    rstd = @root@
    w = tl.load(w_ptr + cols, mask=cols < hidden@weight_hint@).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=cols < hidden@weight_hint@).to(tl.float32)
    z = (value - mean) * rstd * w + b
    tl.store(y_ptr + where, @gelu@, mask=live@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    tile_kernel[(triton.cdiv(rows, @per_program@),)](
        x, residual, weight, bias, y, total, rows, hidden, 1e-5,
        ROWS=ROWS, BLOCK=triton.next_power_of_2(hidden), num_warps=WARPS@launch@,
    )
    @after@
    return y, total
"""

_TILE_VARIANCE = switch(
    "moments",
    centred={
        "tile_variance": """centred = tl.where(cols < hidden, value - mean, 0.0)
variance = tl.sum(centred * centred, axis=1)[:, None] / hidden"""
    },
    squares={"tile_variance": "variance = tl.sum(value * value, axis=1)[:, None] / hidden - mean * mean"},
)

_PERSISTENT = f"""{_IMPORTS}
WARPS = @warps@
PER_PROCESSOR = @per_processor@


@triton.jit
def persistent_kernel(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, total_ptr, n_rows, hidden, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    @aligned@
    mask = cols < hidden
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    @share@
    for row in @rows_of_program@:
        x = tl.load(x_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
        r = tl.load(r_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
        value = x + r
        tl.store(total_ptr + row * hidden + cols, value, mask=mask@output_hint@)
        @moments@
        rstd = @root@
        z = (value - mean) * rstd * w @shift@ b
        tl.store(y_ptr + row * hidden + cols, @gelu@, mask=mask@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    persistent_kernel[(min(rows, processors * PER_PROCESSOR),)](
        x, residual, weight, bias, y, total, rows, hidden, 1e-5,
        BLOCK=triton.next_power_of_2(hidden), num_warps=WARPS,
    )
    @after@
    return y, total
"""

_SHARES = Knob(
    "share",
    {
        "strided": {"rows_of_program": "tl.range(tl.program_id(0), n_rows, tl.num_programs(0))"},
        "strided_pipelined": {
            "rows_of_program": "tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=3)"
        },
        "blocks": {
            "share": "share = tl.cdiv(n_rows, tl.num_programs(0))\nfirst = tl.program_id(0) * share",
            "rows_of_program": "tl.range(first, tl.minimum(first + share, n_rows))",
        },
    },
)

_SPLIT = f"""{_IMPORTS}
BLOCK = @block@
WARPS = @warps@
APPLY_WARPS = @row_warps@


@triton.jit
def partial(x_ptr, r_ptr, total_ptr, sum_ptr, square_ptr, hidden, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    cols = part * BLOCK + tl.arange(0, BLOCK)
    @aligned@
    mask = cols < hidden
    x = tl.load(x_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
    r = tl.load(r_ptr + row * hidden + cols, mask=mask, other=0.0@input_hint@).to(tl.float32)
    value = x + r
    tl.store(total_ptr + row * hidden + cols, value, mask=mask)
    @gather@


@triton.jit
def finish(
    total_ptr, sum_ptr, square_ptr, w_ptr, b_ptr, y_ptr, hidden, parts, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):
    row, part = tl.program_id(0), tl.program_id(1)
    cols = part * BLOCK + tl.arange(0, BLOCK)
    mask = cols < hidden
    @collect@
    rstd = @root@
    w = tl.load(w_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask@weight_hint@).to(tl.float32)
    value = tl.load(total_ptr + row * hidden + cols, mask=mask).to(tl.float32)
    z = (value - mean) * rstd * w + b
    tl.store(y_ptr + row * hidden + cols, @gelu@, mask=mask@output_hint@)


def run(x, residual, weight, bias):
    @before@
    rows, hidden = x.shape
    y, total = @outputs@, torch.empty_like(x)
    parts = triton.cdiv(hidden, BLOCK)
    sums = @partials@
    squares = torch.zeros_like(sums)
    partial[(rows, parts)](x, residual, total, sums, squares, hidden, BLOCK=BLOCK, num_warps=WARPS)
    finish[(rows, parts)](
        total, sums, squares, weight, bias, y, hidden, parts, 1e-5,
        BLOCK=BLOCK, PARTS=triton.next_power_of_2(parts), num_warps=APPLY_WARPS,
    )
    @after@
    return y, total
"""

_GATHER = Knob(
    "gather",
    {
        "parts": {
            "gather": """tl.store(sum_ptr + row * tl.num_programs(1) + part, tl.sum(value, axis=0))
tl.store(square_ptr + row * tl.num_programs(1) + part, tl.sum(value * value, axis=0))""",
            "collect": """each = tl.arange(0, PARTS)
mean = tl.sum(tl.load(sum_ptr + row * parts + each, mask=each < parts, other=0.0), axis=0) / hidden
square = tl.sum(tl.load(square_ptr + row * parts + each, mask=each < parts, other=0.0), axis=0) / hidden
variance = square - mean * mean""",
            "partials": "torch.empty(rows, parts, dtype=torch.float32, device=x.device)",
        },
        "atomics": {
            "gather": """tl.atomic_add(sum_ptr + row, tl.sum(value, axis=0), sem="relaxed")
tl.atomic_add(square_ptr + row, tl.sum(value * value, axis=0), sem="relaxed")""",
            "collect": """mean = tl.load(sum_ptr + row) / hidden
variance = tl.load(square_ptr + row) / hidden - mean * mean""",
            "partials": "torch.zeros(rows, dtype=torch.float32, device=x.device)",
        },
    },
)

_COMMON = (_GELU, _INPUT_HINT, _OUTPUT_HINT, _OUTPUTS, _HOST)

_FAMILIES = (
    Family(
        "steps",
        _STEPS,
        (
            numbers("block", 256, 128, 512, 1024, 2048, 4096),
            _SMALL_WARPS,
            numbers("row_block", 256, 512, 1024, 2048, 4096),
            numbers("row_warps", 4, 1, 2, 8, 16),
            _ALIGNED,
            _ROOT,
            _WEIGHT_HINT,
            switch("between", float32="torch.float32", bfloat16="torch.bfloat16"),
            _mistakes(
                none=_RIGHT_STEPS,
                minus=_RIGHT_STEPS | {"plus": "-"},
                axis=_RIGHT_STEPS | {"axis": "1"},
                divided=_RIGHT_STEPS | {"modulo": "//"},
                half_grid=_RIGHT_STEPS | {"grid": "(triton.cdiv(size, 2 * BLOCK),)"},
                no_name=_RIGHT_STEPS | {"grid": "(triton.cdiv(size, BLOCKS),)"},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "two_kernels",
        _TWO,
        (
            numbers("block", 1024, 256, 512, 2048, 4096),
            _SMALL_WARPS,
            numbers("row_block", 1024, 256, 512, 2048, 4096),
            numbers("row_warps", 4, 1, 2, 8, 16),
            _ALIGNED,
            _ROOT,
            _WEIGHT_HINT,
            _ORDER,
            _LOOPS,
            _GRIDS,
            _mistakes(
                none={"centred": " - mean * mean"},
                not_centred={"centred": ""},
                undefined={"centred": " - average * average"},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "row_loops",
        _LOOP,
        (
            _BLOCK,
            _LOOP_WARPS,
            _ALIGNED,
            _ROOT,
            _WEIGHT_HINT,
            _ORDER,
            _LOOPS,
            _SECOND_LOOPS,
            _REREAD,
            _mistakes(
                none={"accumulator": "tl.float32", "padding": "0.0", "count": "hidden"},
                accumulator={"accumulator": "tl.bfloat16", "padding": "0.0", "count": "hidden"},
                count={"accumulator": "tl.float32", "padding": "0.0", "count": "BLOCK"},
                padding={"accumulator": "tl.float32", "padding": "1.0", "count": "(hidden + 1)"},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "row_registers",
        _REGISTERS,
        (
            _WARPS,
            numbers("rows", 1, 2, 4, 8),
            _ALIGNED,
            _ROOT,
            _ORDER,
            _WEIGHTS_WHEN,
            _MOMENTS,
            _ROW_LOOPS,
            _LAUNCH,
            _mistakes(
                none={"width": "triton.next_power_of_2(hidden)", "store_mask": "live"},
                width={"width": "hidden - 1", "store_mask": "live"},
                narrow={"width": "triton.next_power_of_2(hidden) // 2", "store_mask": "live"},
                store_mask={"width": "triton.next_power_of_2(hidden)", "store_mask": "cols >= 0"},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "row_tiles",
        _TILES,
        (
            _WARPS,
            numbers("tile_rows", 2, 1, 4, 8),
            _ROOT,
            _WEIGHT_HINT,
            _ORDER,
            _TILE_VARIANCE,
            _LAUNCH,
            _mistakes(
                none={"axis": "1", "expand": "[:, None]", "per_program": "ROWS"},
                axis={"axis": "0", "expand": "[None, :]", "per_program": "ROWS"},
                shape={"axis": "1", "expand": "", "per_program": "ROWS"},
                grid={"axis": "1", "expand": "[:, None]", "per_program": "(ROWS + 1)"},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "persistent",
        _PERSISTENT,
        (
            _WARPS,
            numbers("per_processor", 2, 1, 4, 8, 16),
            _ALIGNED,
            _ROOT,
            _MOMENTS,
            _SHARES,
            _mistakes(none={"shift": "+"}, shift={"shift": "-"}, dot={"shift": "@"}),
            *_COMMON,
        ),
    ),
    Family(
        "split_rows",
        _SPLIT,
        (
            _BLOCK,
            _SMALL_WARPS,
            numbers("row_warps", 4, 1, 2, 8, 16),
            _ALIGNED,
            _ROOT,
            _WEIGHT_HINT,
            _GATHER,
            *_COMMON,
        ),
    ),
)

SPACE = Space(_FAMILIES, start=_FAMILIES[0].design())
"""Its start is a kernel for every step, as the operation is written down."""
