from __future__ import annotations

import math

import pytest

from gpu_forecasters_plugin.decision import FAILURES, Action, Decision, Measurement, Outcome, Reason


@pytest.mark.parametrize("name", ["time_us", "speedup"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_and_speedups_are_positive_and_finite(name: str, value: float) -> None:
    values = {"time_us": 1.0, "speedup": 1.0} | {name: value}
    with pytest.raises(ValueError, match=f"{name} is a positive finite number, got {value!r}"):
        Measurement(Outcome.OK, **values)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_gpu_seconds_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValueError, match="gpu_seconds"):
        Measurement(Outcome.TIMEOUT, gpu_seconds=value)


def test_ok_needs_a_speedup() -> None:
    with pytest.raises(ValueError, match="needs a speedup"):
        Measurement(Outcome.OK, time_us=3.0)


@pytest.mark.parametrize("outcome", sorted(FAILURES))
@pytest.mark.parametrize("name", ["time_us", "speedup"])
def test_a_failure_has_no_time(outcome: Outcome, name: str) -> None:
    with pytest.raises(ValueError, match=f"{outcome} has no time"):
        Measurement(outcome, **{name: 1.0})


def test_every_outcome_but_ok_is_a_failure() -> None:
    assert len(FAILURES) == 7 and Outcome.OK not in FAILURES


def test_only_the_action_says_whether_to_measure() -> None:
    decisions = [Decision(1, "c", "k", 1, action, Reason.AUDIT) for action in (Action.MEASURE, Action.SKIP)]
    assert [decision.measure for decision in decisions] == [True, False]
