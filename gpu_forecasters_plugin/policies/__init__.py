"""Policies: ranking rules, selection and the guard. They know beliefs and budgets, and call no model."""

from gpu_forecasters_plugin.policies._base import Choice, Member, PoolState, SelectionPolicy
from gpu_forecasters_plugin.policies.guard import trust
from gpu_forecasters_plugin.policies.ranking import RANKING_RULES, RankingContext, RankingRule, ranking_rule
from gpu_forecasters_plugin.policies.selection import MeasureAll, TopFraction, quota

__all__ = [
    "RANKING_RULES",
    "Choice",
    "MeasureAll",
    "Member",
    "PoolState",
    "RankingContext",
    "RankingRule",
    "SelectionPolicy",
    "TopFraction",
    "quota",
    "ranking_rule",
    "trust",
]
