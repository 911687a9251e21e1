"""Kernels for a host's search, some of which cannot run, and the screen that is to tell."""

from __future__ import annotations

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def run(x):
    BLOCK = 128
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), SIZE=BLOCK)
    return y
"""
GOOD = [KERNEL.replace("BLOCK = 128", f"BLOCK = {size}") for size in (256, 512, 1024, 2048)]
BAD = [code.replace("tl.load", "tl.lode") for code in GOOD]
SAYS = "has no attribute 'lode'"
SCREEN = {"policy": "skip", "arch": "sm_90", "deadline_s": 120.0}
