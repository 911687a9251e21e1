"""Every selection policy and ranking rule that ships keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers import surrogate

from gpu_forecasters_plugin.hookspecs import PolicyFactory, RankingRuleFactory
from gpu_forecasters_plugin.plugins import registry
from gpu_forecasters_plugin.policies import (
    Choice,
    ContainedPolicy,
    MeasureAll,
    Member,
    PoolState,
    RankingRule,
    SelectionPolicy,
    TopFraction,
    ranking_rule,
    selection_policy,
)
from gpu_forecasters_plugin.testing import PolicyContract, RankingRuleContract

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "on_top": {"deferral": {"mode": "on_top", "threshold": 0.6}},
    "no_deferral": {"deferral": {"threshold": None}, "audit_fraction": 0.0},
    "all_audit": {"audit_fraction": 1.0},
    "keep_all": {"keep_fraction": 1.0},
}


class Broken(SelectionPolicy):
    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("kind", registry().names(PolicyFactory))
@pytest.mark.parametrize("name", SETTINGS)
class TestConfigured(PolicyContract):
    @pytest.fixture
    def policy(self, kind: str, name: str) -> SelectionPolicy:
        return selection_policy(surrogate(policy={"kind": kind}, **SETTINGS[name]))


class TestMeasureAll(PolicyContract):
    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        return MeasureAll()


class TestContainedPolicy(PolicyContract):
    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        return ContainedPolicy(Broken(), TopFraction())


@pytest.mark.parametrize("name", registry().names(RankingRuleFactory))
class TestRankingRules(RankingRuleContract):
    @pytest.fixture
    def rule(self, name: str) -> RankingRule:
        self.follows_forecasts = name not in ("thompson", "random")
        return ranking_rule(surrogate(ranking=name))
