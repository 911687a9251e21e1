"""Kernels for ``nearest_code``: from a matrix of all distances to one fused scan over the codes."""

from __future__ import annotations

from proposing.space import MISTAKE, Family, Knob, Space, numbers, switch

__all__ = ["SPACE"]

_IMPORTS = '''"""The nearest code to each vector, and the squared distance to it."""

import torch
import triton
import triton.language as tl
'''

_NORMS = """

@triton.jit
def square_norms(codes_ptr, norm_ptr, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    code = tl.load(codes_ptr + where, mask=rows[:, None] < count, other=0.0).to(tl.float32)
    tl.store(norm_ptr + rows, tl.sum(code * code, axis=1), mask=rows < count)

"""

_TILE_M = numbers("tile_m", 64, 16, 32, 128, 256)
_TILE_N = numbers("tile_n", 64, 16, 32, 128, 256)
_TILE_K = numbers("tile_k", 32, 16, 64)
_WARPS = numbers("warps", 4, 2, 8, 16)
_STAGES = numbers("stages", 2, 1, 3, 4)
_SMALL_WARPS = numbers("small_warps", 4, 1, 2, 8)
_ROW_BLOCK = numbers("row_block", 256, 128, 512, 1024, 2048)

# The products of a tile's rows with a tile's codes, by what the tensor cores are given.
_PRODUCT = switch(
    "precision",
    half="tl.dot(a, b)",
    tf32='tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32")',
    single='tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")',
)
_CODES = switch(
    "code_layout",
    transposed="""b = tl.load(codes_ptr + cols[None, :] * WIDTH + k[:, None], mask=cols[None, :] < count, other=0.0)""",
    turned="""b = tl.load(codes_ptr + cols[:, None] * WIDTH + k[None, :], mask=cols[:, None] < count, other=0.0)
b = tl.trans(b)""",
)
_CODE_HINT = switch(
    "code_hint", none="", evict_last=', eviction_policy="evict_last"', cg=', cache_modifier=".cg"'
)
_ROW_HINT = switch(
    "row_hint", none="", evict_first=', eviction_policy="evict_first"', cg=', cache_modifier=".cg"'
)
_ORDER = switch("order", forward="tl.program_id(0)", backward="(tl.num_programs(0) - 1 - tl.program_id(0))")
_INDEX = switch("index", int32="torch.int32", int64="torch.int64")
_HOST = Knob(
    "host",
    {
        "none": {},
        "clone": {"before": "codes = codes.clone()"},
        "contiguous": {"before": "x, codes = x.contiguous() + 0.0, codes.contiguous() + 0.0"},
        "wait": {"after": "torch.cuda.synchronize() if x.is_cuda else None"},
        "look": {"after": 'if (index < 0).any():\n    raise ValueError("no code was found")'},
    },
)

