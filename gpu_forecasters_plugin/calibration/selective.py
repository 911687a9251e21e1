"""Risk over coverage: how wrong forecasts are when only the surest are trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import exact

__all__ = ["RiskCoverage", "aurc", "risk_coverage"]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve (El-Yaniv and Wiener 2010).

    Attributes:
        coverage: share of the weight that is trusted, rising to 1; shape (m,).
        risk: share of wrong bins among what is trusted; shape (m,).
    """

    coverage: Array
    risk: Array


def risk_coverage(rows: ForecastRows) -> RiskCoverage:
    """Risk at every coverage, the surest forecasts first.

    Equal confidences come in no order: each of them carries their mean loss, so the curve is the expected one of a
    random order, and the order of the rows does not matter.
    """
    losses, weights = _by_confidence(rows)
    trusted = weights.cumsum()
    total = trusted[-1] if len(trusted) else 1.0
    return RiskCoverage(trusted / total, (losses * weights).cumsum() / np.maximum(trusted, 1e-300))


def aurc(rows: ForecastRows) -> float | None:
    """Area under the risk-coverage curve, in [0, 1], lower is better; ``None`` without rows.

    The mean of the risk over the rows' coverages (Geifman, Uziel and El-Yaniv 2019).
    """
    if not len(rows):
        return None
    curve = risk_coverage(rows)
    steps = np.diff(curve.coverage, prepend=0.0)
    return float(min(1.0, (curve.risk * steps).sum()))


def _by_confidence(rows: ForecastRows) -> tuple[Array, Array]:
    """Losses and weights, surest first, with the means of equal confidences."""
    # Rounded: the same confidence, summed up in another order, differs in its last bits.
    levels, place = np.unique(-rows.confidence.round(12), return_inverse=True)
    counts = np.bincount(place, minlength=len(levels))
    sums = np.bincount(place, rows.weights, len(levels))
    losses = np.bincount(place, rows.weights * (1.0 - exact(rows)), len(levels)) / sums
    return np.repeat(losses, counts), np.repeat(sums / counts, counts)
