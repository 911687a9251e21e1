"""From forecasts to decisions: the ranking rule scores, the selection policy chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import DeferralConfig, SurrogateConfig
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome
from gpu_forecasters_plugin.history import History
from gpu_forecasters_plugin.ledger import DecisionDraft, PoolDraft
from gpu_forecasters_plugin.policies import (
    ContainedPolicy,
    ContainedRule,
    MeasureAll,
    Member,
    PoolState,
    RankingContext,
    RankingRule,
    SelectionPolicy,
    TopFraction,
    ranking_rule,
    selection_policy,
)

__all__ = ["Chooser"]


class Chooser:
    """Decides which candidates of a pool are measured, from what is believed of them."""

    def __init__(
        self,
        history: History,
        config: SurrogateConfig,
        policy: SelectionPolicy | None = None,
        rule: RankingRule | None = None,
    ) -> None:
        self._history = history
        self._config = config
        instead = TopFraction.from_config(config)
        self._policy = ContainedPolicy(policy or selection_policy(config), instead)
        self._rule = ContainedRule(rule or ranking_rule(config))

    def choose(
        self,
        candidates: Sequence[Candidate],
        outcomes: Mapping[str, ForecastOutcome],
        pool: PoolDraft,
        number: int,
        remaining: int | None,
        *,
        deferral: DeferralConfig | None = None,
        measure_all: bool = False,
    ) -> dict[str, DecisionDraft]:
        """One decision per candidate, by candidate id.

        Args:
            candidates: distinct sources that nothing is known of yet.
            outcomes: what the forecaster said, by candidate key.
            pool: trust and anchor of the pool that they are decided in.
            number: number of that pool in its run.
            remaining: measurements that the budget still allows.
            deferral: the deferral in force for this pool; ``None``: as configured.
            measure_all: measure whatever the forecasts say, as far as the budget goes.
        """
        if not candidates:
            return {}
        members = self._members(candidates, outcomes, pool, number)
        warming_up = self._history.finished < self._config.warm_up
        state = PoolState(number, self._config.seed, remaining, pool.trust, warming_up, deferral)
        policy = MeasureAll() if measure_all else self._policy
        choices = policy.select(list(members.values()), state)
        return {
            candidate.id: DecisionDraft(
                candidate.id,
                candidate.key,
                choices[candidate.key].action,
                choices[candidate.key].reason,
                members[candidate.key].score,
                members[candidate.key].confidence,
                outcomes.get(candidate.key),
                choices[candidate.key].sampling_probability,
                parent_key=candidate.parent_key,
            )
            for candidate in candidates
        }

    def _members(
        self,
        candidates: Sequence[Candidate],
        outcomes: Mapping[str, ForecastOutcome],
        pool: PoolDraft,
        number: int,
    ) -> dict[str, Member]:
        """The candidates as the policy sees them, by key."""
        incumbent = self._history.incumbent_log2(pool.anchor_speedup)
        context = RankingContext(self._config.seed, number, incumbent)
        safest = (
            max((f.p_ok or 0.0 for f in outcomes.values() if isinstance(f, Forecast)), default=0.0) or 1.0
        )
        members: dict[str, Member] = {}
        for candidate in candidates:
            forecast = outcomes.get(candidate.key)
            score = confidence = None
            suspicious = False
            if isinstance(forecast, Forecast):
                parent = self._history.parent_log2(candidate.parent_key, pool.anchor_speedup)
                # What it is worth to measure it, failures included; what is believed of its speed stays as it is.
                lottery = forecast.as_lottery(safest)
                score = self._rule.score(lottery, candidate.key, replace(context, parent_log2=parent))
                confidence = forecast.confidence(self._config.deferral.confidence)
                suspicious = bool(forecast.suspicions)
            members[candidate.key] = Member(candidate.key, score, confidence, suspicious)
        return members
