from __future__ import annotations

import random
import statistics

import pytest

from gpu_forecasters_plugin.draws import keyed_uniform, rounded_at_random


def test_a_draw_is_fixed_by_seed_and_parts() -> None:
    assert keyed_uniform(3, "audit", 7, "key") == keyed_uniform(3, "audit", 7, "key")
    others = [(4, "audit", 7, "key"), (3, "draw", 7, "key"), (3, "audit", 8, "key"), (3, "audit", 7, "kez")]
    assert len({keyed_uniform(*other) for other in [(3, "audit", 7, "key"), *others]}) == 5


def test_parts_do_not_run_into_each_other() -> None:
    assert keyed_uniform(1, "ab", "c") != keyed_uniform(1, "a", "bc")
    assert keyed_uniform(1, 23) != keyed_uniform(12, 3)


def test_draws_are_uniform() -> None:
    draws = [keyed_uniform(0, number) for number in range(4000)]
    assert 0.0 <= min(draws) and max(draws) < 1.0
    assert statistics.mean(draws) == pytest.approx(0.5, abs=0.02)
    assert statistics.pvariance(draws) == pytest.approx(1 / 12, abs=0.005)


def test_draws_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    keyed_uniform(1, "\ud800")
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("value", "uniform", "expected"),
    [(2.0, 0.0, 2), (2.25, 0.24, 3), (2.25, 0.25, 2), (0.0, 0.0, 0), (0.9, 0.89, 1)],
)
def test_rounding_goes_up_with_the_fraction(value: float, uniform: float, expected: int) -> None:
    assert rounded_at_random(value, uniform) == expected


def test_rounding_keeps_the_expectation() -> None:
    rounded = [rounded_at_random(1.3, keyed_uniform(5, number)) for number in range(4000)]
    assert statistics.mean(rounded) == pytest.approx(1.3, abs=0.03)
