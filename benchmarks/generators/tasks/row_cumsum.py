"""Cumulative sums along the rows of a float32 matrix.

Every source defines ``run(x)`` with x [rows, cols] in float32 and returns y of the same shape and type:
``y[r, c] = x[r, 0] + ... + x[r, c]``. The shapes go from many short rows to few long ones, so that a source that gives
a row to one program is good at the first and poor at the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import KEY_HASH, Draft, Pool
from benchmarks.generators.tasks.nvrtc import nvrtc_module
from benchmarks.generators.text import TRITON_IMPORTS, Manner, eviction, fill

if TYPE_CHECKING:
    import torch

TASK = "row_cumsum"
OPERATION = "inclusive cumulative sum along the rows, float32 in and out"
SHAPES: list[dict[str, int]] = [
    {"rows": 8192, "cols": 2048},
    {"rows": 512, "cols": 16384},
    {"rows": 32, "cols": 131072},
]
OUTPUT_DTYPES = ["float32"]
TOLERANCE: dict[str, float] = {"relative_norm": 2e-5, "rtol": 1e-4, "atol": 1e-2}


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws normal numbers; their sums walk as far as the root of the length."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    return (torch.randn(shape["rows"], shape["cols"], device=device, generator=generator),)


def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Adds up in float64."""
    return (x.double().cumsum(-1).float(),)


# What a careless wrapper does around the launch: name -> (before, after).
HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "y = y.clone()"),
    "nan_check": ("", 'if torch.isnan(y).any().item():\n    raise ValueError("NaN in the output")'),
    "zero_out": ("", "y = torch.zeros_like(y).add_(y)"),
}

MANNER = Manner(
    names={
        "x_ptr": ["inp_ptr", "X", "src"],
        "y_ptr": ["out_ptr", "Y", "dst"],
        "n_cols": ["length", "N", "n_elements"],
        "vals": ["v", "data", "block"],
        "carry": ["running", "prefix", "acc"],
        "sums": ["scanned", "out", "res"],
        "at": ["offs", "idx", "pos"],
        "row": ["pid", "r", "row_id"],
        "BLOCK": ["BLOCK_SIZE", "TILE", "CHUNK"],
    },
    notes=(
        "Row-wise inclusive prefix sum.",
        "Cumulative sum over the last dimension (float32).",
        "Prefix scan.\n\nEach output is the sum of all inputs of its row up to that place.\n",
        "Candidate kernel: scan with a carry.",
    ),
)

CUDA_MANNER = Manner(
    names={
        "block_scan": ["scan_block", "inclusive_scan", "blockScan"],
        "total": ["sum", "block_total", "all"],
        "carry": ["running", "prefix", "acc"],
        "part": ["warp_sums", "partials", "smem"],
        "lane": ["lane_id", "l", "laneId"],
        "warp": ["warp_id", "wid", "warpId"],
        "cols": ["n", "length", "row_size"],
        "base": ["start", "first", "off"],
    },
    notes=(
        "Inclusive prefix sum per row, CUDA C++ built with NVRTC.",
        "cumsum kernel for float32 rows.",
        "Scan of rows.\n\nWarp shuffles where they help, shared memory otherwise.\n",
    ),
)

# --------------------------------------------------------------------------------------------------- Triton

COMBINE = """@triton.jit
def plus(a, b):
    return a + b


"""

SCANS = {
    "cumsum": "sums = tl.cumsum(vals, axis=0) + carry",
    "associative": "sums = tl.associative_scan(vals, 0, plus) + carry",
    "float64": "sums = (tl.cumsum(vals.to(tl.float64), axis=0) + carry).to(tl.float32)",
    "reverse": "sums = carry + tl.sum(vals, axis=0) - tl.cumsum(vals, axis=0, reverse=True) + vals",
}
CARRIES = {
    "sum": "carry += tl.sum(vals, axis=0)",
    "last": "carry = tl.sum(tl.where(cols == BLOCK - 1, sums, 0.0), axis=0)",
}

ROW_LOOP = (
    TRITON_IMPORTS
    + """
@combine@@triton.jit
def scan_rows(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    cols = tl.arange(0, BLOCK)
    # what has been summed up so far
    carry = 0.0
    for begin in @loop@:
        at = begin + cols
        mask = at < n_cols
        vals = tl.load(x_ptr + at, mask=mask, other=0.0@load_hint@)
        @scan@
        tl.store(y_ptr + at, sums, mask=mask@store_hint@)
        @next@


def run(x):
    n_rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    scan_rows[(n_rows,)](x, y, n_cols, BLOCK=@block@, num_warps=@warps@)
    @post@
    return y
"""
)


def row_loop(
    block: int,
    warps: int,
    scan: str = "cumsum",
    carry: str = "sum",
    loop: str = "plain",
    hints: bool = False,
    host: str | None = None,
) -> Draft:
    """A program per row that walks along it in blocks and carries the sum."""
    choices = {
        "algorithm": "row_loop",
        "block": block,
        "warps": warps,
        "scan": scan,
        "carry": carry,
        "loop": loop,
        "hints": "evict" if hints else "none",
        "host": host,
    }
    pre, post = HOST[host]
    code = fill(
        ROW_LOOP,
        combine=COMBINE if scan == "associative" else "",
        scan=SCANS[scan],
        next=CARRIES[carry],
        loop="range(0, n_cols, BLOCK)"
        if loop == "plain"
        else f"tl.range(0, n_cols, BLOCK, num_stages={loop})",
        load_hint=eviction("first", hints),
        store_hint=eviction("first", hints),
        pre=pre,
        post=post,
        block=block,
        warps=warps,
    )
    return Draft(choices, code, manner=MANNER)


TILE = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_tile(x_ptr, y_ptr, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = rows[:, None] * n_cols
    live = rows[:, None] < n_rows
    carry = tl.zeros([ROWS], dtype=tl.float32)
    for begin in range(0, n_cols, BLOCK):
        at = begin + tl.arange(0, BLOCK)[None, :]
        mask = live & (at < n_cols)
        vals = tl.load(x_ptr + base + at, mask=mask, other=0.0)
        sums = tl.cumsum(vals, axis=1) + carry[:, None]
        tl.store(y_ptr + base + at, sums, mask=mask)
        # the last sum of each row is what the next block starts from
        carry = tl.sum(tl.where(at == begin + BLOCK - 1, sums, 0.0), axis=1)


def run(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    scan_tile[(triton.cdiv(n_rows, @rows@),)](
        x, y, n_rows, n_cols, ROWS=@rows@, BLOCK=@block@, num_warps=@warps@, num_stages=@stages@
    )
    return y
"""
)


def tile(rows: int, block: int, warps: int, stages: int = 3) -> Draft:
    """Several rows per program."""
    choices = {"algorithm": "tile", "rows": rows, "block": block, "warps": warps, "stages": stages}
    code = fill(TILE, rows=rows, block=block, warps=warps, stages=stages)
    return Draft(choices, code, manner=MANNER)


TWO_LEVEL = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_lines(x_ptr, y_ptr, n_cols, LINES: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    # a stretch of the row, seen as LINES lines of WIDTH
    within = tl.arange(0, LINES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    carry = 0.0
    for begin in @loop@:
        at = begin + within
        vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
        inner = tl.cumsum(vals, axis=1)
        lines = tl.sum(vals, axis=1)
        above = tl.cumsum(lines, axis=0) - lines
        tl.store(y_ptr + row * n_cols + at, inner + (above + carry)[:, None], mask=at < n_cols)
        carry += tl.sum(lines, axis=0)


def run(x):
    y = torch.empty_like(x)
    scan_lines[(x.shape[0],)](x, y, x.shape[1], LINES=@lines@, WIDTH=@width@, num_warps=@warps@)
    return y
"""
)


def two_level(lines: int, width: int, warps: int, stages: int = 0) -> Draft:
    """A stretch of a row as a tile: lines are scanned, then their sums."""
    choices = {
        "algorithm": "two_level",
        "lines": lines,
        "width": width,
        "warps": warps,
        "stages": stages or "none",
    }
    loop = "range(0, n_cols, LINES * WIDTH)"
    if stages:
        loop = f"tl.range(0, n_cols, LINES * WIDTH, num_stages={stages})"
    return Draft(choices, fill(TWO_LEVEL, lines=lines, width=width, warps=warps, loop=loop), manner=MANNER)


DOT = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_dot(x_ptr, y_ptr, n_cols, S: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, S)
    within = i[:, None] * S + i[None, :]
    # a product with a triangle of ones adds up along the lines
    upper = (i[:, None] <= i[None, :]).to(tl.float32)
    @strict@
    carry = 0.0
    for begin in range(0, n_cols, S * S):
        at = row * n_cols + begin + within
        vals = tl.load(x_ptr + at, mask=begin + within < n_cols, other=0.0)
        inner = tl.dot(vals, upper, input_precision="@precision@")
        @above@
        tl.store(y_ptr + at, inner + above[:, None] + carry, mask=begin + within < n_cols)
        carry += tl.sum(tl.sum(vals, axis=1), axis=0)


def run(x):
    y = torch.empty_like(x)
    scan_dot[(x.shape[0],)](x, y, x.shape[1], S=@side@, num_warps=@warps@)
    return y
"""
)
ABOVE = {
    "scan": "lines = tl.sum(vals, axis=1)\nabove = tl.cumsum(lines, axis=0) - lines",
    "dot": 'above = tl.sum(tl.dot(lower, vals, input_precision="@precision@"), axis=1)',
}


def dot(side: int, warps: int, precision: str, above: str = "scan") -> Draft:
    """Products with triangles of ones, a stretch of a row as a square matrix."""
    choices = {"algorithm": "dot", "side": side, "warps": warps, "precision": precision, "above": above}
    strict = "lower = (i[:, None] > i[None, :]).to(tl.float32)" if above == "dot" else ""
    code = fill(DOT, side=side, warps=warps, precision=precision, above=ABOVE[above], strict=strict)
    return Draft(choices, code, manner=MANNER)


PERSISTENT = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_stride(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        carry = 0.0
        for begin in range(0, n_cols, BLOCK):
            at = begin + cols
            vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
            tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, axis=0) + carry, mask=at < n_cols)
            carry += tl.sum(vals, axis=0)


def run(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    @grid@
    scan_stride[(programs,)](x, y, n_rows, n_cols, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)


def persistent(waves: str, block: int, warps: int) -> Draft:
    """A fixed number of programs that stride over the rows."""
    choices = {"algorithm": "persistent", "waves": waves, "block": block, "warps": warps}
    if waves == "fixed_16":
        grid = "programs = 16"
    else:
        grid = (
            "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
            f"programs = min(n_rows, {waves} * sms)"
        )
    return Draft(choices, fill(PERSISTENT, grid=grid, block=block, warps=warps), manner=MANNER)


THREE_KERNELS = (
    TRITON_IMPORTS
    + """
@triton.jit
def block_sums(x_ptr, part, n_cols, n_blocks, BLOCK: tl.constexpr):
    row = tl.program_id(@row_axis@)
    b = tl.program_id(@block_axis@)
    at = b * BLOCK + tl.arange(0, BLOCK)
    vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    tl.store(part + row * n_blocks + b, tl.sum(vals, axis=0))


@middle_kernel@@triton.jit
def scan_blocks(x_ptr, y_ptr, offsets, n_cols, n_blocks, @count@BLOCK: tl.constexpr):
    row = tl.program_id(@row_axis@)
    b = tl.program_id(@block_axis@)
    at = b * BLOCK + tl.arange(0, BLOCK)
    @offset@
    vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, axis=0) + before, mask=at < n_cols)


