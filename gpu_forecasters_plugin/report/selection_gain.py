"""What is known, from a single run, of how well its filter chose: chosen kernels against random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.decision import Reason
from gpu_forecasters_plugin.ledger.reading import MEASURED_REASONS, MeasuredRows

__all__ = ["FEWEST_POOLS", "SelectionGain", "selection_gain"]

FEWEST_POOLS = 5
"""With fewer, an interval is little more than the smallest and the largest difference."""

_RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class SelectionGain:
    """How much faster chosen kernels were than random ones of the same pools.

    Attributes:
        ratio: geometric mean over pools of (mean chosen / mean random), each a geometric mean; ``None`` without any.
        interval: 95 % bootstrap interval over pools; ``None`` below :data:`FEWEST_POOLS`.
        pools: pools in which both were measured.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    pools: int

    @property
    def verdict(self) -> str:
        """The interval in a word."""
        if self.interval is None:
            return "too few pools to tell"
        low, high = self.interval
        return "faster" if low > 1.0 else "slower" if high < 1.0 else "no difference shown"


def selection_gain(rows: MeasuredRows) -> SelectionGain:
    """Compare, pool by pool, the kernels that forecasts chose with those that chance chose; failures apart."""
    top = MEASURED_REASONS.index(Reason.TOP_FRACTION)
    chosen, drawn = rows.reason == top, ~np.isnan(rows.sampling_probability)
    log2 = np.log2(rows.speedup)
    pools, place = np.unique(rows.pool, return_inverse=True)
    difference = _means(log2, chosen, place, len(pools)) - _means(log2, drawn, place, len(pools))
    difference = difference[~np.isnan(difference)]
    count = len(difference)
    if not count:
        return SelectionGain(None, None, 0)
    ratio = float(2 ** difference.mean())
    return SelectionGain(ratio, _interval(difference) if count >= FEWEST_POOLS else None, count)


def _means(
    values: NDArray[np.float64], wanted: NDArray[np.bool_], place: NDArray[np.intp], pools: int
) -> NDArray[np.float64]:
    """Mean of the wanted values by pool; NaN in pools that have none."""
    counts = np.bincount(place[wanted], minlength=pools)
    sums = np.bincount(place[wanted], values[wanted], minlength=pools)
    means: NDArray[np.float64] = np.divide(sums, counts, out=np.full(pools, np.nan), where=counts > 0)
    return means


def _interval(difference: NDArray[np.float64]) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    count = len(difference)
    # One resample at a time: a matrix of them would take gigabytes in a long run.
    means = [difference[generator.integers(0, count, count)].mean() for _ in range(_RESAMPLES)]
    tail = (1.0 - _LEVEL) / 2
    low, high = np.exp2(np.quantile(means, [tail, 1.0 - tail]))
    return float(low), float(high)
