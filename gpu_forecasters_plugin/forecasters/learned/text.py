"""From source text to tokens: code without comments, for Python, CUDA C++ and CUDA C++ inside Python strings.

Nothing is parsed, so nothing can fail to parse: a proposal that no compiler would take still has a text.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_CHARACTERS", "SHINGLE_BUCKETS", "clean_source", "shingle_counts", "tokenise"]

MAX_CHARACTERS = 96_000
"""Longer sources are read at both ends only: features of 300 kB would cost more than they tell."""

SHINGLE_BUCKETS = 2048
"""Hash buckets of token n-grams."""

_TRIPLE_QUOTED = re.compile(r'("""|\'\'\')(.*?)(?:\1|\Z)', re.DOTALL)
_LOOKS_PYTHON = re.compile(
    r"^[ \t]*(?:import [\w.]+|from [\w.]+ import|def \w+|class \w+[ \t]*[:(])", re.MULTILINE
)
_LOOKS_C = re.compile(r"__global__|__device__|#\s*include|#\s*define|;\s*$", re.MULTILINE)
_C_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_PYTHON_COMMENT = re.compile(r"#[^\n]*")
_TOKEN = re.compile(
    r"[^\W\d]\w*"
    r"|0[xX][0-9a-fA-F]+|\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?"
    r"|<<<|>>>|//|\*\*|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||->|::|[^\s\w]"
)


def clean_source(source: str) -> str:
    """Code of a source without comments and docstrings.

    A triple-quoted string is C when it looks like C, and a docstring otherwise: ``//`` divides in Python and
    starts a comment in CUDA C++, so the two must not be mixed up.
    """
    if len(source) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        source = source[:half] + "\n" + source[-half:]
    if not _LOOKS_PYTHON.search(source):
        return _C_COMMENT.sub(" ", source)
    parts: list[str] = []
    end = 0
    for match in _TRIPLE_QUOTED.finditer(source):
        parts.append(_PYTHON_COMMENT.sub("", source[end : match.start()]))
        if _LOOKS_C.search(match.group(2)):
            parts.append("\n" + _C_COMMENT.sub(" ", match.group(2)) + "\n")
        end = match.end()
    parts.append(_PYTHON_COMMENT.sub("", source[end:]))
    return "".join(parts)


def tokenise(code: str) -> list[str]:
    """Identifiers, numbers and operators of cleaned code, in order."""
    return _TOKEN.findall(code)


@lru_cache(maxsize=65_536)
def _token_id(token: str) -> int:
    # crc32 rather than hash(): the latter differs from process to process, and with it every forecast.
    return zlib.crc32(token.encode("utf-8", errors="surrogatepass"))


def shingle_counts(tokens: list[str]) -> NDArray[np.float32]:
    """log(1 + count) of hashed token 1-, 2- and 3-grams, :data:`SHINGLE_BUCKETS` numbers."""
    ids = np.fromiter((_token_id(token) for token in tokens), dtype=np.uint64, count=len(tokens))
    mixed = [ids * np.uint64(0x9E3779B1)]
    if len(ids) > 1:
        mixed.append(ids[:-1] * np.uint64(0x85EBCA6B) + ids[1:] * np.uint64(0xC2B2AE35))
    if len(ids) > 2:
        mixed.append(
            ids[:-2] * np.uint64(0x27D4EB2F)
            + ids[1:-1] * np.uint64(0x165667B1)
            + ids[2:] * np.uint64(0xD3A2646C)
        )
    # The middle bits of a 64-bit product are the well-mixed ones.
    buckets = (np.concatenate(mixed) >> np.uint64(21)) % np.uint64(SHINGLE_BUCKETS)
    counts = np.bincount(buckets.astype(np.int64), minlength=SHINGLE_BUCKETS)
    return np.log1p(counts).astype(np.float32)