def run(x):
    n_rows, n_cols = x.shape
    @pre@
    n_blocks = triton.cdiv(n_cols, @block@)
    y = torch.empty_like(x)
    part = torch.empty(n_rows, n_blocks, device=x.device, dtype=torch.float32)
    grid = @grid@
    block_sums[grid](x, part, n_cols, n_blocks, BLOCK=@block@, num_warps=@warps@)
    @middle@
    @last@
    @post@
    return y
"""
)
MIDDLE_KERNEL = """@triton.jit
def scan_sums(part, n_blocks, COUNT: tl.constexpr):
    k = tl.arange(0, COUNT)
    p = part + tl.program_id(0) * n_blocks + k
    s = tl.load(p, mask=k < n_blocks, other=0.0)
    tl.store(p, tl.cumsum(s, axis=0) - s, mask=k < n_blocks)


"""
MIDDLES = {
    "triton": "scan_sums[(n_rows,)](part, n_blocks, COUNT=triton.next_power_of_2(n_blocks), num_warps=1)\n"
    "offsets = part",
    "torch": "offsets = torch.cumsum(part, dim=1) - part",
    "none": "offsets = part",
}


def three_kernels(
    middle: str, block: int, warps: int, order: str = "row_first", host: str | None = None
) -> Draft:
    """Sums of blocks, their scan, then the scan of each block; with no middle a block adds up those before it."""
    choices = {
        "algorithm": "three_kernels",
        "middle": middle,
        "block": block,
        "warps": warps,
        "order": order,
        "host": host,
    }
    pre, post = HOST[host]
    row_first = order == "row_first"
    count = "COUNT: tl.constexpr, " if middle == "none" else ""
    value = "COUNT=triton.next_power_of_2(n_blocks), " if middle == "none" else ""
    code = fill(
        THREE_KERNELS,
        middle_kernel=MIDDLE_KERNEL if middle == "triton" else "",
        middle=MIDDLES[middle],
        count=count,
        offset="k = tl.arange(0, COUNT)\n"
        "before = tl.sum(tl.load(offsets + row * n_blocks + k, mask=k < b, other=0.0), axis=0)"
        if middle == "none"
        else "before = tl.load(offsets + row * n_blocks + b)",
        last=f"scan_blocks[grid](x, y, offsets, n_cols, n_blocks, {value}BLOCK=@block@, num_warps=@warps@)",
        grid="(n_rows, n_blocks)" if row_first else "(n_blocks, n_rows)",
        row_axis=0 if row_first else 1,
        block_axis=1 if row_first else 0,
        pre=pre,
        post=post,
        block=block,
        warps=warps,
    )
    return Draft(choices, code, manner=MANNER)


SCAN_THEN_ADD = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_locally(x_ptr, y_ptr, part, n_cols, n_blocks, @parameter@BLOCK: tl.constexpr):
    row = tl.program_id(1)
    b = tl.program_id(0)
    at = b * BLOCK + tl.arange(0, BLOCK)
    vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, axis=0), mask=at < n_cols)
    @publish@


@triton.jit
def add_offsets(y_ptr, offsets, n_cols, n_blocks, STRETCH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    at = tl.program_id(0) * STRETCH + tl.arange(0, STRETCH)
    before = tl.load(offsets + row * n_blocks + at // BLOCK, mask=at < n_cols, other=0.0)
    sums = tl.load(y_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    tl.store(y_ptr + row * n_cols + at, sums + before, mask=at < n_cols)


def run(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    n_blocks = triton.cdiv(n_cols, @block@)
    part = torch.@alloc@(n_rows, n_blocks, device=x.device)
    scan_locally[(n_blocks, n_rows)](x, y, part, n_cols, n_blocks, @count@BLOCK=@block@, num_warps=@warps@)
    @middle@
    @last@
    return y
"""
)
ADDS = {
    "triton": "add_offsets[(triton.cdiv(n_cols, {s}), n_rows)](\n"
    "    y, offsets, n_cols, n_blocks, STRETCH={s}, BLOCK=@block@, num_warps=@warps@\n)",
    "torch": "y.view(n_rows, n_blocks, @block@).add_(offsets.unsqueeze(-1))",
    "expand": "y = y + offsets.repeat_interleave(@block@, dim=1)",
}


def scan_then_add(block: int, warps: int, add: str = "triton", totals: str = "store") -> Draft:
    """Blocks are scanned on their own, offsets are added to the result afterwards."""
    choices = {
        "algorithm": "scan_then_add",
        "block": block,
        "warps": warps,
        "add": add,
        "totals": totals,
    }
    scatter = totals == "scatter"
    code = fill(
        SCAN_THEN_ADD,
        parameter="COUNT: tl.constexpr, " if scatter else "",
        count="COUNT=triton.next_power_of_2(n_blocks), " if scatter else "",
        publish="# every later block of the row gets this one's sum\nk = tl.arange(0, COUNT)\n"
        "late = (k > b) & (k < n_blocks)\n"
        "tl.atomic_add(part + row * n_blocks + k, tl.sum(vals, axis=0), mask=late)"
        if scatter
        else "tl.store(part + row * n_blocks + b, tl.sum(vals, axis=0))",
        alloc="zeros" if scatter else "empty",
        middle="offsets = part" if scatter else "offsets = part.cumsum(dim=1) - part",
        last=ADDS[add].format(s=block),
        block=block,
        warps=warps,
    )
    return Draft(choices, code, manner=MANNER)


