"""Events as flat rows of plain values, for whoever writes them down."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.observers.events import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    RunEnded,
    RunStarted,
)

__all__ = ["as_row"]


def as_row(event: Event) -> dict[str, Any]:
    """The event with its kind, as JSON takes it; sources and payloads are left to the ledger."""
    match event:
        case RunStarted():
            return {"event": "run_started", **asdict(event)}
        case ForecastMade():
            return {"event": "forecast", **_without(asdict(event), "outcome"), **_outcome(event)}
        case DecisionTaken(decision=decision):
            taken = _without(asdict(decision), "id", "pool_id", "forecast", "answer")
            return {
                "event": "decision",
                "time": event.time,
                "pool_number": event.pool_number,
                "decision_id": decision.id,
                **taken,
                "trust": event.trust,
            }
        case MeasurementEnded(measurement=measurement):
            values = _without(asdict(measurement), "payload")
            return {"event": "measurement", **_without(asdict(event), "measurement"), **values}
        case RunEnded():
            return {"event": "run_ended", **asdict(event)}


def _outcome(event: ForecastMade) -> dict[str, Any]:
    """The forecast or the failure, with the same keys."""
    outcome = event.outcome
    forecast = outcome if isinstance(outcome, Forecast) else None
    failure = None if isinstance(outcome, Forecast) else outcome
    return {
        "probabilities": None if forecast is None else list(forecast.probabilities),
        "predicted_bin": None if forecast is None else forecast.predicted_bin,
        "expected_log2": None if forecast is None else forecast.expected_log2(),
        "failure": None if failure is None else str(failure.kind),
        "failure_detail": None if failure is None else failure.detail,
        "source": outcome.source,
        "suspicions": list(outcome.suspicions),
        "cost": asdict(outcome.cost),
    }


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
