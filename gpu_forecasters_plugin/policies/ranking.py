"""Ranking rules: how promising a forecast makes a candidate. Higher is better.

Rules know the belief and the incumbent, never the budget.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import Forecast

__all__ = ["RANKING_RULES", "RankingContext", "RankingRule", "ranking_rule"]


@dataclass(frozen=True)
class RankingContext:
    """What a rule may know beside the forecast.

    Attributes:
        seed: the run's seed.
        pool_id: number of the pool, so that random rules draw anew for each.
        incumbent_log2: log2 speed-up of the best kernel so far over the forecast's anchor.
    """

    seed: int
    pool_id: int
    incumbent_log2: float = 0.0


class RankingRule(ABC):
    """Scores one forecast. Pure: the same arguments give the same score."""

    name: str

    @abstractmethod
    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        """How promising the candidate is; higher is better."""


class ExpectedLog2(RankingRule):
    """Expected log2 speed-up by bin midpoints."""

    name = "expected_log2"

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.expected_log2()


class ExpectedBin(RankingRule):
    """Expected bin number, 1 to 8."""

    name = "expected_bin"

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.expected_bin()


class ProbabilityBetter(RankingRule):
    """P(faster than the incumbent), in [0, 1]."""

    name = "p_better"

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.exceedance(context.incumbent_log2)


@dataclass(frozen=True)
class UpperQuantile(RankingRule):
    """Quantile of log2 speed-up at ``level``: optimism in the face of uncertainty."""

    level: float = 0.95
    name = "upper_quantile"

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"a quantile level lies in (0, 1), got {self.level!r}")

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.quantile(self.level)


class Thompson(RankingRule):
    """One seeded draw of log2 speed-up from the distribution (Thompson 1933)."""

    name = "thompson"

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        uniform = keyed_uniform(context.seed, "thompson", context.pool_id, candidate_key)
        return forecast.quantile(min(max(uniform, 1e-9), 1.0 - 1e-9))


class RandomRanking(RankingRule):
    """Chance: the floor that every forecaster is compared with."""

    name = "random"

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return keyed_uniform(context.seed, "random", context.pool_id, candidate_key)


RANKING_RULES: dict[str, type[RankingRule]] = {
    rule.name: rule
    for rule in (ExpectedLog2, ExpectedBin, ProbabilityBetter, UpperQuantile, Thompson, RandomRanking)
}


def ranking_rule(config: SurrogateConfig) -> RankingRule:
    """The rule that a configuration names."""
    if config.ranking == UpperQuantile.name:
        return UpperQuantile(config.quantile)
    return RANKING_RULES[config.ranking]()
