"""Residual add, LayerNorm and GELU of bfloat16 rows."""

import torch
import triton
import triton.language as tl

BLOCK = 256
WARPS = 4
ROW_BLOCK = 256
ROW_WARPS = 4


@triton.jit
def add(x_ptr, r_ptr, total_ptr, size, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    x = tl.load(x_ptr + cols, mask=mask).to(tl.float32)
    r = tl.load(r_ptr + cols, mask=mask).to(tl.float32)
    tl.store(total_ptr + cols, x + r, mask=mask)


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
        value = tl.load(total_ptr + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        squares += tl.where(cols < hidden, (value - mean) * (value - mean), 0.0)
    variance = tl.sum(squares, axis=0) / hidden
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, 1.0 / tl.sqrt(variance + eps))


@triton.jit
def normalise(total_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, z_ptr, size, hidden, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    row = cols // hidden
    col = cols % hidden
    mean = tl.load(mean_ptr + row, mask=mask)
    rstd = tl.load(rstd_ptr + row, mask=mask)
    w = tl.load(w_ptr + col, mask=mask).to(tl.float32)
    b = tl.load(b_ptr + col, mask=mask).to(tl.float32)
    value = tl.load(total_ptr + cols, mask=mask).to(tl.float32)
    tl.store(z_ptr + cols, (value - mean) * rstd * w + b, mask=mask)


@triton.jit
def gelu(z_ptr, y_ptr, size, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    z = tl.load(z_ptr + cols, mask=mask).to(tl.float32)
    tl.store(y_ptr + cols, 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476)), mask=mask)


def run(x, residual, weight, bias):
    rows, hidden = x.shape
    size = rows * hidden
    y, total = torch.empty_like(x), torch.empty_like(x)
    z = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    grid = (triton.cdiv(size, BLOCK),)
    add[grid](x, residual, total, size, BLOCK=BLOCK, num_warps=WARPS)
    statistics[(rows,)](total, mean, rstd, hidden, 1e-5, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS)
    normalise[grid](total, mean, rstd, weight, bias, z, size, hidden, BLOCK=BLOCK, num_warps=WARPS)
    gelu[grid](z, y, size, BLOCK=BLOCK, num_warps=WARPS)
    return y, total
