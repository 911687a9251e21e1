"""How good a run's forecasts were on what was measured: on rows drawn at random, and on all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.bins import BinScheme
from gpu_forecasters_plugin.calibration.measures import Measures, confusion, measure
from gpu_forecasters_plugin.calibration.reliability import ReliabilityBucket, reliability_buckets
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.ledger.reading import MeasuredRows

__all__ = ["NEAR_EDGE", "ForecastQuality", "forecast_quality", "forecast_rows"]

NEAR_EDGE = 0.02
"""A speed-up that is this near to a bin's edge, as a share of it, may fall on either side when it is timed again."""

_WILSON_Z = 1.959964


@dataclass(frozen=True)
class ForecastQuality:
    """Measures of a set of forecasts.

    Attributes:
        effective_n: rows of equal weight that say as much.
        measures: every measure; those relative to climatology compare with the set's own bin frequencies.
        reliability: confidence buckets that have rows.
        intervals: 95 % interval of each bucket's accuracy.
        confusion: summed weight by measured bin and predicted bin, scaled to the number of rows; shape (8, 8).
        near_edge: share of rows whose measured speed-up lies within :data:`NEAR_EDGE` of an edge between bins.
    """

    effective_n: float
    measures: Measures
    reliability: tuple[ReliabilityBucket, ...]
    intervals: tuple[tuple[float, float], ...]
    confusion: tuple[tuple[float, ...], ...]
    near_edge: float

    @property
    def n(self) -> int:
        """Rows with a forecast and a time."""
        return self.measures.n


def forecast_rows(rows: MeasuredRows, bins: BinScheme, *, drawn_only: bool) -> ForecastRows:
    """The rows that have a forecast, as measures are taken on them.

    Args:
        rows: measured rows.
        bins: the scheme of the run's forecasts.
        drawn_only: only rows drawn at random, each with one over its sampling probability as weight: these stand for
            all candidates. Otherwise all, and all alike.
    """
    use = ~np.isnan(rows.probabilities).any(axis=1)
    if drawn_only:
        use &= ~np.isnan(rows.sampling_probability)
    return ForecastRows.of(
        rows.probabilities[use],
        rows.speedup[use] / rows.anchor_speedup[use],
        bins=bins,
        weights=1.0 / rows.sampling_probability[use] if drawn_only else None,
        answered=np.ones(int(use.sum()), dtype=np.bool_),
    )


def forecast_quality(rows: ForecastRows, bins: BinScheme) -> ForecastQuality | None:
    """Every measure of some rows; ``None`` without any: no data gives no measure.

    Args:
        rows: as :func:`forecast_rows` gives them.
        bins: their scheme.
    """
    if not len(rows):
        return None
    effective_n = float(rows.weights.sum() ** 2 / (rows.weights**2).sum())
    buckets = reliability_buckets(rows)
    nearest = np.abs(rows.log2_speedups[:, None] - np.array(bins.log2_edges)).min(axis=1)
    return ForecastQuality(
        effective_n,
        measure(rows),
        buckets,
        tuple(_wilson(b.accuracy, max(1.0, b.n * effective_n / len(rows))) for b in buckets),
        tuple(tuple(float(value) for value in row) for row in confusion(rows)),
        float(np.average(nearest < math.log2(1.0 + NEAR_EDGE), weights=rows.weights)),
    )


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share among ``n`` rows."""
    z2 = _WILSON_Z**2 / n
    middle = (share + z2 / 2) / (1 + z2)
    half = _WILSON_Z / (1 + z2) * math.sqrt(max(0.0, share * (1 - share)) / n + z2 / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)
