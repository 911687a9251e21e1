"""Whether an arm's difference from another is more than the luck of the seeds.

The claim is about a mean over paired seeds, so the test is of that mean: were the two arms alike, each seed's
difference might as well have had the other sign (sign-flip permutation test; Fisher 1935). Nothing more is assumed. Of
several tests reported together, some come out small by luck: Holm's correction (1979) keeps the chance of any false
claim among them at the level of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["LEVEL", "fewest_pairs", "holm", "sign_flip_p_value"]

LEVEL = 0.05
"""Chance of a false claim that is accepted, of all tests reported together."""

_MOST_EXACT = 14
"""Pairs up to which all sign patterns are tried (16,384)."""

_DRAWS = 19_999
_AT_ONCE = 2_000_000
_ROUNDING = 1e-9

_Floats = np.ndarray[Any, np.dtype[np.float64]]


def _patterns(pairs: int) -> _Floats:
    """Every sign pattern, one per row; of a pattern and its opposite only one, as the test has two sides."""
    bits = np.arange(2 ** (pairs - 1))[:, None] >> np.arange(pairs)[None, :] & 1
    return (1 - 2 * bits).astype(np.float64)


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences, in (0, 1].

    Args:
        differences: arm minus baseline, one per pair; finite.

    Returns:
        Share of sign patterns whose mean is at least as far from 0 as the one found: of all patterns up to 14
        pairs, and of 19,999 random ones (seeded) and the one found beyond. The smallest that n pairs can give is
        2^(1-n). 1 without a difference, or without a pair.
    """
    values = np.asarray(differences, dtype=np.float64)
    found = abs(values.sum())
    if found <= 0.0:
        return 1.0
    least = found * (1.0 - _ROUNDING)
    if len(values) <= _MOST_EXACT:
        return float(np.mean(np.abs(_patterns(len(values)) @ values) >= least))
    generator = np.random.default_rng(0)
    rows, as_far = max(1, _AT_ONCE // len(values)), 1
    for first in range(0, _DRAWS, rows):
        bits = generator.integers(0, 2, size=(min(rows, _DRAWS - first), len(values)))
        as_far += int(np.sum(np.abs((1.0 - 2.0 * bits) @ values) >= least))
    return as_far / (_DRAWS + 1)


def fewest_pairs(tests: int) -> int:
    """Pairs that it takes for one of so many tests to be shown at :data:`LEVEL`, if all pairs agree."""
    return 1 + math.ceil(math.log2(tests / LEVEL))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the same order: reject those at most at the level, whatever they are of.

    The k-th smallest of m counts (m - k + 1) times, at most 1 and at least as much as those before it.
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
