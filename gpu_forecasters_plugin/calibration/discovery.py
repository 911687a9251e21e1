"""Whether forecasts find the children that beat their parent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows, exceedance

__all__ = ["DISCOVERY_THRESHOLDS", "Discovery", "discoveries", "discovery"]

DISCOVERY_THRESHOLDS = (1.1, 1.2, 1.5, 2.0)
"""How many times as fast as its parent a child has to be."""

_CALLED = 0.5
"""Probability from which a discovery is called one."""


@dataclass(frozen=True, eq=False)
class Discovery:
    """Precision and recall of one threshold.

    Attributes:
        threshold: a discovery is at least this many times as fast.
        n: rows.
        found: measured discoveries.
        called: forecasts that give one a probability of at least a half.
        precision: share of discoveries among those called; ``None`` when none is.
        recall: share of discoveries that are called; ``None`` when there are none.
        average_precision: area under the precision-recall curve; ``None`` when there are no discoveries. Chance has
            the share of discoveries.
        curve_recall: of calling the k most probable, equal probabilities at once; shape (m,).
        curve_precision: likewise; shape (m,).
    """

    threshold: float
    n: int
    found: int
    called: int
    precision: float | None
    recall: float | None
    average_precision: float | None
    curve_recall: Array
    curve_precision: Array

    def summary(self) -> dict[str, float | int | None]:
        """The numbers, without the curve."""
        names = ("n", "found", "called", "precision", "recall", "average_precision")
        return {name: getattr(self, name) for name in names}


def discovery(rows: ForecastRows, threshold: float) -> Discovery:
    """Precision and recall of rows whose speed-ups are relative to the parent (or to whatever is to be beaten).

    Args:
        rows: at least ``threshold`` times as fast counts as a discovery.
        threshold: above 0.
    """
    happened = rows.log2_speedups >= np.log2(threshold) - 1e-12
    probability = exceedance(rows.probabilities, float(np.log2(threshold))).round(12)
    called = probability >= _CALLED
    hits = float(rows.weights[happened & called].sum())
    weight_called, weight_found = float(rows.weights[called].sum()), float(rows.weights[happened].sum())
    recalls, precisions = _curve(rows.weights, happened.astype(np.float64), probability)
    return Discovery(
        threshold,
        len(rows),
        int(happened.sum()),
        int(called.sum()),
        hits / weight_called if weight_called else None,
        hits / weight_found if weight_found else None,
        float((np.diff(recalls, prepend=0.0) * precisions).sum()) if weight_found else None,
        recalls,
        precisions,
    )


def _curve(weights: Array, happened: Array, probability: Array) -> tuple[Array, Array]:
    """Recall and precision of calling all that are at least so probable; empty when nothing happened."""
    if not happened.any():
        return np.empty(0), np.empty(0)
    levels, place = np.unique(-probability, return_inverse=True)
    hits = np.bincount(place, weights * happened, len(levels)).cumsum()
    called = np.bincount(place, weights, len(levels)).cumsum()
    return hits / hits[-1], hits / called


def discoveries(rows: ForecastRows) -> tuple[Discovery, ...]:
    """:func:`discovery` at each of :data:`DISCOVERY_THRESHOLDS`."""
    return tuple(discovery(rows, threshold) for threshold in DISCOVERY_THRESHOLDS)