_MATRIX = f"""{_IMPORTS}
TILE_M = @tile_m@
TILE_N = @tile_n@
TILE_K = @tile_k@
WARPS = @warps@
STAGES = @stages@
ROW_BLOCK = @row_block@
ROW_WARPS = @small_warps@


@triton.jit
def distances(
    x_ptr,
    codes_ptr,
    matrix_ptr,
    n_rows,
    count,
    WIDTH: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    @place@
    rows = row_tile * TILE_M + tl.arange(0, TILE_M)
    cols = col_tile * TILE_N + tl.arange(0, TILE_N)
    product = tl.zeros([TILE_M, TILE_N], dtype=tl.float32)
    x_norm = tl.zeros([TILE_M], dtype=tl.float32)
    code_norm = tl.zeros([TILE_N], dtype=tl.float32)
    for start in range(0, WIDTH, TILE_K):
        k = start + tl.arange(0, TILE_K)
        a = tl.load(x_ptr + rows[:, None] * @row_stride@ + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
        @code_layout@
        product += @precision@
        x_norm += tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)
        code_norm += tl.sum(b.to(tl.float32) * b.to(tl.float32), axis=0)
    distance = x_norm[:, None] @sign@ @twice@ * product + code_norm[None, :]
    where = rows[:, None].to(tl.int64) * count + cols[None, :]
    tl.store(matrix_ptr + where, distance, mask=(rows[:, None] < n_rows) & (cols[None, :] < count))


@triton.jit
def smallest(matrix_ptr, index_ptr, distance_ptr, count, BLOCK: tl.constexpr):
    row = @order@
    matrix_ptr += row.to(tl.int64) * count
    best = float("inf")
    best_index = 0
    for start in range(0, count, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        value = tl.load(matrix_ptr + cols, mask=cols < count, other=float("inf")).to(tl.float32)
        low, place = tl.@pick@(value, axis=0, return_indices=True)
        best_index = tl.where(low < best, start + place, best_index)
        best = tl.minimum(low, best)
    tl.store(index_ptr + row, best_index)
    tl.store(distance_ptr + row, best)


def run(x, codes):
    @before@
    rows, width = x.shape
    count = codes.shape[0]
    matrix = torch.empty(rows, count, dtype=@between@, device=x.device)
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_tiles, col_tiles = triton.cdiv(rows, TILE_M), triton.cdiv(count, TILE_N)
    distances[@grid@](
        x,
        codes,
        matrix,
        rows,
        count,
        WIDTH=width,
        TILE_M=TILE_M,
        TILE_N=TILE_N,
        TILE_K=TILE_K,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    smallest[(rows,)](matrix, index, distance, count, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS)
    @after@
    return index, distance
"""

_PLACES = Knob(
    "place",
    {
        "rows_first": {
            "place": "row_tile, col_tile = tl.program_id(0), tl.program_id(1)",
            "grid": "(row_tiles, col_tiles)",
        },
        "columns_first": {
            "place": "row_tile, col_tile = tl.program_id(1), tl.program_id(0)",
            "grid": "(col_tiles, row_tiles)",
        },
        "grouped": {
            "place": """tiles = tl.cdiv(count, TILE_N)
row_tile = tl.program_id(0) // tiles
col_tile = tl.program_id(0) % tiles""",
            "grid": "(row_tiles * col_tiles,)",
        },
    },
)

_RIGHT_MATRIX = {"row_stride": "WIDTH", "sign": "-", "twice": "2.0", "pick": "min"}

_BROADCAST = f"""{_IMPORTS}
TILE_M = @few_rows@
TILE_N = @few_codes@
WARPS = @warps@


@triton.jit
def scan(
    x_ptr, codes_ptr, index_ptr, distance_ptr, n_rows, count,
    WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):
    rows = @order@ * TILE_M + tl.arange(0, TILE_M)
    k = tl.arange(0, WIDTH)
    a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
    a = a.to(tl.float32)
    best = tl.full([TILE_M], float("inf"), dtype=tl.float32)
    best_index = tl.zeros([TILE_M], dtype=tl.int32)
    for start in range(0, count, TILE_N):
        cols = start + tl.arange(0, TILE_N)
        b = tl.load(codes_ptr + cols[:, None] * WIDTH + k[None, :], mask=cols[:, None] < count, other=0.0@code_hint@)
        gap = a[:, None, :] - b.to(tl.float32)[None, :, :]
        distance = tl.sum(gap * gap, axis=@axis@)
        distance = tl.where(cols[None, :] < count, distance, float("inf"))
        low, place = tl.min(distance, axis=1, return_indices=True)
        best_index = tl.where(low < best, start + place, best_index)
        best = tl.minimum(low, best)
    tl.store(index_ptr + rows, best_index, mask=rows < n_rows)
    tl.store(distance_ptr + rows, best, mask=rows < n_rows)


def run(x, codes):
    @before@
    rows, width = x.shape
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    scan[(triton.cdiv(rows, TILE_M),)](
        x, codes, index, distance, rows, codes.shape[0],
        WIDTH=width, TILE_M=TILE_M, TILE_N=TILE_N, num_warps=WARPS,
    )
    @after@
    return index, distance
"""

