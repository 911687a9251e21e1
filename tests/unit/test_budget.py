from __future__ import annotations

import math

import pytest

from gpu_forecasters_plugin.budget import Budget
from gpu_forecasters_plugin.ledger import BudgetUse


@pytest.mark.parametrize("limits", [{"measurements": 0}, {"measurements": -1}])
def test_a_budget_is_at_least_one_measurement(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Budget(**limits)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_gpu_seconds_are_above_zero(seconds: float) -> None:
    with pytest.raises(ValueError, match="gpu_seconds"):
        Budget(gpu_seconds=seconds)


def test_without_a_limit_there_is_always_more() -> None:
    assert Budget().remaining(BudgetUse(10_000, 0, 1e9), reserved=50) is None


def test_charges_and_reservations_count() -> None:
    budget = Budget(measurements=10)
    assert budget.remaining(BudgetUse()) == 10
    assert budget.remaining(BudgetUse(4, 2, 9.0), reserved=3) == 3
    assert budget.remaining(BudgetUse(10, 0, 9.0), reserved=3) == 0


def test_an_unknown_price_lets_one_call_go_at_a_time() -> None:
    budget = Budget(gpu_seconds=60.0)
    assert budget.remaining(BudgetUse()) == 1
    assert budget.remaining(BudgetUse(), reserved=1) == 0
    assert budget.remaining(BudgetUse(1, 1, 0.0)) == 0


def test_seconds_left_are_turned_into_calls_at_the_mean_price() -> None:
    budget = Budget(gpu_seconds=60.0)
    assert budget.remaining(BudgetUse(2, 0, 20.0)) == 4
    assert budget.remaining(BudgetUse(3, 1, 20.0), reserved=1) == 2
    assert budget.remaining(BudgetUse(2, 0, 59.0)) == 1  # a call is let start while any are left
    assert budget.remaining(BudgetUse(2, 0, 60.0)) == 0
    assert budget.remaining(BudgetUse(2, 0, 75.0)) == 0


def test_the_tighter_limit_counts() -> None:
    assert Budget(3, 60.0).remaining(BudgetUse(2, 0, 20.0)) == 1
    assert Budget(30, 60.0).remaining(BudgetUse(2, 0, 20.0)) == 4


def test_forecasting_counts_where_it_is_to() -> None:
    use = BudgetUse(2, 0, 20.0, forecast_gpu_seconds=15.0)
    assert Budget(gpu_seconds=60.0).remaining(use, forecast_gpu_seconds=5.0) == 4
    counting = Budget(gpu_seconds=60.0, count_forecasting=True)
    assert counting.remaining(use, forecast_gpu_seconds=5.0) == 2
    assert counting.remaining(use, forecast_gpu_seconds=25.0) == 0
