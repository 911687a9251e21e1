from __future__ import annotations

import math
import statistics

import pytest
from helpers import peaked, surrogate

from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.policies import RankingContext, ranking_rule
from gpu_forecasters_plugin.policies.ranking import ProbabilityBeatsParent, UpperQuantile

CONTEXT = RankingContext(seed=3, pool_id=7)
SLOW, FAST = Forecast.from_weights(peaked(2)), Forecast.from_weights(peaked(7))
WIDE = Forecast((0.3, 0.1, 0.05, 0.05, 0.05, 0.05, 0.1, 0.3))


def score(name: str, forecast: Forecast, key: str = "k", context: RankingContext = CONTEXT) -> float:
    return ranking_rule(surrogate(ranking=name)).score(forecast, key, context)


@pytest.mark.parametrize("name", ["expected_log2", "expected_bin", "p_better", "upper_quantile"])
def test_a_faster_forecast_ranks_higher(name: str) -> None:
    assert score(name, FAST) > score(name, SLOW)


def test_expected_log2_and_bin_are_those_of_the_forecast() -> None:
    assert score("expected_log2", WIDE) == WIDE.expected_log2()
    assert score("expected_bin", WIDE) == WIDE.expected_bin()


def test_p_better_is_relative_to_the_incumbent() -> None:
    ahead = RankingContext(3, 7, incumbent_log2=2.0)
    assert score("p_better", FAST) == pytest.approx(FAST.exceedance(0.0))
    assert score("p_better", FAST, context=ahead) == pytest.approx(FAST.exceedance(2.0))


def test_the_upper_quantile_prefers_the_uncertain_of_equal_means() -> None:
    certain = Forecast.from_weights([0, 0, 0, 1, 1, 0, 0, 0])
    assert WIDE.expected_log2() == pytest.approx(certain.expected_log2())
    assert score("upper_quantile", WIDE) > score("upper_quantile", certain)
    rule = ranking_rule(surrogate(ranking="upper_quantile", quantile=0.5))
    assert rule.score(WIDE, "k", CONTEXT) == WIDE.quantile(0.5)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_the_quantile_level_lies_inside_the_unit_interval(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        UpperQuantile(level)


@pytest.mark.parametrize("name", ["thompson", "random"])
def test_draws_are_anew_for_each_key_pool_and_seed(name: str) -> None:
    contexts = [CONTEXT, RankingContext(3, 8), RankingContext(4, 7)]
    draws = {score(name, WIDE, key, context) for key in ("k", "l") for context in contexts}
    assert len(draws) == 6
    assert score(name, WIDE) == score(name, WIDE)


def test_thompson_draws_from_the_distribution() -> None:
    rule = ranking_rule(surrogate(ranking="thompson"))
    draws = [rule.score(WIDE, str(key), CONTEXT) for key in range(2000)]
    for level in (0.2, 0.5, 0.8):
        below = statistics.mean(draw <= WIDE.quantile(level) for draw in draws)
        assert below == pytest.approx(level, abs=0.03)


def test_random_ranking_ignores_the_forecast() -> None:
    assert score("random", FAST) == score("random", SLOW)


def test_p_beats_parent_is_the_chance_to_beat_the_parent_by_the_factor() -> None:
    child = Forecast((0, 0, 0, 0.5, 0, 0.5, 0, 0))
    beside_anchor = RankingContext(3, 7, incumbent_log2=2.0, parent_log2=0.0)
    assert score("p_beats_parent", child, context=beside_anchor) == pytest.approx(0.5)
    # 1.2 times a parent of 2^0.5 lies log2(1.2) = 0.263 of the half octave up in bin 6.
    faster_parent = RankingContext(3, 7, parent_log2=0.5)
    within = 0.5 * (0.5 - math.log2(1.2)) / 0.5
    assert score("p_beats_parent", child, context=faster_parent) == pytest.approx(within)
    lenient = ranking_rule(surrogate(ranking="p_beats_parent", discovery_factor=1.0))
    assert lenient.score(child, "k", faster_parent) == pytest.approx(0.5)


def test_p_beats_parent_takes_the_incumbent_where_the_parent_is_not_known() -> None:
    context = RankingContext(3, 7, incumbent_log2=0.5)
    assert score("p_beats_parent", WIDE, context=context) == pytest.approx(
        WIDE.exceedance(0.5 + math.log2(1.2))
    )


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_discovery_factor_is_positive(factor: float) -> None:
    with pytest.raises(ValueError, match="discovery factor"):
        ProbabilityBeatsParent(factor)