_SCAN = f"""{_IMPORTS}
TILE_M = @tile_m@
TILE_N = @tile_n@
WARPS = @warps@
STAGES = @stages@
{_NORMS}
@triton.jit
def scan(
    x_ptr, codes_ptr, norm_ptr, index_ptr, distance_ptr, n_rows, count,
    WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):
    rows = @order@ * TILE_M + tl.arange(0, TILE_M)
    k = tl.arange(0, WIDTH)
    a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
    x_norm = tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)
    @begin@
    for start in @loop@:
        cols = start + tl.arange(0, TILE_N)
        @code_layout@
        @norm@
        score = code_norm[None, :] - @twice@ * @precision@
        @bound@
        @update@
    @end@
    tl.store(index_ptr + rows, best_index, mask=rows < n_rows)
    tl.store(distance_ptr + rows, best @with_norm@, mask=@store_mask@)


def run(x, codes):
    @before@
    rows, width = x.shape
    count = codes.shape[0]
    norm = torch.empty(count, dtype=torch.float32, device=x.device)
    @norms@
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    scan[(triton.cdiv(rows, TILE_M),)](
        x, codes, norm, index, distance, rows, count,
        WIDTH=width, TILE_M=TILE_M, TILE_N=TILE_N, num_warps=WARPS, num_stages=STAGES,
    )
    @after@
    return index, distance
"""

_LOOPS = switch(
    "loop",
    plain="range(0, count, TILE_N)",
    pipelined="tl.range(0, count, TILE_N, num_stages=4)",
    one_buffer="tl.range(0, count, TILE_N, disallow_acc_multi_buffer=True)",
)
_NORM_WHEN = Knob(
    "norms",
    {
        "ahead": {
            "norm": 'code_norm = tl.load(norm_ptr + cols, mask=cols < count, other=float("inf"))',
            "norms": "square_norms[(triton.cdiv(count, 64),)](codes, norm, count, WIDTH=width, BLOCK=64)",
        },
        "torch": {
            "norm": 'code_norm = tl.load(norm_ptr + cols, mask=cols < count, other=float("inf"))',
            "norms": "norm.copy_(codes.float().square().sum(1))",
        },
        "inside": {
            "norm": "code_norm = tl.sum(b.to(tl.float32) * b.to(tl.float32), axis=0)",
            "bound": 'score = tl.where(cols[None, :] < count, score, float("inf"))',
        },
    },
)
# The reduction over a tile's codes: in every step, or once at the end, with a running best for each place of the tile.
_UPDATE = Knob(
    "update",
    {
        "each_step": {
            "begin": """best = tl.full([TILE_M], float("inf"), dtype=tl.float32)
best_index = tl.zeros([TILE_M], dtype=tl.int32)""",
            "update": """low, place = tl.min(score, axis=1, return_indices=True)
best_index = tl.where(low < best, start + place, best_index)
best = tl.minimum(low, best)""",
        },
        "once": {
            "begin": """lowest = tl.full([TILE_M, TILE_N], float("inf"), dtype=tl.float32)
step = tl.zeros([TILE_M, TILE_N], dtype=tl.int32)""",
            "update": """step = tl.where(score < lowest, start, step)
lowest = tl.minimum(score, lowest)""",
            "end": """best = tl.min(lowest, axis=1)
found = step + tl.arange(0, TILE_N)[None, :]
best_index = tl.min(tl.where(lowest == best[:, None], found, count), axis=1)""",
        },
        "argmin": {
            "begin": """best = tl.full([TILE_M], float("inf"), dtype=tl.float32)
best_index = tl.zeros([TILE_M], dtype=tl.int32)""",
            "update": """low = tl.min(score, axis=1)
place = tl.argmin(score, axis=1)
best_index = tl.where(low < best, start + place, best_index)
best = tl.where(low < best, low, best)""",
        },
    },
)
_RIGHT_SCAN = {"twice": "2.0", "with_norm": "+ x_norm", "store_mask": "rows < n_rows"}

