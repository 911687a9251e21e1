"""The ranking rules and selection policies that ship with this package."""

from __future__ import annotations

from collections.abc import Callable

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.hookspecs import PolicyFactory, PolicySetup, RankingRuleFactory
from gpu_forecasters_plugin.policies import ranking
from gpu_forecasters_plugin.policies.selection import TopFraction

__all__ = ["POLICIES", "RANKING_RULES"]


def _plain(rule: type[ranking.RankingRule]) -> Callable[[SurrogateConfig], ranking.RankingRule]:
    """For rules without settings."""
    return lambda config: rule()


def _upper_quantile(config: SurrogateConfig) -> ranking.RankingRule:
    return ranking.UpperQuantile(config.quantile)


def _beats_parent(config: SurrogateConfig) -> ranking.RankingRule:
    return ranking.ProbabilityBeatsParent(config.discovery_factor)


def _top_fraction(setup: PolicySetup) -> TopFraction:
    return TopFraction.from_config(setup.config)


RANKING_RULES = (
    RankingRuleFactory("expected_log2", _plain(ranking.ExpectedLog2), summary="expected log2 speed-up"),
    RankingRuleFactory("expected_bin", _plain(ranking.ExpectedBin), summary="expected bin number"),
    RankingRuleFactory(
        "p_better", _plain(ranking.ProbabilityBetter), summary="P(faster than the best so far)"
    ),
    RankingRuleFactory(
        "p_beats_parent", _beats_parent, summary="P(discovery_factor times as fast as its parent)"
    ),
    RankingRuleFactory("upper_quantile", _upper_quantile, summary="a high quantile of log2 speed-up"),
    RankingRuleFactory("thompson", _plain(ranking.Thompson), summary="one draw from the distribution"),
    RankingRuleFactory("random", _plain(ranking.RandomRanking), summary="chance"),
)

POLICIES = (
    PolicyFactory(
        "top_fraction", _top_fraction, summary="the top of a pool, the uncertain, and an audit sample"
    ),
)