SPLIT_ROW = (
    TRITON_IMPORTS
    + """
@triton.jit
def share_sums(x_ptr, part, n_cols, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    piece = tl.program_id(1)
    share = n_cols // SPLITS
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, share, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * n_cols + piece * share + at, mask=at < share, other=0.0)
    tl.store(part + row * SPLITS + piece, tl.sum(total, axis=0))


@triton.jit
def scan_share(x_ptr, y_ptr, part, n_cols, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    piece = tl.program_id(1)
    share = n_cols // SPLITS
    k = tl.arange(0, SPLITS)
    carry = tl.sum(tl.load(part + row * SPLITS + k, mask=k < piece, other=0.0), axis=0)
    for begin in range(0, share, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        vals = tl.load(x_ptr + row * n_cols + piece * share + at, mask=at < share, other=0.0)
        tl.store(y_ptr + row * n_cols + piece * share + at, tl.cumsum(vals, axis=0) + carry, mask=at < share)
        carry += tl.sum(vals, axis=0)


def run(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    @splits@
    part = torch.empty(n_rows, splits, device=x.device)
    share_sums[(n_rows, splits)](x, part, n_cols, SPLITS=splits, BLOCK=@block@, num_warps=@warps@)
    scan_share[(n_rows, splits)](x, y, part, n_cols, SPLITS=splits, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)


def split_row(splits: str, block: int, warps: int) -> Draft:
    """Some programs share a row: each adds up its part, then scans it."""
    choices = {"algorithm": "split_row", "splits": splits, "block": block, "warps": warps}
    rule = {
        "adaptive": "splits = max(1, n_cols // 4096)  # short rows are left whole",
        "by_rows": "splits = triton.next_power_of_2(max(1, 4096 // n_rows))",
    }.get(splits, f"splits = {splits}")
    return Draft(choices, fill(SPLIT_ROW, splits=rule, block=block, warps=warps), manner=MANNER)


LOOKBACK = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_chained(x_ptr, y_ptr, state, ticket, n_rows, n_cols, n_blocks, BLOCK: tl.constexpr):
    # tickets: whoever is waited for has begun
    t = tl.atomic_add(ticket, 1)
    @order@
    slot = row * n_blocks + b
    at = b * BLOCK + tl.arange(0, BLOCK)
    vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    total = tl.sum(vals, axis=0)
    before = total * 0.0
    @wait@
    tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, axis=0) + before, mask=at < n_cols)


def run(x):
    n_rows, n_cols = x.shape
    n_blocks = triton.cdiv(n_cols, @block@)
    y = torch.empty_like(x)
    # a sum and its flag share 64 bits, so that one atomic operation publishes both
    state = torch.zeros(n_rows * n_blocks + 1, device=x.device, dtype=torch.int64)
    ticket = torch.zeros(1, device=x.device, dtype=torch.int32)
    scan_chained[(n_rows * n_blocks,)](
        x, y, state, ticket, n_rows, n_cols, n_blocks, BLOCK=@block@, num_warps=@warps@
    )
    return y
"""
)
WAITS = {
    "chain": """if b > 0:
    word = tl.atomic_add(state + slot - 1, 0)
    while word == 0:
        word = tl.atomic_add(state + slot - 1, 0)
    before = word.to(tl.int32).to(tl.float32, bitcast=True)
bits = (before + total).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
tl.atomic_xchg(state + slot, bits | (1 << 32))""",
    "walk": """# flag 1: the block's own sum; flag 2: the sum of all up to it
mine = total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
tl.atomic_xchg(state + slot, mine | (1 << 32))
look = b - 1
while look >= 0:
    word = tl.atomic_add(state + row * n_blocks + look, 0)
    while word == 0:
        word = tl.atomic_add(state + row * n_blocks + look, 0)
    before += word.to(tl.int32).to(tl.float32, bitcast=True)
    look = tl.where((word >> 32) == 2, -1, look - 1)
bits = (before + total).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
tl.atomic_xchg(state + slot, bits | (2 << 32))""",
}


def lookback(wait: str, block: int, warps: int, order: str = "along_row") -> Draft:
    """One pass: a block waits for the sum of those before it."""
    choices = {"algorithm": "lookback", "wait": wait, "block": block, "warps": warps, "order": order}
    decode = "row = t // n_blocks\nb = t % n_blocks"
    if order == "across_rows":
        decode = "row = t % n_rows\nb = t // n_rows"
    code = fill(LOOKBACK, wait=WAITS[wait], order=decode, block=block, warps=warps)
    return Draft(choices, code, manner=MANNER)


WHOLE_ROW = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_whole(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
    tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, axis=0), mask=at < n_cols)


