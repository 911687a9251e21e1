"""What every observer keeps."""

from __future__ import annotations

import pytest

from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecast import UNIFORM, FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.ledger import RunIdentity
from gpu_forecasters_plugin.observers import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    Observer,
    RunEnded,
    RunStarted,
)

__all__ = ["ObserverContract", "sample_events"]


def _candidate(number: int, pool: int, time: float) -> list[Event]:
    """What is told of a candidate: every third has no forecast, every fourth fails, every fifth is skipped."""
    name = f"candidate {number}\x1b[31m \ud800"
    key = f"{number:032x}"
    forecast = Forecast(UNIFORM) if number % 3 else ForecastFailure(FailureKind.TIMEOUT, "no answer", "model")
    action = Action.MEASURE if number % 5 else Action.SKIP
    reason = Reason.TOP_FRACTION if number % 5 else Reason.NOT_SELECTED
    decision = Decision(number, name, key, pool, action, reason, 0.5, 0.125, forecast, None)
    events: list[Event] = [
        ForecastMade(time, pool, name, key, forecast, 1.0),
        DecisionTaken(time, pool, decision, 1.0),
    ]
    if decision.measure:
        outcome = Outcome.OK if number % 4 else Outcome.COMPILE_ERROR
        speedup = float(number) if outcome is Outcome.OK else None
        measurement = Measurement(
            outcome, speedup, speedup, 0.5, None if speedup else "no \x00 such \x1b thing"
        )
        best = None if number < 2 else 2.0
        events.append(MeasurementEnded(time + 1.0, number, key, pool, str(reason), measurement, number, best))
    return events


def sample_events(*, resumed: bool = False) -> list[Event]:
    """A small run from its start to its end."""
    identity = RunIdentity("sum", f"{0:032x}", device="NVIDIA H100 80GB HBM3", forecaster="sample", seed=3)
    config = {"budget": {"measurements": 8}, "ranking": "upper_quantile"}
    start = RunStarted(1_700_000_000.0, f"{1:032x}", "run", identity, config, resumed)
    told = [
        event
        for number in range(1, 13)
        for event in _candidate(number, number // 4, 1_700_000_000.0 + number)
    ]
    return [start, *told, RunEnded(1_700_000_100.0, 10, 11.0)]


class ObserverContract:
    """Override :meth:`observer`."""

    @pytest.fixture
    def observer(self) -> Observer:
        """A new observer."""
        raise NotImplementedError("override the fixture observer")

    def test_it_takes_every_event_of_a_run(self, observer: Observer) -> None:
        for event in sample_events():
            observer.notify(event)
        observer.close()

    def test_it_takes_a_run_that_ends_at_once(self, observer: Observer) -> None:
        start, *_, end = sample_events(resumed=True)
        observer.notify(start)
        observer.notify(end)
        observer.close()

    def test_it_can_be_closed_without_an_event(self, observer: Observer) -> None:
        observer.close()
