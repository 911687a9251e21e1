"""Seeded chance that does not depend on arrival order.

Every random choice is a pure function of the run's seed and of what it is about, so the same seed gives the same
decisions whichever worker came first, and the global ``random`` is never touched.
"""

from __future__ import annotations

import hashlib
import math

__all__ = ["keyed_uniform", "rounded_at_random"]


def keyed_uniform(seed: int, *parts: str | int) -> float:
    """A number in [0, 1) that is fixed by the seed and the parts."""
    text = "\x1f".join(str(part) for part in (seed, *parts))
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    # 53 bits: what a double holds exactly, so that 1.0 can't come out.
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def rounded_at_random(value: float, uniform: float) -> int:
    """Round so that the expectation is ``value``: up with probability of its fractional part."""
    whole = math.floor(value)
    return whole + (uniform < value - whole)