def run(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    BLOCK = triton.next_power_of_2(n_cols)
    num_warps = @rule@
    scan_whole[(n_rows,)](x, y, n_cols, BLOCK=BLOCK, num_warps=num_warps)
    return y
"""
)


def whole_row(warps: str) -> Draft:
    """The whole row at once."""
    rule = "max(4, min(32, n_cols // 1024))" if warps == "per_1024" else warps
    return Draft({"algorithm": "whole_row", "warps": warps}, fill(WHOLE_ROW, rule=rule), manner=MANNER)


DOUBLING = (
    TRITON_IMPORTS
    + """
@triton.jit
def add_shifted(x_ptr, y_ptr, total, n_cols, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    vals = tl.load(x_ptr + at, mask=at < total, other=0.0)
    far = (at < total) & (at % n_cols >= shift)
    tl.store(y_ptr + at, vals + tl.load(x_ptr + at - shift, mask=far, other=0.0), mask=at < total)


def run(x):
    n_cols = x.shape[1]
    grid = (triton.cdiv(x.numel(), @block@),)
    src_buf, dst_buf, spare = x, torch.empty_like(x), torch.empty_like(x)
    # after the k-th round every place holds the sum of 2 ** k neighbours
    shift = 1
    while shift < n_cols:
        add_shifted[grid](src_buf, dst_buf, x.numel(), n_cols, shift, BLOCK=@block@, num_warps=@warps@)
        src_buf, dst_buf = dst_buf, spare if src_buf is x else src_buf
        shift *= 2
    return src_buf
"""
)


def doubling(block: int, warps: int) -> Draft:
    """Log-step doubling, a launch per step."""
    choices = {"algorithm": "doubling", "block": block, "warps": warps}
    return Draft(choices, fill(DOUBLING, block=block, warps=warps), manner=MANNER)


SERIAL = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_serial(x_ptr, y_ptr, n_rows, n_cols, LANES: tl.constexpr):
    # a lane owns a row
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    mask = row < n_rows
    carry = tl.zeros([LANES], dtype=tl.float32)
    for c in range(0, n_cols):
        carry += tl.load(x_ptr + @place@, mask=mask, other=0.0)
        tl.store(y_ptr + @place@, carry, mask=mask)


def run(x):
    n_rows, n_cols = x.shape
    @before@
    scan_serial[(triton.cdiv(n_rows, @lanes@),)](@source@, y, n_rows, n_cols, LANES=@lanes@, num_warps=@warps@)
    return @result@
"""
)


def serial(layout: str, lanes: int, warps: int) -> Draft:
    """A lane per row, number after number; transposed, neighbouring lanes read neighbouring numbers."""
    turned = layout == "transposed"
    code = fill(
        SERIAL,
        place="c * n_rows + row" if turned else "row * n_cols + c",
        before="x_t = x.t().contiguous()\ny = torch.empty_like(x_t)" if turned else "y = torch.empty_like(x)",
        source="x_t" if turned else "x",
        result="y.t().contiguous()" if turned else "y",
        lanes=lanes,
        warps=warps,
    )
    choices = {"algorithm": "serial", "layout": layout, "lanes": lanes, "warps": warps}
    return Draft(choices, code, manner=MANNER)


BLOCK_POINTER = (
    TRITON_IMPORTS
    + """
@triton.jit
def scan_bp(x, y, M, n_cols, R: tl.constexpr, BN: tl.constexpr):
    first = tl.program_id(0) * R
    a = tl.make_block_ptr(x, (M, n_cols), (n_cols, 1), (first, 0), (R, BN), (1, 0))
    b = tl.make_block_ptr(y, (M, n_cols), (n_cols, 1), (first, 0), (R, BN), (1, 0))
    carry = tl.zeros((R,), tl.float32)
    last = tl.arange(0, BN)[None, :] == BN - 1
    for _ in range(0, n_cols, BN):
        vals = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        sums = tl.cumsum(vals, 1) + carry[:, None]
        tl.store(b, sums, boundary_check=(0, 1))
        carry = tl.sum(tl.where(last, sums, 0.0), 1)
        a = tl.advance(a, (0, BN))
        b = tl.advance(b, (0, BN))


def run(x):
    M, n_cols = x.shape
    y = torch.empty_like(x)
    scan_bp[(triton.cdiv(M, @rows@),)](x, y, M, n_cols, R=@rows@, BN=@block@, num_warps=@warps@)
    return y
"""
)


def block_pointer(rows: int, block: int, warps: int) -> Draft:
    """Block pointers."""
    choices = {"algorithm": "block_pointer", "rows": rows, "block": block, "warps": warps}
    return Draft(choices, fill(BLOCK_POINTER, rows=rows, block=block, warps=warps), manner=MANNER)


AUTOTUNED = (
    TRITON_IMPORTS
    + """
@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in @configs@],
    key=["n_cols"],
)
@triton.jit
def scan_tuned(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for begin in range(0, n_cols, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        vals = tl.load(x_ptr + row * n_cols + at, mask=at < n_cols, other=0.0)
        tl.store(y_ptr + row * n_cols + at, tl.cumsum(vals, 0) + carry, mask=at < n_cols)
        carry += tl.sum(vals, 0)


def run(x):
    y = torch.empty_like(x)
    scan_tuned[(x.shape[0],)](x, y, x.shape[1])
    return y
"""
)
AUTOTUNE = {
    "usual": [(512, 4), (1024, 4), (2048, 8), (4096, 8)],
    "small": [(128, 1), (256, 2), (512, 2)],
    "wide": [(2048, 4), (4096, 8), (8192, 16)],
}


def autotuned(name: str) -> Draft:
    """The row loop with a list of configurations."""
    code = fill(AUTOTUNED, configs=AUTOTUNE[name])
    return Draft({"algorithm": "autotuned", "configs": name}, code, manner=MANNER)


# ------------------------------------------------------------------------------------------------- CUDA C++

# Each defines block_scan(v, total): the inclusive scan over the block's THREADS values and their sum.
BLOCK_SCANS = {
    "shuffle": """__device__ float warp_scan(float v) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    float o = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += o;
  }
  return v;
}

__device__ float block_scan(float v, float& total) {
  __shared__ float part[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  v = warp_scan(v);
  if (lane == 31) part[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float w = lane < THREADS / 32 ? part[lane] : 0.f;
    part[lane] = warp_scan(w);
  }
  __syncthreads();
  total = part[31];
  if (warp > 0) v += part[warp - 1];
  __syncthreads();
  return v;
}""",
    "sums_of_warps": """__device__ float block_scan(float v, float& total) {
  __shared__ float part[THREADS / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int d = 1; d < 32; d *= 2) {
    float o = __shfl_up_sync(0xffffffffu, v, d);
    v += lane >= d ? o : 0.f;
  }
  if (lane == 31) part[warp] = v;
  __syncthreads();
  // every thread adds up the warps before its own
  float before = 0.f;
  total = 0.f;
  for (int w = 0; w < THREADS / 32; ++w) {
    if (w == warp) before = total;
    total += part[w];
  }
  __syncthreads();
  return v + before;
}""",
    "hillis": """__device__ float block_scan(float v, float& total) {
  __shared__ float part[2][THREADS];
  const int t = threadIdx.x;
  int side = 0;
  part[0][t] = v;
  __syncthreads();
  for (int d = 1; d < THREADS; d <<= 1) {
    v = part[side][t] + (t >= d ? part[side][t - d] : 0.f);
    side = 1 - side;
    part[side][t] = v;
    __syncthreads();
  }
  total = part[side][THREADS - 1];
  __syncthreads();
  return v;
}""",
    "blelloch": """__device__ float block_scan(float v, float& total) {
  __shared__ float part[THREADS];
  const int t = threadIdx.x;
  part[t] = v;
  // up the tree
  for (int d = 1; d < THREADS; d <<= 1) {
    __syncthreads();
    int i = (t + 1) * 2 * d - 1;
    if (i < THREADS) part[i] += part[i - d];
  }
  __syncthreads();
  total = part[THREADS - 1];
  __syncthreads();
  if (t == 0) part[THREADS - 1] = 0.f;
  // and down again
  for (int d = THREADS / 2; d > 0; d >>= 1) {
    __syncthreads();
    int i = (t + 1) * 2 * d - 1;
    if (i < THREADS) {
      float left = part[i - d];
      part[i - d] = part[i];
      part[i] += left;
    }
  }
  __syncthreads();
  float before = part[t];
  __syncthreads();
  return v + before;
}""",
    "raking": """__device__ float block_scan(float v, float& total) {
  __shared__ float part[THREADS];
  const int t = threadIdx.x;
  part[t] = v;
  __syncthreads();
  // the first warp rakes: each of its lanes takes THREADS / 32 neighbours
  if (t < 32) {
    float mine = 0.f;
    for (int k = 0; k < THREADS / 32; ++k) {
      mine += part[t * (THREADS / 32) + k];
      part[t * (THREADS / 32) + k] = mine;
    }
    float upto = mine;
    for (int d = 1; d < 32; d <<= 1) {
      float o = __shfl_up_sync(0xffffffffu, upto, d);
      if (t >= d) upto += o;
    }
    for (int k = 0; k < THREADS / 32; ++k) part[t * (THREADS / 32) + k] += upto - mine;
  }
  __syncthreads();
  total = part[THREADS - 1];
  v = part[t];
  __syncthreads();
  return v;
}""",
    "one_thread": """__device__ float block_scan(float v, float& total) {
  __shared__ float part[THREADS];
  part[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < THREADS; ++k) part[k] += part[k - 1];
  }
  __syncthreads();
  total = part[THREADS - 1];
  v = part[threadIdx.x];
  __syncthreads();
  return v;
}""",
}

# How a thread loads, scans and stores its ITEMS neighbours: (load, store) of v[ITEMS] at place p; end is the row's.
ITEM_ACCESS = {
    "scalar": (
        "for (int k = 0; k < ITEMS; ++k) v[k] = p + k < end ? x[p + k] : 0.f;",
        "for (int k = 0; k < ITEMS; ++k) {\n  if (p + k < end) y[p + k] = v[k];\n}",
    ),
    "float4": (
        "#pragma unroll\nfor (int k = 0; k < ITEMS; k += 4) {\n"
        "  float4 q = p + k < end ? *(const float4*)(x + p + k) : make_float4(0.f, 0.f, 0.f, 0.f);\n"
        "  v[k] = q.x; v[k + 1] = q.y; v[k + 2] = q.z; v[k + 3] = q.w;\n}",
        "#pragma unroll\nfor (int k = 0; k < ITEMS; k += 4) {\n"
        "  if (p + k < end) *(float4*)(y + p + k) = make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]);\n}",
    ),
    "streaming": (
        "#pragma unroll\nfor (int k = 0; k < ITEMS; k += 4) {\n"
        "  float4 q = p + k < end ? __ldcs((const float4*)(x + p + k)) : make_float4(0.f, 0.f, 0.f, 0.f);\n"
        "  v[k] = q.x; v[k + 1] = q.y; v[k + 2] = q.z; v[k + 3] = q.w;\n}",
        "#pragma unroll\nfor (int k = 0; k < ITEMS; k += 4) {\n"
        "  if (p + k < end) __stcs((float4*)(y + p + k), make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]));\n}",
    ),
}

CUDA_HEAD = """
#define THREADS @threads@
#define ITEMS @items@

@scan@
"""

CUDA_BLOCK_ROW = (
    CUDA_HEAD
    + """
extern "C" __global__ void scan_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  @rows@ {
    const int base = row * cols, end = base + cols;
    float carry = 0.f;
    for (int first_of_tile = base; first_of_tile < end; first_of_tile += THREADS * ITEMS) {
      const int p = first_of_tile + threadIdx.x * ITEMS;
      float v[ITEMS];
      @load@
      for (int k = 1; k < ITEMS; ++k) v[k] += v[k - 1];
      float total;
      const float upto = block_scan(v[ITEMS - 1], total);
      const float before = carry + upto - v[ITEMS - 1];
      for (int k = 0; k < ITEMS; ++k) v[k] += before;
      @store@
      carry += total;
    }
  }
}
"""
)


def cuda_block_row(
    scan: str,
    threads: int,
    items: int,
    access: str = "float4",
    grid: str = "exact",
    host: str | None = None,
) -> Draft:
    """A block per row, tile after tile."""
    choices = {
        "algorithm": "cuda_block_row",
        "scan": scan,
        "threads": threads,
        "items": items,
        "access": access,
        "grid": grid,
        "host": host,
    }
    load, store = ITEM_ACCESS[access]
    exact = grid == "exact"
    kernel = fill(
        CUDA_BLOCK_ROW,
        threads=threads,
        items=items,
        scan=BLOCK_SCANS[scan],
        rows="const int row = blockIdx.x;"
        if exact
        else "for (int row = blockIdx.x; row < rows; row += gridDim.x)",
        load=load,
        store=store,
    )
    pre, post = HOST[host]
    run = fill(
        CUDA_RUN, pre=pre, post=post, blocks="rows" if exact else f"min(rows, {grid})", threads=threads
    )
    return Draft(choices, nvrtc_module(kernel, run, "scan_rows"), "cuda", CUDA_MANNER)


CUDA_RUN = """
def run(x):
    rows, cols = x.shape
    @pre@
    y = torch.empty_like(x)
    scan_rows((@blocks@, 1, 1), (@threads@, 1, 1), [x, y, rows, cols])
    @post@
    return y
"""

CUDA_EXCHANGE = (
    CUDA_HEAD
    + """
extern "C" __global__ void scan_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  // coalesced copies; one word in 32 is left free, so that lanes meet different banks
  __shared__ float tile[THREADS * ITEMS + THREADS * ITEMS / 32];
  const int base = blockIdx.x * cols;
  float carry = 0.f;
  for (int begin = 0; begin < cols; begin += THREADS * ITEMS) {
    for (int i = threadIdx.x; i < THREADS * ITEMS; i += THREADS) {
      tile[i + i / 32] = begin + i < cols ? x[base + begin + i] : 0.f;
    }
    __syncthreads();
    float v[ITEMS];
    float mine = 0.f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int i = threadIdx.x * ITEMS + k;
      mine += tile[i + i / 32];
      v[k] = mine;
    }
    float total;
    const float before = carry + block_scan(mine, total) - mine;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int i = threadIdx.x * ITEMS + k;
      tile[i + i / 32] = v[k] + before;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < THREADS * ITEMS; i += THREADS) {
      if (begin + i < cols) y[base + begin + i] = tile[i + i / 32];
    }
    __syncthreads();
    carry += total;
  }
}
"""
)


def cuda_exchange(scan: str, threads: int, items: int) -> Draft:
    """Neighbours change hands through shared memory, so that all traffic is coalesced."""
    choices = {"algorithm": "cuda_exchange", "scan": scan, "threads": threads, "items": items}
    kernel = fill(CUDA_EXCHANGE, threads=threads, items=items, scan=BLOCK_SCANS[scan])
    run = fill(CUDA_RUN, pre="", post="", blocks="rows", threads=threads)
    return Draft(choices, nvrtc_module(kernel, run, "scan_rows"), "cuda", CUDA_MANNER)


CUDA_WARP_ROW = """
extern "C" __global__ void scan_rows(const float* x, float* y, int rows, int cols) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  float carry = 0.f;
  const float* mine = x + (long long)row * cols;
  float* out = y + (long long)row * cols;
  @body@
}
"""
WARP_BODY = {
    "1": """for (int c = lane; c < cols; c += 32) {
  float v = mine[c];
  for (int d = 1; d < 32; d <<= 1) {
    float o = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += o;
  }
  v += carry;
  out[c] = v;
  carry = __shfl_sync(0xffffffffu, v, 31);
}""",
    "4": """for (int c = lane; c < cols / 4; c += 32) {
  float4 q = ((const float4*)mine)[c];
  q.y += q.x;
  q.z += q.y;
  q.w += q.z;
  float v = q.w;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    float o = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += o;
  }
  const float before = carry + v - q.w;
  ((float4*)out)[c] = make_float4(q.x + before, q.y + before, q.z + before, q.w + before);
  carry += __shfl_sync(0xffffffffu, v, 31);
}""",
    "double": """double far = 0.0;
for (int c = lane; c < cols; c += 32) {
  double v = mine[c];
  for (int d = 1; d < 32; d <<= 1) {
    double o = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += o;
  }
  v += far;
  out[c] = (float)v;
  far = __shfl_sync(0xffffffffu, v, 31);
}""",
}


def cuda_warp_row(vector: str, threads: int, host: str | None = None) -> Draft:
    """A warp per row."""
    choices = {"algorithm": "cuda_warp_row", "vector": vector, "threads": threads, "host": host}
    pre, post = HOST[host]
    blocks = f"(rows * 32 + {threads - 1}) // {threads}"
    run = fill(CUDA_RUN, pre=pre, post=post, blocks=blocks, threads=threads)
    kernel = fill(CUDA_WARP_ROW, body=WARP_BODY[vector])
    return Draft(choices, nvrtc_module(kernel, run, "scan_rows"), "cuda", CUDA_MANNER)


CUDA_THREAD_CHUNK = (
    CUDA_HEAD
    + """
// a thread takes one stretch of the row: it adds it up, learns what lies before, and walks it again
extern "C" __global__ void scan_rows(const float* x, float* y, int rows, int cols) {
  const int stretch = (cols + THREADS - 1) / THREADS;
  const float* mine = x + (long long)blockIdx.x * cols;
  float* out = y + (long long)blockIdx.x * cols;
  const int begin = threadIdx.x * stretch;
  float sum_of_mine = 0.f;
  for (int c = begin; c < begin + stretch && c < cols; ++c) sum_of_mine += mine[c];
  float total;
  float carry = block_scan(sum_of_mine, total) - sum_of_mine;
  for (int c = begin; c < begin + stretch && c < cols; ++c) {
    carry += mine[c];
    out[c] = carry;
  }
}
"""
)


def cuda_thread_chunk(scan: str, threads: int) -> Draft:
    """A thread per stretch of a row."""
    choices = {"algorithm": "cuda_thread_chunk", "scan": scan, "threads": threads}
    kernel = fill(CUDA_THREAD_CHUNK, threads=threads, items=1, scan=BLOCK_SCANS[scan])
    run = fill(CUDA_RUN, pre="", post="", blocks="rows", threads=threads)
    return Draft(choices, nvrtc_module(kernel, run, "scan_rows"), "cuda", CUDA_MANNER)


CUDA_THREAD_ROW = """
extern "C" __global__ void scan_rows(const float* x, float* y, int rows, int cols) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float4* mine = (const float4*)(x + (long long)row * cols);
  float4* out = (float4*)(y + (long long)row * cols);
  float carry = 0.f;
#pragma unroll 4
  for (int c = 0; c < cols / 4; ++c) {
    float4 q = mine[c];
    q.x += carry;
    q.y += q.x;
    q.z += q.y;
    q.w += q.z;
    carry = q.w;
    out[c] = q;
  }
}
"""


def cuda_thread_row(threads: int) -> Draft:
    """A thread per row."""
    choices = {"algorithm": "cuda_thread_row", "threads": threads}
    run = fill(CUDA_RUN, pre="", post="", blocks=f"(rows + {threads - 1}) // {threads}", threads=threads)
    return Draft(choices, nvrtc_module(fill(CUDA_THREAD_ROW), run, "scan_rows"), "cuda", CUDA_MANNER)


CUDA_LOOKBACK = (
    CUDA_HEAD
    + """
extern "C" __global__ void scan_chained(const float* __restrict__ x, float* __restrict__ y,
                                        unsigned long long* state, int* ticket, int rows, int cols, int tiles) {
  __shared__ int drawn;
  __shared__ float handed;
  if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1);
  __syncthreads();
  const int b = drawn % tiles, row = drawn / tiles;
  const int base = row * cols, end = base + cols;
  const int p = base + b * THREADS * ITEMS + threadIdx.x * ITEMS;
  float v[ITEMS];
  @load@
  for (int k = 1; k < ITEMS; ++k) v[k] += v[k - 1];
  float total;
  const float upto = block_scan(v[ITEMS - 1], total);
  if (threadIdx.x == 0) {
    float carry = 0.f;
    @wait@
    handed = carry;
  }
  __syncthreads();
  const float before = handed + upto - v[ITEMS - 1];
  for (int k = 0; k < ITEMS; ++k) v[k] += before;
  @store@
}
"""
)
CUDA_WAITS = {
    "chain": """if (b > 0) {
  unsigned long long word;
  do {
    word = atomicAdd(state + drawn - 1, 0ULL);
  } while (word == 0ULL);
  carry = __uint_as_float((unsigned int)word);
}
atomicExch(state + drawn, (1ULL << 32) | __float_as_uint(carry + total));""",
    "walk": """// 1: a tile's own sum; 2: the sum of the row up to its end
atomicExch(state + drawn, (1ULL << 32) | __float_as_uint(total));
for (int look = b - 1; look >= 0; --look) {
  unsigned long long word;
  do {
    word = atomicAdd(state + row * tiles + look, 0ULL);
  } while (word == 0ULL);
  carry += __uint_as_float((unsigned int)word);
  if ((word >> 32) == 2ULL) break;
}
atomicExch(state + drawn, (2ULL << 32) | __float_as_uint(carry + total));""",
}


def cuda_lookback(
    wait: str, threads: int, items: int, access: str = "float4", scan: str = "shuffle"
) -> Draft:
    """One pass over the data: a tile waits for the sum of those before it."""
    choices = {
        "algorithm": "cuda_lookback",
        "wait": wait,
        "threads": threads,
        "items": items,
        "access": access,
        "scan": scan,
    }
    load, store = ITEM_ACCESS[access]
    kernel = fill(
        CUDA_LOOKBACK,
        threads=threads,
        items=items,
        scan=BLOCK_SCANS[scan],
        load=load,
        store=store,
        wait=CUDA_WAITS[wait],
    )
    run = fill(
        """
def run(x):
    rows, cols = x.shape
    tiles = (cols + @tile@ - 1) // @tile@
    y = torch.empty_like(x)
    state = torch.zeros(rows * tiles, dtype=torch.int64, device=x.device)
    ticket = torch.zeros(1, dtype=torch.int32, device=x.device)
    scan_chained((rows * tiles, 1, 1), (@threads@, 1, 1), [x, y, state, ticket, rows, cols, tiles])
    return y
""",
        tile=threads * items,
        threads=threads,
    )
    return Draft(choices, nvrtc_module(kernel, run, "scan_chained"), "cuda", CUDA_MANNER)


CUDA_REDUCE_SCAN = (
    CUDA_HEAD
    + """
extern "C" __global__ void tile_sums(const float* x, float* sums, int cols, int tiles) {
  const int base = blockIdx.y * cols, end = base + cols;
  const int p = base + (blockIdx.x * THREADS + threadIdx.x) * ITEMS;
  float v[ITEMS];
  @load@
  float mine = 0.f, total;
  for (int k = 0; k < ITEMS; ++k) mine += v[k];
  block_scan(mine, total);
  if (threadIdx.x == 0) sums[blockIdx.y * tiles + blockIdx.x] = total;
}

extern "C" __global__ void scan_tiles(const float* x, const float* sums, float* y, int cols, int tiles) {
  const int base = blockIdx.y * cols, end = base + cols;
  const int p = base + (blockIdx.x * THREADS + threadIdx.x) * ITEMS;
  float carry = 0.f;
  @carry@
  float v[ITEMS];
  @load@
  for (int k = 1; k < ITEMS; ++k) v[k] += v[k - 1];
  float total;
  const float before = carry + block_scan(v[ITEMS - 1], total) - v[ITEMS - 1];
  for (int k = 0; k < ITEMS; ++k) v[k] += before;
  @store@
}
"""
)
CUDA_CARRY = {
    "torch": ("carry = sums[blockIdx.y * tiles + blockIdx.x];", "sums = sums.cumsum(1) - sums"),
    "loop": (
        "for (int k = 0; k < (int)blockIdx.x; ++k) carry += sums[blockIdx.y * tiles + k];",
        "",
    ),
    "block": (
        "for (int k = threadIdx.x; k < (int)blockIdx.x; k += THREADS) carry += sums[blockIdx.y * tiles + k];\n"
        "float mine = carry;\nblock_scan(mine, carry);  // their sum is all that is asked for",
        "",
    ),
}


def cuda_reduce_scan(
    carry: str, threads: int, items: int, access: str = "float4", scan: str = "shuffle"
) -> Draft:
    """Two launches: sums of tiles, then the scan of each tile from where the former end."""
    choices = {
        "algorithm": "cuda_reduce_scan",
        "carry": carry,
        "threads": threads,
        "items": items,
        "access": access,
        "scan": scan,
    }
    load, store = ITEM_ACCESS[access]
    device, between = CUDA_CARRY[carry]
    kernel = fill(
        CUDA_REDUCE_SCAN,
        threads=threads,
        items=items,
        scan=BLOCK_SCANS[scan],
        load=load,
        store=store,
        carry=device,
    )
    run = fill(
        """
def run(x):
    rows, cols = x.shape
    tiles = (cols + @tile@ - 1) // @tile@
    y = torch.empty_like(x)
    sums = torch.empty(rows, tiles, device=x.device)
    tile_sums((tiles, rows, 1), (@threads@, 1, 1), [x, sums, cols, tiles])
    @between@
    scan_tiles((tiles, rows, 1), (@threads@, 1, 1), [x, sums, y, cols, tiles])
    return y
""",
        tile=threads * items,
        threads=threads,
        between=between,
    )
    return Draft(choices, nvrtc_module(kernel, run, "tile_sums", "scan_tiles"), "cuda", CUDA_MANNER)


CUDA_EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

@kernel@

torch::Tensor cumsum_rows(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int rows = x.size(0), cols = x.size(1);
  scan_rows<<<rows, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), rows, cols);
  return y;
}
"""

extension = load_inline(
    name="cumsum_@hash@",
    cpp_sources="torch::Tensor cumsum_rows(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["cumsum_rows"],
    extra_cuda_cflags=["-O3"],
)


def run(x):
    return extension.cumsum_rows(x)
'''


def cuda_extension(scan: str, threads: int, items: int, access: str = "float4") -> Draft:
    """A block per row, built as an extension of PyTorch."""
    choices = {
        "algorithm": "cuda_extension",
        "scan": scan,
        "threads": threads,
        "items": items,
        "access": access,
    }
    load, store = ITEM_ACCESS[access]
    kernel = fill(
        CUDA_BLOCK_ROW.replace('extern "C" ', ""),
        threads=threads,
        items=items,
        scan=BLOCK_SCANS[scan],
        rows="const int row = blockIdx.x;",
        load=load,
        store=store,
    )
    code = fill(CUDA_EXTENSION, kernel=kernel, hash=KEY_HASH)
    return Draft(choices, code, "cuda", CUDA_MANNER)


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH: dict[str, str] = {
    "cumsum": """import torch


