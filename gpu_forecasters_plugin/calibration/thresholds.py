"""Deferral thresholds for a target risk, with a guarantee that holds at every look.

A forecast is *trusted* when its confidence is at least the threshold; its *loss* is 1 when it was wrong, else
0; the *risk* of a threshold is the mean loss of the forecasts trusted at it. Losses are known for measured
candidates only, and most of those were measured since they looked promising. So the rows used here are those
drawn at random, each with the probability that is in the ledger.

How that is guaranteed, and for which forecasts, stands in :mod:`~gpu_forecasters_plugin.calibration.betting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpu_forecasters_plugin.calibration.audit import AuditRow
from gpu_forecasters_plugin.calibration.betting import bet_logs, needed_log_wealth, row_weight, wealth
from gpu_forecasters_plugin.forecast import ConfidenceKind

__all__ = [
    "METHOD",
    "THRESHOLDS",
    "AuditSample",
    "ThresholdRisk",
    "certified_threshold",
    "risk_table",
    "rows_needed",
]

Array = NDArray[np.float64]

METHOD = "betting_anytime_union"
"""What reports call this method."""

THRESHOLDS: dict[ConfidenceKind, tuple[float, ...]] = {
    "max_prob": (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9),
    "neg_entropy": (0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8),
    "top2_margin": (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.85),
}
"""Thresholds that are tried, by kind of confidence. Fixed beforehand: each one more costs all of them rows."""

_BISECTIONS = 40


@dataclass(frozen=True, eq=False)
class AuditSample:
    """Measured rows that were drawn at random, in any order.

    Attributes:
        confidence: confidence of each row's forecast, in [0, 1]; shape (n,).
        loss: 1 where the forecast was wrong, else 0; shape (n,).
        probability: chance with which each was drawn, in (0, 1]; shape (n,).
        rate: the sampling probability that counts as one, in (0, 1]; fixed before the rows were drawn.

    Raises:
        ValueError: shapes differ, or a number is out of range or not finite.
    """

    confidence: Array
    loss: Array
    probability: Array
    rate: float

    def __post_init__(self) -> None:
        for name in ("confidence", "loss", "probability"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if values.shape != (self.size,) or not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"{name} must be {self.size} numbers in [0, 1], got {values!r}")
        if not np.isin(self.loss, (0.0, 1.0)).all():
            raise ValueError(f"a loss is 0 or 1, got {self.loss!r}")
        if not (self.probability > 0).all() or not 0.0 < self.rate <= 1.0:
            raise ValueError("sampling probabilities and their rate lie in (0, 1]")

    @classmethod
    def of(cls, rows: Sequence[AuditRow], rate: float) -> AuditSample:
        """The sample of a run's audit rows."""
        confidences, losses, probabilities = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(confidences, losses, probabilities, rate)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.confidence)

    @property
    def weight(self) -> Array:
        """What each row counts, in (0, 1]."""
        return row_weight(self.probability, self.rate)

    def trusted(self, thresholds: ArrayLike) -> NDArray[np.bool_]:
        """Whether each row is trusted at each of m thresholds; shape (n, m)."""
        return self.confidence[:, None] >= np.asarray(thresholds, dtype=np.float64)


@dataclass(frozen=True)
class ThresholdRisk:
    """What is known of one threshold.

    Attributes:
        threshold: forecasts at least so confident are trusted.
        n: rows trusted.
        effective_n: (sum of weights)^2 / sum of squared weights of those.
        risk: weighted mean loss of the rows trusted; ``None`` without any.
        upper_bound: the smallest target risk that would be certified: an upper confidence bound of a risk that does
            not change, for all thresholds at once; 1.0 where nothing is known.
        certified: whether the target risk is guaranteed.
    """

    threshold: float
    n: int
    effective_n: float
    risk: float | None
    upper_bound: float
    certified: bool