_SPLIT = f"""{_IMPORTS}
TILE_M = @tile_m@
TILE_N = @tile_n@
WARPS = @warps@
STAGES = @stages@
PARTS = @parts@
{_NORMS}
@triton.jit
def scan_part(
    x_ptr, codes_ptr, norm_ptr, part_index_ptr, part_best_ptr, n_rows, count, share,
    WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):
    rows = tl.program_id(@row_axis@) * TILE_M + tl.arange(0, TILE_M)
    part = tl.program_id(@part_axis@)
    k = tl.arange(0, WIDTH)
    a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
    @begin@
    for start in range(part * share, @part_end@, TILE_N):
        cols = start + tl.arange(0, TILE_N)
        @code_layout@
        @norm@
        score = code_norm[None, :] - @twice@ * @precision@
        @bound@
        @update@
    @end@
    tl.store(part_index_ptr + part * n_rows + rows, best_index, mask=rows < n_rows)
    tl.store(part_best_ptr + part * n_rows + rows, best, mask=rows < n_rows)


@triton.jit
def merge(
    x_ptr, part_index_ptr, part_best_ptr, index_ptr, distance_ptr, n_rows,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < n_rows
    best = tl.full([BLOCK], float("inf"), dtype=tl.float32)
    best_index = tl.zeros([BLOCK], dtype=tl.int32)
    for part in tl.static_range(PARTS):
        low = tl.load(part_best_ptr + part * n_rows + rows, mask=mask, other=float("inf"))
        found = tl.load(part_index_ptr + part * n_rows + rows, mask=mask, other=0)
        best_index = tl.where(low < best, found, best_index)
        best = tl.minimum(low, best)
    where = rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + where, mask=mask[:, None], other=0.0).to(tl.float32)
    tl.store(index_ptr + rows, best_index, mask=mask)
    tl.store(distance_ptr + rows, best + tl.sum(x * x, axis=1), mask=mask)


def run(x, codes):
    @before@
    rows, width = x.shape
    count = codes.shape[0]
    norm = torch.empty(count, dtype=torch.float32, device=x.device)
    @norms@
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    part_index = torch.empty(PARTS, rows, dtype=torch.int32, device=x.device)
    part_best = torch.empty(PARTS, rows, dtype=torch.float32, device=x.device)
    share = triton.cdiv(triton.cdiv(count, PARTS), TILE_N) * TILE_N
    row_tiles = triton.cdiv(rows, TILE_M)
    scan_part[@grid@](
        x, codes, norm, part_index, part_best, rows, count, share,
        WIDTH=width, TILE_M=TILE_M, TILE_N=TILE_N, num_warps=WARPS, num_stages=STAGES,
    )
    merge[(triton.cdiv(rows, 64),)](
        x, part_index, part_best, index, distance, rows,
        WIDTH=width, PARTS=PARTS, BLOCK=64, num_warps=@small_warps@,
    )
    @after@
    return index, distance
"""

_SPLIT_PLACES = Knob(
    "place",
    {
        "rows_first": {"row_axis": "0", "part_axis": "1", "grid": "(row_tiles, PARTS)"},
        "columns_first": {"row_axis": "1", "part_axis": "0", "grid": "(PARTS, row_tiles)"},
    },
)