def run(x):
    return torch.cumsum(x, dim=-1)
""",
    "double": """import torch


def run(x):
    return x.double().cumsum(dim=1).float()
""",
    "in_place": """import torch


def run(x):
    y = x.clone()
    y.cumsum_(dim=1)
    return y
""",
    "out_buffer": """import torch

_buffers = {}


def run(x):
    if x.shape not in _buffers:
        _buffers[x.shape] = torch.empty_like(x)
    torch.cumsum(x, dim=1, out=_buffers[x.shape])
    return _buffers[x.shape].clone()
""",
    "flip": """import torch


def run(x):
    # a sum from the right is the whole less a sum from the left
    right = x.flip(1).cumsum(1).flip(1)
    return x.sum(1, keepdim=True) - right + x
""",
    "transposed": """import torch


def run(x):
    return x.t().contiguous().cumsum(0).t().contiguous()
""",
    "transposed_view": """import torch


def run(x):
    return x.t().cumsum(dim=0).t().contiguous()
""",
    "doubling": """import torch


def run(x):
    y = x.clone()
    shift = 1
    while shift < x.shape[1]:
        y = torch.cat([y[:, :shift], y[:, shift:] + y[:, :-shift]], dim=1)
        shift *= 2
    return y
""",
    "doubling_in_place": """import torch


