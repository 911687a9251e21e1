"""What a kernel's source is written in."""

from __future__ import annotations

import re

__all__ = ["source_language"]

# In this order: CUDA C++ comes inside PyTorch programs, and Triton beside it.
_MARKS = {
    "cuda": re.compile(r"__global__|__device__|#\s*include\b"),
    "triton": re.compile(r"^\s*(?:import|from)\s+triton\b|@triton\.jit", re.MULTILINE),
    "pytorch": re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE),
}


def source_language(code: str) -> str:
    """``cuda``, ``triton`` or ``pytorch``; ``other`` for a source that bears no mark of them."""
    return next((language for language, mark in _MARKS.items() if mark.search(code)), "other")