_PERSISTENT = f"""{_IMPORTS}
TILE_M = @tile_m@
TILE_N = @tile_n@
WARPS = @warps@
STAGES = @stages@
PER_PROCESSOR = @per_processor@
{_NORMS}
@triton.jit
def scan(
    x_ptr, codes_ptr, norm_ptr, index_ptr, distance_ptr, n_rows, count,
    WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):
    k = tl.arange(0, WIDTH)
    for tile in range(tl.program_id(0), tl.cdiv(n_rows, TILE_M), @stride@):
        rows = tile * TILE_M + tl.arange(0, TILE_M)
        a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
        x_norm = tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)
        @begin@
        for start in @loop@:
            cols = start + tl.arange(0, TILE_N)
            @code_layout@
            @norm@
            score = code_norm[None, :] - 2.0 * @precision@
            @bound@
            @update@
        @end@
        tl.store(index_ptr + rows, best_index, mask=rows < n_rows)
        tl.store(distance_ptr + rows, best + x_norm, mask=rows < n_rows)


def run(x, codes):
    @before@
    rows, width = x.shape
    count = codes.shape[0]
    norm = torch.empty(count, dtype=torch.float32, device=x.device)
    @norms@
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    scan[(min(processors * PER_PROCESSOR, triton.cdiv(rows, TILE_M)),)](
        x, codes, norm, index, distance, rows, count,
        WIDTH=width, TILE_M=TILE_M, TILE_N=TILE_N, num_warps=WARPS, num_stages=STAGES,
    )
    @after@
    return index, distance
"""

_ATOMIC = f"""{_IMPORTS}
TILE_M = @tile_m@
TILE_N = @tile_n@
WARPS = @warps@


@triton.jit
def scan_codes(
    x_ptr, codes_ptr, packed_ptr, n_rows, count,
    WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):
    @place@
    rows = row_tile * TILE_M + tl.arange(0, TILE_M)
    cols = col_tile * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, WIDTH)
    a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0@row_hint@)
    @code_layout@
    x_norm = tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)
    code_norm = tl.sum(b.to(tl.float32) * b.to(tl.float32), axis=0)
    distance = tl.maximum(x_norm[:, None] + code_norm[None, :] - 2.0 * @precision@, 0.0)
    distance = tl.where(cols[None, :] < count, distance, float("inf"))
    low, place = tl.min(distance, axis=1, return_indices=True)
    # A distance is not negative, so its bits are ordered as it is: the smallest pair is the nearest code's.
    pair = (low.to(tl.int32, bitcast=True).to(tl.int64) << @shift@) | (col_tile * TILE_N + place).to(tl.int64)
    tl.@atomic@(packed_ptr + rows, pair, mask=rows < n_rows, sem="relaxed")


@triton.jit
def unpack(packed_ptr, index_ptr, distance_ptr, n_rows, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.load(packed_ptr + rows, mask=rows < n_rows, other=0)
    tl.store(index_ptr + rows, pair & 0xFFFFFFFF, mask=rows < n_rows)
    tl.store(distance_ptr + rows, (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True), mask=rows < n_rows)


def run(x, codes):
    @before@
    rows, width = x.shape
    count = codes.shape[0]
    packed = torch.full((rows,), 2**63 - 1, dtype=torch.int64, device=x.device)
    index = torch.empty(rows, dtype=@index@, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_tiles, col_tiles = triton.cdiv(rows, TILE_M), triton.cdiv(count, TILE_N)
    scan_codes[@grid@](
        x, codes, packed, rows, count, WIDTH=width, TILE_M=TILE_M, TILE_N=TILE_N, num_warps=WARPS,
    )
    unpack[(triton.cdiv(rows, 256),)](packed, index, distance, rows, BLOCK=256, num_warps=@small_warps@)
    @after@
    return index, distance
"""

_COMMON = (_WARPS, _PRODUCT, _CODES, _ROW_HINT, _INDEX, _HOST)

