"""What every selection policy and every ranking rule keeps."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.forecast import UNIFORM, Forecast
from gpu_forecasters_plugin.policies import (
    Choice,
    Member,
    PoolState,
    RankingContext,
    RankingRule,
    SelectionPolicy,
)
from gpu_forecasters_plugin.testing.samples import randomness_untouched

__all__ = ["PolicyContract", "RankingRuleContract"]


def _member(index: int, seed: int) -> Member:
    """A candidate with a forecast, without one, or with one that is not to be trusted."""
    draw = random.Random(f"{seed}/{index}")
    kind = draw.random()
    key = f"{draw.getrandbits(64):016x}"
    if kind < 0.15:
        return Member(key)
    return Member(key, draw.gauss(0.0, 1.0), draw.uniform(0.13, 1.0), suspicious=kind > 0.9)


def _pools() -> Iterator[tuple[list[Member], PoolState]]:
    """Pools of all sizes under every kind of circumstance."""
    sizes, budgets, trusts = (1, 2, 5, 16, 64), (None, 0, 1, 3, 1000), (0.0, 0.4, 1.0)
    for number, (size, remaining, trust) in enumerate(itertools.product(sizes, budgets, trusts)):
        members = [_member(index, number) for index in range(size)]
        for warming_up in (False, True):
            yield members, PoolState(number, 7, remaining, trust, warming_up)
    yield [Member(f"{i:032x}") for i in range(8)], PoolState(0, 7)
    yield [Member(f"{i:032x}", 0.0, 0.5) for i in range(8)], PoolState(0, 7)


class PolicyContract:
    """Override :meth:`policy`."""

    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        """The policy."""
        raise NotImplementedError("override the fixture policy")

    def test_every_member_gets_one_choice_with_a_reason(self, policy: SelectionPolicy) -> None:
        for members, state in _pools():
            choices = policy.select(members, state)
            assert choices.keys() == {member.key for member in members}
            for choice in choices.values():
                assert isinstance(choice, Choice)
                assert isinstance(choice.action, Action) and isinstance(choice.reason, Reason)
        assert policy.select([], PoolState(0, 0)) == {}

    def test_it_never_measures_more_than_the_budget_has_left(self, policy: SelectionPolicy) -> None:
        for members, state in _pools():
            measured = [c for c in policy.select(members, state).values() if c.action is Action.MEASURE]
            assert state.remaining is None or len(measured) <= state.remaining, state

    def test_the_order_of_arrival_does_not_matter(self, policy: SelectionPolicy) -> None:
        for members, state in _pools():
            expected = policy.select(members, state)
            shuffled = random.Random(state.pool_id).sample(members, len(members))
            assert policy.select(shuffled, state) == expected
            assert policy.select(members, state) == expected, "the same pool, asked again, is another"

    def test_forecasts_are_not_followed_while_a_run_warms_up(self, policy: SelectionPolicy) -> None:
        for members, state in _pools():
            if state.warming_up and all(member.score is not None for member in members):
                mirrored = [
                    Member(m.key, -(m.score or 0.0), 1.13 - (m.confidence or 0.0), not m.suspicious)
                    for m in members
                ]
                assert policy.select(mirrored, state) == policy.select(members, state)

    def test_sampling_probabilities_are_chances_of_members_that_were_drawn(
        self, policy: SelectionPolicy
    ) -> None:
        for members, state in _pools():
            for choice in policy.select(members, state).values():
                if choice.sampling_probability is not None:
                    assert choice.action is Action.MEASURE
                    assert 0.0 < choice.sampling_probability <= 1.0
                assert choice.reason is not Reason.AUDIT or choice.sampling_probability is not None

    def test_it_leaves_global_randomness_alone(self, policy: SelectionPolicy) -> None:
        with randomness_untouched():
            for members, state in _pools():
                policy.select(members, state)


def _peaked(index: int) -> Forecast:
    return Forecast(tuple(0.93 if i == index else 0.01 for i in range(N_BINS)))


_FORECASTS = (
    *(_peaked(index) for index in range(N_BINS)),
    Forecast(UNIFORM),
    Forecast((1.0, *([0.0] * (N_BINS - 1)))),
    Forecast((*([0.0] * (N_BINS - 1)), 1.0)),
    Forecast((0.5, *([0.0] * (N_BINS - 2)), 0.5)),
)
_CONTEXTS = (
    RankingContext(0, 0),
    RankingContext(3, 17, incumbent_log2=2.5),
    RankingContext(2**62, 10**6, incumbent_log2=-9.0),
)


class RankingRuleContract:
    """Override :meth:`rule`.

    Attributes:
        follows_forecasts: whether a faster forecast ranks higher; not for chance.
    """

    follows_forecasts = True

    @pytest.fixture
    def rule(self) -> RankingRule:
        """The rule."""
        raise NotImplementedError("override the fixture rule")

    def test_a_score_is_a_finite_number_and_the_same_each_time(self, rule: RankingRule) -> None:
        for forecast, context in itertools.product(_FORECASTS, _CONTEXTS):
            score = rule.score(forecast, "key", context)
            assert math.isfinite(score)
            assert rule.score(forecast, "key", context) == score

    def test_a_faster_forecast_ranks_higher(self, rule: RankingRule) -> None:
        if not self.follows_forecasts:
            pytest.skip("this rule does not follow forecasts")
        scores = [rule.score(_peaked(index), "key", RankingContext(0, 0)) for index in (1, 6)]
        assert scores[0] < scores[1]

    def test_it_leaves_global_randomness_alone(self, rule: RankingRule) -> None:
        with randomness_untouched():
            for forecast, context in itertools.product(_FORECASTS, _CONTEXTS):
                rule.score(forecast, "key", context)
