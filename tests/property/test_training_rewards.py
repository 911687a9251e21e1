"""What rewards promise for all forecasts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.training.rewards import (
    INFRASTRUCTURE,
    REWARDS,
    RewardName,
    calibration_reward,
    reward,
)

WEIGHTS = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).filter(lambda w: sum(w) > 0.01)
CALIBRATED: list[RewardName] = ["correctness_brier", "correctness_crps", "correctness_log"]


def distribution(weights: list[float]) -> list[float]:
    return [weight / math.fsum(weights) for weight in weights]


def hard(number: int) -> list[float]:
    return [float(place == number) for place in range(8)]


def expected(name: RewardName, forecast: list[float], truth: list[float]) -> float:
    return math.fsum(q * calibration_reward(name, forecast, hard(b)) for b, q in enumerate(truth))


@given(WEIGHTS, WEIGHTS, st.sampled_from(CALIBRATED))
def test_in_expectation_no_forecast_is_paid_more_for_calibration_than_the_true_one(
    forecast: list[float], truth: list[float], name: RewardName
) -> None:
    p, q = distribution(forecast), distribution(truth)
    assert expected(name, q, q) >= expected(name, p, q) - 1e-9


@given(WEIGHTS, st.sampled_from(CALIBRATED))
def test_a_forecast_that_differs_is_paid_less(truth: list[float], name: RewardName) -> None:
    q = distribution(truth)
    p = distribution([weight + (0.5 if place == 0 else 0.0) for place, weight in enumerate(q)])
    if max(abs(a - b) for a, b in zip(p, q, strict=True)) > 0.01:
        assert expected(name, q, q) > expected(name, p, q)


@given(WEIGHTS, st.integers(0, 7), st.sampled_from(REWARDS))
def test_every_reward_is_finite_and_no_forecast_is_worth_less_than_none(
    forecast: list[float], number: int, name: RewardName
) -> None:
    value = reward(name, Forecast(tuple(distribution(forecast))), hard(number))
    assert value is not None and 0.0 <= value <= 2.0


@given(WEIGHTS, WEIGHTS, st.sampled_from(REWARDS))
def test_a_soft_truth_is_the_expectation_over_what_the_truth_may_be(
    forecast: list[float], truth: list[float], name: RewardName
) -> None:
    p, q = Forecast(tuple(distribution(forecast))), distribution(truth)
    each = [reward(name, p, hard(b)) for b in range(8)]
    assert reward(name, p, q) == pytest.approx(sum(w * (r or 0.0) for w, r in zip(q, each, strict=True)))


@pytest.mark.parametrize("kind", FailureKind)
def test_an_unreadable_answer_earns_nothing_and_a_failed_server_says_nothing(kind: FailureKind) -> None:
    expected = None if kind in INFRASTRUCTURE else 0.0
    assert [reward(name, ForecastFailure(kind), hard(0)) for name in REWARDS] == [expected] * len(REWARDS)


def test_published_definitions_hold_by_hand() -> None:
    p = Forecast((0.0, 0.0, 0.0, 0.0, 0.6, 0.4, 0.0, 0.0))
    assert reward("correctness", p, hard(4)) == 1.0
    assert reward("correctness", p, hard(5)) == 0.0
    assert reward("correctness_brier", p, hard(4)) == pytest.approx(1 + 1 - 0.5 * (0.4**2 + 0.4**2))
    assert reward("correctness_crps", p, hard(5)) == pytest.approx(0 + 1 - 0.6**2 / 7)
    assert reward("correctness_log", p, hard(5)) == pytest.approx(1 + math.log(0.4) / math.log(1e12))
    assert reward("correctness_log", p, hard(0)) == 0.0
