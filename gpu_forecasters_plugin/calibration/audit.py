"""The audit rows of a run: measured candidates that were drawn at random, as its forecasts foretold them."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_forecasters_plugin.calibration.losses import ForecastLoss
from gpu_forecasters_plugin.forecast import ConfidenceKind, Observation

__all__ = ["AuditRow", "audit_rows", "nominal_rate"]

AuditRow = tuple[float, float, float]
"""Confidence of a forecast, its loss, and the sampling probability of its candidate."""


def nominal_rate(keep_fraction: float, audit_fraction: float) -> float:
    """Sampling probability of audit rows in a pool of ordinary size: what counts as weight 1.

    Args:
        keep_fraction: part of a pool that is measured.
        audit_fraction: part of that which is drawn at random; 0 where only warm-up or the guard draw any.
    """
    return keep_fraction * (audit_fraction or 1.0)


def audit_rows(
    observations: Iterable[Observation], loss: ForecastLoss, confidence: ConfidenceKind
) -> list[AuditRow]:
    """The rows among a run's observations that were drawn at random and had a forecast to be trusted or not.

    Args:
        observations: measured candidates; those of a pool all, or none of them.
        loss: when a forecast was wrong.
        confidence: which confidence is compared with thresholds.
    """
    return [
        (o.forecast.confidence(confidence), loss.of(o.forecast, o.relative_speedup), o.sampling_probability)
        for o in observations
        if o.forecast is not None and o.sampling_probability is not None
    ]
