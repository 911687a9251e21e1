"""The nearest code to each vector, and the squared distance to it."""

import torch
import triton
import triton.language as tl

TILE_M = 32
TILE_N = 32
TILE_K = 32
WARPS = 4
STAGES = 2
ROW_BLOCK = 256
ROW_WARPS = 4


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
    row_tile, col_tile = tl.program_id(0), tl.program_id(1)
    rows = row_tile * TILE_M + tl.arange(0, TILE_M)
    cols = col_tile * TILE_N + tl.arange(0, TILE_N)
    product = tl.zeros([TILE_M, TILE_N], dtype=tl.float32)
    x_norm = tl.zeros([TILE_M], dtype=tl.float32)
    code_norm = tl.zeros([TILE_N], dtype=tl.float32)
    for start in range(0, WIDTH, TILE_K):
        k = start + tl.arange(0, TILE_K)
        a = tl.load(x_ptr + rows[:, None] * WIDTH + k[None, :], mask=rows[:, None] < n_rows, other=0.0)
        b = tl.load(codes_ptr + cols[None, :] * WIDTH + k[:, None], mask=cols[None, :] < count, other=0.0)
        product += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
        x_norm += tl.sum(a.to(tl.float32) * a.to(tl.float32), axis=1)
        code_norm += tl.sum(b.to(tl.float32) * b.to(tl.float32), axis=0)
    distance = x_norm[:, None] - 2.0 * product + code_norm[None, :]
    where = rows[:, None].to(tl.int64) * count + cols[None, :]
    tl.store(matrix_ptr + where, distance, mask=(rows[:, None] < n_rows) & (cols[None, :] < count))


@triton.jit
def smallest(matrix_ptr, index_ptr, distance_ptr, count, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    matrix_ptr += row.to(tl.int64) * count
    best = float("inf")
    best_index = 0
    for start in range(0, count, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        value = tl.load(matrix_ptr + cols, mask=cols < count, other=float("inf")).to(tl.float32)
        low, place = tl.min(value, axis=0, return_indices=True)
        best_index = tl.where(low < best, start + place, best_index)
        best = tl.minimum(low, best)
    tl.store(index_ptr + row, best_index)
    tl.store(distance_ptr + row, best)


def run(x, codes):
    rows, width = x.shape
    count = codes.shape[0]
    matrix = torch.empty(rows, count, dtype=torch.float32, device=x.device)
    index = torch.empty(rows, dtype=torch.int32, device=x.device)
    distance = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_tiles, col_tiles = triton.cdiv(rows, TILE_M), triton.cdiv(count, TILE_N)
    distances[(row_tiles, col_tiles)](
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
    return index, distance