def run(x):
    y, z = x.clone(), torch.empty_like(x)
    shift = 1
    while shift < x.shape[1]:
        z[:, :shift] = y[:, :shift]
        torch.add(y[:, shift:], y[:, :-shift], out=z[:, shift:])
        y, z = z, y
        shift *= 2
    return y
""",
    "doubling_pad": """import torch
import torch.nn.functional as F


def run(x):
    y = x
    for k in range((x.shape[1] - 1).bit_length()):
        y = y + F.pad(y, (1 << k, 0))[:, : x.shape[1]]
    return y
""",
    "jit_script": """import torch


@torch.jit.script
def scan(x: torch.Tensor) -> torch.Tensor:
    blocks = x.view(x.size(0), -1, 256)
    inner = torch.cumsum(blocks, dim=2)
    ends = inner[:, :, -1]
    return (inner + (torch.cumsum(ends, dim=1) - ends).unsqueeze(2)).view(x.size(0), x.size(1))


def run(x):
    return scan(x)
""",
    "row_pieces": """import torch


def run(x):
    return torch.cat([part.cumsum(dim=1) for part in x.split(max(1, x.shape[0] // 16))])
""",
    "vmap": """import torch


def run(x):
    return torch.vmap(lambda row: torch.cumsum(row, 0))(x)
""",
    "module": """import torch
from torch import nn


class Cumsum(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=-1, dtype=torch.float32)


scan = Cumsum()


def run(x):
    with torch.no_grad():
        return scan(x)
""",
    "checks": """import torch


def run(x):
    assert x.dim() == 2 and x.dtype == torch.float32
    if not torch.isfinite(x).all().item():
        raise ValueError("bad input")
    y = torch.cumsum(x.contiguous(), dim=1)
    torch.cuda.synchronize()
    return y
""",
    "flat_scan": """import torch


def run(x):
    # one scan over everything in double, less what the rows before have summed up to
    flat = x.double().flatten().cumsum(0).view(x.shape)
    before = torch.cat([flat.new_zeros(1), flat[:-1, -1]])
    return (flat - before[:, None]).float()
""",
    "streams": """import torch


def run(x):
    y = torch.empty_like(x)
    half = x.shape[0] // 2
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cumsum(x[half:], dim=1, out=y[half:])
    torch.cumsum(x[:half], dim=1, out=y[:half])
    torch.cuda.current_stream().wait_stream(side)
    return y
""",
}

BLOCKED = """
import torch


def run(x):
    rows, cols = x.shape
    blocks = x.view(rows, cols // @block@, @block@)
    @inner@
    @ends@
    @offsets@
    return @result@
"""
BLOCKED_INNER = {
    "cumsum": "inner = blocks.cumsum(-1)",
    "matmul": "triangle = torch.ones(@block@, @block@, device=x.device).triu()\ninner = blocks @ triangle",
    "einsum": "triangle = torch.triu(torch.ones(@block@, @block@, device=x.device))\n"
    'inner = torch.einsum("rbi,ij->rbj", blocks, triangle)',
    "tril": "triangle = torch.tril(torch.ones(@block@, @block@, device=x.device))\n"
    "inner = torch.matmul(triangle, blocks.unsqueeze(-1)).squeeze(-1)",
}
BLOCKED_OFFSETS = {
    "cumsum": ("offsets = ends.cumsum(1) - ends", "(inner + offsets.unsqueeze(-1)).view(rows, cols)"),
    "in_place": (
        "offsets = torch.cumsum(ends, 1).sub_(ends)",
        "inner.add_(offsets[:, :, None]).reshape(rows, cols)",
    ),
    "matmul": (
        "n = ends.shape[1]\nstrict = torch.ones(n, n, device=x.device).triu(1)\noffsets = ends @ strict",
        "(inner + offsets[..., None]).reshape(rows, cols)",
    ),
    "repeat": (
        "offsets = ends.cumsum(1) - ends",
        "inner.reshape(rows, cols) + offsets.repeat_interleave(@block@, dim=1)",
    ),
}


def torch_source(name: str) -> Draft:
    """Plain PyTorch."""
    return Draft({"algorithm": "torch", "form": name}, TORCH[name], "pytorch")


def blocked(block: int, inner: str, offsets: str = "cumsum") -> Draft:
    """PyTorch in blocks: a scan or a product with a triangle within them, a scan of their sums."""
    lines, result = BLOCKED_OFFSETS[offsets]
    code = fill(
        BLOCKED,
        block=block,
        inner=BLOCKED_INNER[inner],
        ends="ends = inner[..., -1]" if inner == "cumsum" else "ends = blocks.sum(-1)",
        offsets=lines,
        result=result,
    )
    choices = {"algorithm": "blocked", "block": block, "inner": inner, "offsets": offsets}
    return Draft(choices, code, "pytorch")


COLUMN_LOOP = """
import torch


def run(x):
    y = torch.empty_like(x)
    carry = torch.zeros(x.shape[0], 1, device=x.device)
    for begin in range(0, x.shape[1], @block@):
        part = x[:, begin : begin + @block@].cumsum(1) + carry
        y[:, begin : begin + @block@] = part
        carry = part[:, -1:]
    return y
"""


def column_loop(block: int) -> Draft:
    """A Python loop over stretches of columns."""
    return Draft({"algorithm": "column_loop", "block": block}, fill(COLUMN_LOOP, block=block), "pytorch")


WRAPS = {
    "checked": """

def run(x):
    y = launch(x)
    want = torch.cumsum(x, dim=1)
    # fall back to PyTorch if the kernel deviates
    if not torch.allclose(y, want, rtol=1e-3, atol=5e-2):
        return want
    return y
""",
    "sliced": """

def run(x):
    return torch.cat([launch(part) for part in x.chunk(8)])
""",
    "twice": """

def run(x):
    launch(x)  # warm up
    torch.cuda.synchronize()
    return launch(x)
""",
    "copies": """

def run(x):
    work = x.detach().clone().contiguous()
    y = launch(work)
    return torch.where(torch.isnan(y), torch.zeros_like(y), y).clone()
""",
}

# ------------------------------------------------------------------------------------------------- the pool

# A first version as one writes it: a program per row that walks along it.
SEED = row_loop(1024, 4)


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(row_loop(b, w) for b, w in product((256, 512, 1024, 2048, 4096), (4, 8)))
    pool.add(row_loop(b, w) for b, w in ((64, 1), (128, 1), (256, 1), (256, 2), (512, 2), (2048, 16)))
    pool.add(row_loop(b, w) for b, w in ((8192, 16), (16384, 16)))
    pool.add(row_loop(b, w, "associative") for b, w in ((256, 4), (1024, 4), (4096, 8)))
    pool.add(row_loop(b, w, "float64") for b, w in ((256, 4), (1024, 4)))
    pool.add(row_loop(b, w, "reverse") for b, w in ((1024, 4), (2048, 8)))
    pool.add(row_loop(b, w, carry="last") for b, w in ((1024, 4), (2048, 8)))
    pool.add(
        row_loop(b, w, loop=s) for b, w, s in ((1024, 4, "3"), (2048, 8, "3"), (2048, 4, "4"), (512, 4, "4"))
    )
    pool.add(row_loop(b, w, hints=True) for b, w in ((1024, 4), (2048, 8)))
    pool.add(row_loop(1024, 4, host=h) for h in ("clone_in", "sync", "nan_check", "clone_out", "zero_out"))
    pool.add(tile(r, b, 4) for r, b in product((2, 4, 8), (128, 512)))
    pool.add(
        [
            tile(2, 1024, 8),
            tile(4, 1024, 8),
            tile(16, 64, 4),
            tile(16, 128, 4),
            tile(32, 32, 4),
            tile(32, 64, 8),
            tile(64, 16, 4),
            tile(4, 512, 4, stages=1),
        ]
    )
    pool.add(two_level(n, m, 4) for n, m in product((16, 32, 64), (32, 64)))
    pool.add(
        [
            two_level(64, 64, 8),
            two_level(128, 32, 8),
            two_level(128, 16, 4),
            two_level(256, 16, 8),
            two_level(512, 4, 4),
            two_level(1024, 4, 8),
            two_level(32, 64, 4, stages=3),
        ]
    )
    pool.add(dot(s, w, "ieee") for s, w in ((16, 1), (16, 4), (32, 4), (64, 4), (64, 8)))
    pool.add(dot(s, w, "tf32x3") for s, w in ((16, 1), (32, 4), (64, 4)))
    pool.add(dot(s, 4, p, above="dot") for s, p in ((64, "ieee"), (32, "tf32x3"), (64, "tf32x3")))
    pool.add(
        persistent(v, b, w) for v, b, w in (("1", 1024, 4), ("4", 1024, 4), ("2", 2048, 8), ("8", 512, 4))
    )
    pool.add([persistent("4", 4096, 8), persistent("fixed_16", 1024, 4)])
    pool.add(whole_row(w) for w in ("8", "32", "per_1024"))


def add_split_triton(pool: Pool) -> None:
    """Adds Triton sources in which several programs share a row."""
    pool.add(three_kernels("triton", b, w) for b, w in ((256, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8)))
    pool.add(three_kernels("triton", b, 4, "block_first") for b in (1024, 2048))
    pool.add(three_kernels("torch", b, w) for b, w in ((256, 4), (1024, 4), (2048, 8), (4096, 8)))
    pool.add(three_kernels("none", b, w) for b, w in ((512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8)))
    pool.add(three_kernels("none", b, w, "block_first") for b, w in ((1024, 4), (2048, 8)))
    pool.add([three_kernels("none", 2048, 8, host="sync"), three_kernels("torch", 1024, 4, host="nan_check")])
    pool.add([three_kernels("triton", 1024, 4, host=h) for h in ("clone_in", "zero_out")])
    pool.add(scan_then_add(b, w) for b, w in ((128, 1), (256, 4), (1024, 4), (2048, 8), (4096, 8)))
    pool.add(scan_then_add(b, w, "torch") for b, w in ((256, 4), (1024, 4), (2048, 8)))
    pool.add(scan_then_add(b, 4, "expand") for b in (256, 1024))
    pool.add(scan_then_add(b, w, totals="scatter") for b, w in ((1024, 4), (2048, 8)))
    pool.add([scan_then_add(1024, 4, "torch", "scatter")])
    pool.add(split_row(s, b, w) for s, b, w in product(("8", "32"), (512, 1024), (4,)))
    pool.add(
        split_row(s, b, w)
        for s, b, w in (
            ("4", 1024, 4),
            ("16", 2048, 8),
            ("64", 256, 1),
            ("64", 1024, 4),
            ("adaptive", 1024, 4),
            ("adaptive", 2048, 8),
            ("by_rows", 1024, 4),
            ("by_rows", 2048, 8),
        )
    )
    pool.add(lookback("chain", b, w) for b, w in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 16)))
    pool.add(lookback("walk", b, w) for b, w in ((512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8)))
    pool.add(lookback(k, 2048, 8, "across_rows") for k in WAITS)
    pool.add(doubling(b, w) for b, w in ((256, 4), (1024, 4), (2048, 8)))
    pool.add([serial("rows", 32, 1), serial("transposed", 32, 1)])
    pool.add(
        block_pointer(r, b, w)
        for r, b, w in ((1, 1024, 4), (1, 2048, 8), (4, 256, 4), (4, 512, 8), (8, 128, 4))
    )
    pool.add(autotuned(name) for name in AUTOTUNE)


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(cuda_block_row("shuffle", t, i) for t, i in product((128, 256, 512), (4, 8)))
    pool.add(
        cuda_block_row("shuffle", t, i, a)
        for t, i, a in (
            (1024, 4, "float4"),
            (256, 16, "float4"),
            (256, 1, "scalar"),
            (1024, 1, "scalar"),
            (256, 4, "scalar"),
            (256, 4, "streaming"),
            (512, 8, "streaming"),
        )
    )
    pool.add(cuda_block_row("sums_of_warps", t, i) for t, i in ((128, 4), (256, 4), (256, 8)))
    pool.add(cuda_block_row("hillis", t, 1, "scalar") for t in (128, 256, 1024))
    pool.add([cuda_block_row("hillis", 256, 4), cuda_block_row("hillis", 256, 8)])
    pool.add(cuda_block_row("blelloch", t, 1, "scalar") for t in (256, 1024))
    pool.add(
        [
            cuda_block_row("blelloch", 256, 4),
            cuda_block_row("raking", 256, 4),
        ]
    )
    pool.add(cuda_block_row("one_thread", t, 1, "scalar") for t in (64, 256))
    pool.add([cuda_block_row("one_thread", 256, 4), cuda_block_row("raking", 256, 1, "scalar")])
    pool.add(cuda_block_row("shuffle", 256, 4, grid=g) for g in ("132", "1056", "16"))
    pool.add(cuda_block_row("shuffle", 256, 4, host=h) for h in ("sync", "clone_in", "nan_check"))
    pool.add(cuda_exchange("shuffle", t, i) for t, i in ((128, 8), (256, 4), (256, 8), (256, 16), (512, 8)))
    pool.add([cuda_exchange("blelloch", 256, 8), cuda_exchange("sums_of_warps", 256, 8)])
    pool.add(cuda_warp_row(v, t) for v, t in product(("1", "4"), (32, 128, 256)))
    pool.add([cuda_warp_row("double", 128), cuda_warp_row("4", 128, host="sync")])
    pool.add(cuda_thread_chunk("shuffle", t) for t in (128, 256, 1024))
    pool.add([cuda_thread_chunk("one_thread", 256), cuda_thread_row(32), cuda_thread_row(128)])
    pool.add(cuda_lookback(k, t, i) for k, t, i in product(WAITS, (128, 256), (8, 16)))
    pool.add(
        [
            cuda_lookback("walk", 512, 8),
            cuda_lookback("walk", 256, 8, "streaming"),
            cuda_lookback("walk", 256, 4),
            cuda_lookback("chain", 256, 4),
            cuda_lookback("chain", 256, 8, scan="hillis"),
        ]
    )
    pool.add(cuda_reduce_scan(c, t, i) for c, t, i in product(("torch", "block"), (128, 256), (4, 8)))
    pool.add([cuda_reduce_scan("block", 512, 8), cuda_reduce_scan("block", 256, 8, "streaming")])
    pool.add(
        [
            cuda_reduce_scan("loop", 256, 4),
            cuda_reduce_scan("torch", 256, 1, "scalar"),
        ]
    )
    pool.add([cuda_reduce_scan("block", 256, 16)])
    pool.add(
        [
            cuda_extension("shuffle", 256, 4),
            cuda_extension("sums_of_warps", 512, 4),
            cuda_extension("hillis", 256, 1, "scalar"),
        ]
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(name) for name in TORCH)
    pool.add(blocked(b, "cumsum") for b in (64, 256, 1024))
    pool.add(blocked(b, "matmul") for b in (32, 128, 256))
    pool.add(blocked(128, i) for i in ("einsum", "tril"))
    pool.add(blocked(256, "cumsum", o) for o in ("in_place", "repeat"))
    pool.add(
        [
            blocked(256, "matmul", "in_place"),
            blocked(1024, "cumsum", "matmul"),
        ]
    )
    pool.add(column_loop(b) for b in (1024, 2048))


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        row_loop(1024, 4),
        row_loop(2048, 8),
        three_kernels("none", 2048, 8),
        lookback("walk", 2048, 8),
        cuda_block_row("shuffle", 256, 4),
        cuda_lookback("walk", 256, 8),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        row_loop(1024, 4),
        no_carry={"carry += tl.sum(vals, axis=0)": "carry = tl.sum(vals, axis=0)"},
        exclusive={"tl.cumsum(vals, axis=0) + carry": "tl.cumsum(vals, axis=0) - vals + carry"},
        syntax={"for begin in range(0, n_cols, BLOCK):": "for begin in range(0, n_cols, BLOCK)"},
        undefined_name={"+ carry": "+ offset"},
        runtime_block={"BLOCK: tl.constexpr": "BLOCK"},
        wild_pointer={"x_ptr += row * n_cols": "x_ptr += (row + 1) * n_cols * 1048576"},
        half_precision={"tl.cumsum(vals, axis=0)": "tl.cumsum(vals.to(tl.float16), axis=0)"},
    )
    pool.add_broken(
        row_loop(2048, 8),
        block_not_power_of_two={"BLOCK=2048": "BLOCK=1536"},
        stale_start={"at = begin + cols": "at = cols"},
        cpu_output={"torch.empty_like(x)": 'torch.empty(x.shape, device="cpu")'},
        too_many_warps={"num_warps=8": "num_warps=64"},
    )
    pool.add_broken(
        row_loop(1024, 4, carry="last"),
        off_by_one={"BLOCK - 1": "BLOCK - 2"},
        no_import={"import triton.language as tl\n": ""},
    )
    pool.add_broken(row_loop(256, 4, "associative"), not_a_kernel={"@triton.jit\ndef plus": "def plus"})
    pool.add_broken(
        tile(4, 512, 4),
        wrong_axis={"tl.cumsum(vals, axis=1)": "tl.cumsum(vals, axis=0)"},
        row_stride={"rows[:, None] * n_cols": "rows[:, None] * BLOCK"},
        no_such_function={"tl.cumsum(": "tl.prefix_sum("},
    )
    pool.add_broken(
        two_level(64, 64, 8),
        inclusive_lines={" - lines": ""},
    )
    pool.add_broken(dot(64, 4, "ieee"), tf32={'"ieee"': '"tf32"'})
    pool.add_broken(
        dot(32, 4, "tf32x3"), half_operands={"tl.dot(vals, upper": "tl.dot(vals.to(tl.float16), upper"}
    )
    pool.add_broken(
        three_kernels("none", 2048, 8),
        inclusive_offsets={"mask=k < b": "mask=k <= b"},
        short_grid={"grid = (n_rows, n_blocks)": "grid = (n_rows, n_blocks - 1)"},
    )
    pool.add_broken(three_kernels("torch", 1024, 4), inclusive_offsets={" - part": ""})
    pool.add_broken(three_kernels("triton", 1024, 4), few_sums={"triton.next_power_of_2(n_blocks)": "2"})
    pool.add_broken(
        scan_then_add(1024, 4, totals="scatter"),
        starts_at_one={"torch.zeros(": "torch.ones("},
        store_for_add={"tl.atomic_add(": "tl.store("},
    )
    pool.add_broken(split_row("32", 1024, 4), wrong_share={"n_cols // SPLITS": "n_cols // (SPLITS + 1)"})
    pool.add_broken(
        lookback("chain", 2048, 8),
        wrong_word={"word.to(tl.int32)": "(word >> 32).to(tl.int32)"},
    )
    pool.add_broken(lookback("walk", 2048, 8), no_stop={"== 2, -1": "== 3, -1"})
    pool.add_broken(doubling(1024, 4), in_place={"torch.empty_like(x), torch.empty_like(x)": "x, x"})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_block_row("shuffle", 256, 4),
        wrong_mask={"if (lane >= d) v += o;": "v += o;"},
        no_carry={"carry += total;": "carry = total;"},
        undefined_name={"const float upto = block_scan": "const float upto = scan_of_block"},
        syntax={"float total;\n": "float total\n"},
        too_many_threads={"(256, 1, 1)": "(4096, 1, 1)"},
    )
    pool.add_broken(
        cuda_block_row("hillis", 256, 1, "scalar"),
        single_buffer={"side = 1 - side;\n": ""},
        shared_too_large={"part[2][THREADS]": "part[200][THREADS]"},
    )
    pool.add_broken(
        cuda_block_row("one_thread", 256, 1, "scalar"),
        from_zero={"int k = 1; k < THREADS": "int k = 2; k < THREADS"},
    )
    pool.add_broken(cuda_warp_row("4", 128), short_shuffle={"d < 32": "d < 16"})
    pool.add_broken(
        cuda_warp_row("1", 128), misaligned={"mine[c]": "*(const float*)((const char*)(mine + c) + 2)"}
    )
    pool.add_broken(
        cuda_lookback("chain", 256, 8), missing_semicolon={"carry = __uint": "carry\n = = __uint"}
    )
    pool.add_broken(cuda_lookback("walk", 256, 8), inclusive_start={"int look = b - 1;": "int look = b;"})
    pool.add_broken(cuda_reduce_scan("block", 256, 8), wrong_entry={'"tile_sums")': '"tile_total")'})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("cumsum"),
        wrong_axis={"dim=-1": "dim=0"},
        bfloat16={"torch.cumsum(x": "torch.cumsum(x.bfloat16()"},
    )
    pool.add_broken(torch_source("flip"), lost_term={" - right + x": " - right"})
    pool.add_broken(torch_source("in_place"), input_changed={"x.clone()": "x"})
    pool.add_broken(blocked(128, "matmul"), inclusive_offsets={"cumsum(1) - ends": "cumsum(1)"})
    pool.add_broken(column_loop(2048), carry_of_start={"part[:, -1:]": "part[:, :1]"})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    wide = row_loop(2048, 8)
    pool.link(SEED, torch_source("cumsum"))
    pool.link(SEED, autotuned("usual"))
    pool.link(SEED, tile(2, 1024, 8))
    pool.link(SEED, persistent("4", 1024, 4))
    pool.link(SEED, three_kernels("torch", 1024, 4))
    pool.link(SEED, two_level(16, 64, 4))
    pool.link(SEED, block_pointer(1, 1024, 4))
    pool.link(SEED, cuda_block_row("shuffle", 256, 4))
    pool.link(SEED, serial("rows", 32, 1), serial("transposed", 32, 1), torch_source("transposed"))
    pool.link(serial("rows", 32, 1), cuda_thread_row(32), cuda_warp_row("1", 32))
    pool.link(wide, two_level(32, 64, 4), dot(64, 4, "ieee"))
    pool.link(wide, split_row("adaptive", 2048, 8), three_kernels("none", 2048, 8))
    pool.link(wide, whole_row("8"))
    pool.link(three_kernels("triton", 2048, 8), scan_then_add(2048, 8))
    pool.link(three_kernels("none", 2048, 8), lookback("chain", 2048, 8))
    pool.link(scan_then_add(1024, 4, "torch"), blocked(1024, "cumsum"), torch_source("cumsum"))
    pool.link(blocked(256, "cumsum"), torch_source("jit_script"))
    pool.link(dot(32, 4, "ieee"), blocked(32, "matmul"))
    pool.link(doubling(1024, 4), torch_source("doubling"), torch_source("cumsum"))
    pool.link(column_loop(1024), SEED)
    pool.link(cuda_block_row("shuffle", 256, 4), cuda_exchange("shuffle", 256, 4))
    pool.link(cuda_block_row("shuffle", 256, 4), cuda_extension("shuffle", 256, 4))
    pool.link(cuda_block_row("shuffle", 256, 4), cuda_reduce_scan("torch", 256, 4))
    pool.link(cuda_block_row("one_thread", 256, 1, "scalar"), cuda_thread_chunk("one_thread", 256))
    pool.link(cuda_reduce_scan("block", 256, 8), cuda_lookback("chain", 256, 8))
    pool.link(cuda_warp_row("4", 128), cuda_block_row("shuffle", 128, 4))
    pool.link(lookback("walk", 2048, 8), cuda_lookback("walk", 256, 8))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_split_triton,
        add_cuda,
        add_torch,
        add_wrapped,
        break_triton,
        break_cuda,
        break_torch,
        link_families,
        Pool.link_retuned,
    )
