"""The ranking rule and the selection policy that a configuration names, whoever has registered them."""

from __future__ import annotations

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.hookspecs import PolicyFactory, PolicySetup, RankingRuleFactory
from gpu_forecasters_plugin.plugins import made_by, options_of, registry
from gpu_forecasters_plugin.policies._base import SelectionPolicy
from gpu_forecasters_plugin.policies.ranking import RankingRule

__all__ = ["ranking_rule", "selection_policy"]


def ranking_rule(config: SurrogateConfig) -> RankingRule:
    """The rule that ``ranking`` names.

    Raises:
        ConfigError: there is none of that name.
        PluginError: a plugin is broken.
    """
    entry = registry().find(RankingRuleFactory, config.ranking)
    wanted: type[RankingRule] = RankingRule  # type: ignore[type-abstract]
    return made_by(entry, lambda: entry.factory.build(config), wanted)


def selection_policy(config: SurrogateConfig) -> SelectionPolicy:
    """The policy that ``policy`` names.

    Raises:
        ConfigError: there is none of that name, or its options are wrong.
        PluginError: a plugin is broken.
    """
    entry = registry().find(PolicyFactory, config.policy.kind)
    setup = PolicySetup(config, options_of(entry, config.policy.options, "surrogate.policy.options"))
    wanted: type[SelectionPolicy] = SelectionPolicy  # type: ignore[type-abstract]
    return made_by(entry, lambda: entry.factory.build(setup), wanted)
