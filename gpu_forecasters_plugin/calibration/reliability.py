"""Whether confidence means what it says: calibration buckets, and error over confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import exact, log2_error

__all__ = [
    "BUCKETS",
    "ConfidenceGroup",
    "ReliabilityBucket",
    "confidence_groups",
    "ece",
    "monotonicity",
    "reliability_buckets",
]

BUCKETS = 10
"""Confidence buckets of equal width; the last holds 1.0."""

_GROUPS = 5


@dataclass(frozen=True)
class ReliabilityBucket:
    """Forecasts of about the same confidence.

    Attributes:
        low: least confidence in it.
        high: where the next begins; the last holds 1.0.
        n: rows.
        weight: share of all weight that they have.
        confidence: their mean confidence.
        accuracy: share of them whose predicted bin was measured.
    """

    low: float
    high: float
    n: int
    weight: float
    confidence: float
    accuracy: float


def reliability_buckets(rows: ForecastRows) -> tuple[ReliabilityBucket, ...]:
    """The buckets that have rows, by rising confidence; none without rows."""
    confidence, right = rows.confidence, exact(rows)
    place = np.minimum((confidence * BUCKETS).astype(np.intp), BUCKETS - 1)
    total = rows.weights.sum()
    found = []
    for bucket in np.unique(place):
        inside = place == bucket
        weights = rows.weights[inside]
        found.append(
            ReliabilityBucket(
                int(bucket) / BUCKETS,
                (int(bucket) + 1) / BUCKETS,
                int(inside.sum()),
                float(weights.sum() / total),
                float(np.average(confidence[inside], weights=weights)),
                float(np.average(right[inside], weights=weights)),
            )
        )
    return tuple(found)


def ece(rows: ForecastRows) -> float | None:
    """Expected calibration error, in [0, 1]: mean distance of confidence from accuracy over the buckets.

    sum_b w_b |confidence_b - accuracy_b| (Naeini et al. 2015); ``None`` without rows.
    """
    buckets = reliability_buckets(rows)
    if not buckets:
        return None
    return min(1.0, sum(b.weight * abs(b.confidence - b.accuracy) for b in buckets))


@dataclass(frozen=True)
class ConfidenceGroup:
    """About a fifth of the rows, next to each other by confidence.

    Attributes:
        n: rows.
        low: least confidence in it.
        high: largest.
        mean_abs_log2_error: mean distance of the expected from the measured log2 speed-up, in octaves.
        exact: share whose predicted bin was measured.
    """

    n: int
    low: float
    high: float
    mean_abs_log2_error: float
    exact: float


def confidence_groups(rows: ForecastRows, groups: int = _GROUPS) -> tuple[ConfidenceGroup, ...]:
    """Groups of about equally many rows by rising confidence; equal confidences are never parted.

    Returns:
        At most ``groups``; fewer where confidences repeat, none without rows.
    """
    if not len(rows):
        return ()
    confidence = rows.confidence
    limits = np.unique(np.quantile(confidence, np.arange(1, groups) / groups, method="lower"))
    place = np.searchsorted(limits, confidence, side="left")
    errors, right = log2_error(rows), exact(rows)
    return tuple(_group(rows, place == number, errors, right) for number in np.unique(place))


def _group(rows: ForecastRows, inside: NDArray[np.bool_], errors: Array, right: Array) -> ConfidenceGroup:
    confidence, weights = rows.confidence[inside], rows.weights[inside]
    return ConfidenceGroup(
        int(inside.sum()),
        float(confidence.min()),
        float(confidence.max()),
        float(np.average(errors[inside], weights=weights)),
        float(np.average(right[inside], weights=weights)),
    )


def monotonicity(groups: tuple[ConfidenceGroup, ...]) -> float | None:
    """Share of steps to the next more confident group at which the mean log2 error falls, in [0, 1].

    1: who is surer errs less, all the way. An unchanged error counts half; ``None`` with fewer than two groups.
    """
    steps = np.diff([group.mean_abs_log2_error for group in groups])
    if not len(steps):
        return None
    return float(((steps < 0) + 0.5 * (steps == 0)).mean())
