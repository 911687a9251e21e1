"""Ranking rules: how promising a forecast makes a candidate. Higher is better.

Rules know the belief and the incumbent, never the budget.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import Forecast

__all__ = [
    "ExpectedBin",
    "ExpectedLog2",
    "ProbabilityBeatsParent",
    "ProbabilityBetter",
    "RandomRanking",
    "RankingContext",
    "RankingRule",
    "Thompson",
    "UpperQuantile",
]


@dataclass(frozen=True)
class RankingContext:
    """What a rule may know beside the forecast.

    Attributes:
        seed: the run's seed.
        pool_id: number of the pool, so that random rules draw anew for each.
        incumbent_log2: log2 speed-up of the best kernel so far over the forecast's anchor.
        parent_log2: the same of the program that the candidate was derived from; ``None`` where the host does not
            tell, or that program has no measured time.
    """

    seed: int
    pool_id: int
    incumbent_log2: float = 0.0
    parent_log2: float | None = None


class RankingRule(ABC):
    """Scores one forecast. Pure: the same arguments give the same score, a finite number."""

    @abstractmethod
    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        """How promising the candidate is; higher is better."""


class ExpectedLog2(RankingRule):
    """Expected log2 speed-up by bin midpoints."""

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.expected_log2()


class ExpectedBin(RankingRule):
    """Expected bin number, 1 to 8."""

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.expected_bin()


class ProbabilityBetter(RankingRule):
    """P(faster than the incumbent), in [0, 1]."""

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.exceedance(context.incumbent_log2)


@dataclass(frozen=True)
class ProbabilityBeatsParent(RankingRule):
    """P(at least ``factor`` times as fast as its parent), in [0, 1]: what makes a child a discovery.

    The forecast is relative to its anchor, the parent's speed-up over that is measured, and each bin's mass is spread
    evenly over its interval in log2 (:meth:`~gpu_forecasters_plugin.forecast.Forecast.exceedance`). Where the
    parent has no measured time, the best kernel so far takes its place.
    """

    factor: float = 1.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0.0):
            raise ValueError(f"a discovery factor is above 0 and finite, got {self.factor!r}")

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        parent = context.incumbent_log2 if context.parent_log2 is None else context.parent_log2
        return forecast.exceedance(parent + math.log2(self.factor))


@dataclass(frozen=True)
class UpperQuantile(RankingRule):
    """Quantile of log2 speed-up at ``level``: optimism in the face of uncertainty."""

    level: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"a quantile level lies in (0, 1), got {self.level!r}")

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.quantile(self.level)


class Thompson(RankingRule):
    """One seeded draw of log2 speed-up from the distribution (Thompson 1933)."""

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        uniform = keyed_uniform(context.seed, "thompson", context.pool_id, candidate_key)
        return forecast.quantile(min(max(uniform, 1e-9), 1.0 - 1e-9))


class RandomRanking(RankingRule):
    """Chance: the floor that every forecaster is compared with."""

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return keyed_uniform(context.seed, "random", context.pool_id, candidate_key)
