"""The eight speed-up bins: one table that index, label, prompt, midpoint and plots derive from.

Speed-up S = reference time / candidate time; above 1 is faster. Bin numbers run from 1 (slowest) to 8.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

__all__ = ["BINS", "N_BINS", "PUBLISHED_LABELS", "SCHEMES", "BinScheme", "scheme"]

N_BINS = 8

_NAMES = (
    "severe slowdown",
    "significant slowdown",
    "moderate slowdown",
    "minor slowdown or equal",
    "minor speed-up",
    "significant speed-up",
    "high speed-up",
    "extreme speed-up",
)


@dataclass(frozen=True)
class BinScheme:
    """A partition of the positive speed-ups into eight bins.

    Attributes:
        name: what ledgers and reports call it.
        edges: the seven inner edges, ascending.
        holds_upper_edge: whether a speed-up that equals an edge belongs to the bin below it.
        labels: the eight names, from bin 1 to bin 8.
    """

    name: str
    edges: tuple[float, ...]
    holds_upper_edge: bool
    labels: tuple[str, ...] = _NAMES

    def __post_init__(self) -> None:
        if len(self.edges) != N_BINS - 1 or list(self.edges) != sorted(self.edges):
            raise ValueError(f"bin scheme {self.name!r} needs seven ascending edges, got {self.edges}")

    def index(self, speedup: float) -> int:
        """Bin number, 1 to 8, of a speed-up.

        Raises:
            ValueError: the speed-up is not a positive finite number.
        """
        if not (math.isfinite(speedup) and speedup > 0):
            raise ValueError(f"a speed-up is a positive finite number, got {speedup!r}")
        find = bisect_left if self.holds_upper_edge else bisect_right
        return find(self.edges, speedup) + 1

    def bounds(self, index: int) -> tuple[float, float]:
        """Lower and upper edge of bin ``index``: 0 and infinity at the open ends."""
        if not 1 <= index <= N_BINS:
            raise ValueError(f"a bin number is 1 to {N_BINS}, got {index!r}")
        limits = (0.0, *self.edges, math.inf)
        return limits[index - 1], limits[index]

    @cached_property
    def log2_edges(self) -> tuple[float, ...]:
        """The seven inner edges in log2."""
        return tuple(math.log2(edge) for edge in self.edges)

    @cached_property
    def log2_midpoints(self) -> tuple[float, ...]:
        """The eight midpoints in log2: the middle of inner bins; open ends one octave past their edge."""
        edges = self.log2_edges
        inner = [(low + high) / 2 for low, high in zip(edges, edges[1:], strict=False)]
        return (edges[0] - 1.0, *inner, edges[-1] + 1.0)

    def describe(self, index: int) -> str:
        """Text such as ``1.41x < S <= 2x`` for prompts and tables."""
        low, high = self.bounds(index)
        left, right = ("<", "<=") if self.holds_upper_edge else ("<=", "<")
        if low == 0.0:
            return f"S {right} {high:.3g}x"
        if math.isinf(high):
            return f"S {'>' if self.holds_upper_edge else '>='} {low:.3g}x"
        return f"{low:.3g}x {left} S {right} {high:.3g}x"


BINS = BinScheme("standard", (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 4.0), holds_upper_edge=True)
"""The scheme that everything uses by default; the edges of the paper's own prompt (arXiv 2605.31464)."""

PUBLISHED_LABELS = BinScheme(
    "published_labels", (0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 2**1.5, 4.0), holds_upper_edge=False
)
"""floor(2 log2 S) + 4, clamped to 1..8: what the published data set's labels follow. For recomputing only."""

SCHEMES = {known.name: known for known in (BINS, PUBLISHED_LABELS)}


def scheme(name: str) -> BinScheme:
    """The bin scheme of that name.

    Raises:
        ValueError: no such scheme.
    """
    try:
        return SCHEMES[name]
    except KeyError:
        raise ValueError(f"unknown bin scheme {name!r}; known: {', '.join(SCHEMES)}") from None