_FAMILIES = (
    Family(
        "matrix",
        _MATRIX,
        (
            numbers("tile_m", 32, 16, 64, 128, 256),
            numbers("tile_n", 32, 16, 64, 128, 256),
            _TILE_K,
            _STAGES,
            _ROW_BLOCK,
            _SMALL_WARPS,
            _PLACES,
            _ORDER,
            switch("between", float32="torch.float32", float16="torch.float16"),
            Knob(
                MISTAKE,
                {
                    "none": _RIGHT_MATRIX,
                    "sign": _RIGHT_MATRIX | {"sign": "+"},
                    "stride": _RIGHT_MATRIX | {"row_stride": "count"},
                    "largest": _RIGHT_MATRIX | {"pick": "max"},
                    "no_such_function": _RIGHT_MATRIX | {"pick": "minimum_with_index"},
                },
            ),
            switch(
                "precision",
                single=_PRODUCT.options["single"],
                **{k: _PRODUCT.options[k] for k in ("half", "tf32")},
            ),
            *(knob for knob in _COMMON if knob is not _PRODUCT),
        ),
    ),
    Family(
        "broadcast",
        _BROADCAST,
        (
            numbers("few_rows", 8, 4, 16, 32),
            numbers("few_codes", 8, 4, 16, 32),
            _ORDER,
            _CODE_HINT,
            Knob(MISTAKE, {"none": {"axis": "2"}, "axis": {"axis": "1"}}),
            *(knob for knob in _COMMON if knob not in (_PRODUCT, _CODES)),
        ),
    ),
    Family(
        "scan",
        _SCAN,
        (
            _TILE_M,
            _TILE_N,
            _STAGES,
            _ORDER,
            _LOOPS,
            _NORM_WHEN,
            _UPDATE,
            Knob(
                MISTAKE,
                {
                    "none": _RIGHT_SCAN,
                    "once": _RIGHT_SCAN | {"twice": "1.0"},
                    "no_norm": _RIGHT_SCAN | {"with_norm": "+ 0.0"},
                    "wrong_shape": _RIGHT_SCAN | {"with_norm": "+ x_norm[:, None]"},
                    "no_mask": _RIGHT_SCAN | {"store_mask": "mask"},
                },
            ),
            *_COMMON,
        ),
    ),
    Family(
        "split_scan",
        _SPLIT,
        (
            _TILE_M,
            _TILE_N,
            _STAGES,
            numbers("parts", 2, 4, 8),
            _SMALL_WARPS,
            _SPLIT_PLACES,
            _NORM_WHEN,
            _UPDATE,
            Knob(
                MISTAKE,
                {
                    "none": {"twice": "2.0", "part_end": "tl.minimum(part * share + share, count)"},
                    "whole": {"twice": "2.0", "part_end": "share"},
                    "minus": {"twice": "-2.0", "part_end": "tl.minimum(part * share + share, count)"},
                },
            ),
            *_COMMON,
        ),
    ),
    Family(
        "persistent",
        _PERSISTENT,
        (
            _TILE_M,
            _TILE_N,
            _STAGES,
            numbers("per_processor", 1, 2, 4),
            _LOOPS,
            _NORM_WHEN,
            _UPDATE,
            Knob(
                MISTAKE,
                {"none": {"stride": "tl.num_programs(0)"}, "stride": {"stride": "tl.num_programs(0) + 1"}},
            ),
            *_COMMON,
        ),
    ),
    Family(
        "atomic",
        _ATOMIC,
        (
            _TILE_M,
            _TILE_N,
            _SMALL_WARPS,
            _PLACES,
            Knob(
                MISTAKE,
                {
                    "none": {"shift": "32", "atomic": "atomic_min"},
                    "shift": {"shift": "16", "atomic": "atomic_min"},
                    "atomic": {"shift": "32", "atomic": "atomic_max"},
                    "no_such_function": {"shift": "32", "atomic": "atomic_minimum"},
                },
            ),
            *_COMMON,
        ),
    ),
)

SPACE = Space(_FAMILIES, start=_FAMILIES[0].design())
"""Its start is the matrix of all distances in single precision, and the smallest of each row."""
