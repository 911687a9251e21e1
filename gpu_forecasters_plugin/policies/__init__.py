"""Policies: ranking rules, selection and the guard. They know beliefs and budgets, and call no model."""

from gpu_forecasters_plugin.policies._base import Choice, Member, PoolState, SelectionPolicy
from gpu_forecasters_plugin.policies.contained import ContainedPolicy, ContainedRule
from gpu_forecasters_plugin.policies.factory import ranking_rule, selection_policy
from gpu_forecasters_plugin.policies.guard import trust
from gpu_forecasters_plugin.policies.ranking import RankingContext, RankingRule
from gpu_forecasters_plugin.policies.selection import MeasureAll, TopFraction, quota

__all__ = [
    "Choice",
    "ContainedPolicy",
    "ContainedRule",
    "MeasureAll",
    "Member",
    "PoolState",
    "RankingContext",
    "RankingRule",
    "SelectionPolicy",
    "TopFraction",
    "quota",
    "ranking_rule",
    "selection_policy",
    "trust",
]