@dataclass(frozen=True, eq=False)
class _Counted:
    """Rows alike, counted: a ledger of a million rows has a handful of kinds."""

    trusted: NDArray[np.bool_]
    loss: Array
    weight: Array
    count: Array

    @classmethod
    def of(cls, sample: AuditSample, thresholds: tuple[float, ...]) -> _Counted:
        bucket = np.searchsorted(thresholds, sample.confidence, side="right")
        kinds, count = np.unique(
            np.column_stack([bucket, sample.loss, sample.weight]), axis=0, return_counts=True
        )
        # Thresholds ascend: a row of bucket k reaches the first k of them.
        trusted = kinds[:, :1] > np.arange(len(thresholds))
        return cls(trusted, kinds[:, 1], kinds[:, 2], count.astype(np.float64))

    def log_wealth(self, target_risk: float) -> Array:
        """Per threshold; shape (m,)."""
        logs = bet_logs(self.loss, self.weight, target_risk) * self.count[:, None]
        # Not a product with zeros: a lost bet is minus infinity, also for thresholds that do not trust its row.
        return wealth(np.where(self.trusted[:, :, None], logs[:, None, :], 0.0).sum(axis=0))


def _ascending(thresholds: tuple[float, ...]) -> tuple[float, ...]:
    if not thresholds or list(thresholds) != sorted(set(thresholds)):
        raise ValueError(f"thresholds are distinct and ascend, got {thresholds}")
    return thresholds


def certified_threshold(
    sample: AuditSample, target_risk: float, confidence_level: float, thresholds: tuple[float, ...]
) -> float | None:
    """The lowest threshold whose risk is guaranteed to be at most the target; ``None`` when none is.

    Args:
        sample: the rows so far; it may be asked again after every further pool.
        target_risk: R, in (0, 1).
        confidence_level: in (0, 1).
        thresholds: those that are tried, ascending; the same at every look.
    """
    needed = needed_log_wealth(confidence_level, len(_ascending(thresholds)))
    passed = np.flatnonzero(_Counted.of(sample, thresholds).log_wealth(target_risk) >= needed)
    return thresholds[passed[0]] if len(passed) else None


def risk_table(
    sample: AuditSample, target_risk: float, confidence_level: float, thresholds: tuple[float, ...]
) -> list[ThresholdRisk]:
    """What is known of every threshold, ascending; arguments as :func:`certified_threshold`."""
    needed = needed_log_wealth(confidence_level, len(_ascending(thresholds)))
    counted = _Counted.of(sample, thresholds)
    certified = counted.log_wealth(target_risk) >= needed
    bounds = _upper_bounds(counted, needed)
    trusted, weight = sample.trusted(thresholds), sample.weight
    rows = []
    for index, threshold in enumerate(thresholds):
        w = weight[trusted[:, index]]
        total = float(w.sum())
        rows.append(
            ThresholdRisk(
                threshold,
                n=len(w),
                effective_n=total**2 / float((w**2).sum()) if len(w) else 0.0,
                risk=float((w * sample.loss[trusted[:, index]]).sum()) / total if len(w) else None,
                upper_bound=float(bounds[index]),
                certified=bool(certified[index]),
            )
        )
    return rows


def _upper_bounds(counted: _Counted, needed: float) -> Array:
    """By bisection: the wealth rises with the target risk."""
    low, high = np.zeros(counted.trusted.shape[1]), np.ones(counted.trusted.shape[1])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        passed = np.array([counted.log_wealth(risk)[i] >= needed for i, risk in enumerate(middle)])
        low, high = np.where(passed, low, middle), np.where(passed, middle, high)
    return high


def rows_needed(target_risk: float, confidence_level: float, thresholds: int) -> int:
    """Rows that certify a threshold when all of them are trusted, of full weight and without a loss: the fewest."""
    needed = needed_log_wealth(confidence_level, thresholds)
    logs = bet_logs(0.0, 1.0, target_risk)
    low, high = 0, 1
    while wealth(high * logs) < needed:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wealth(middle * logs) >= needed else (middle, high)
    return high
