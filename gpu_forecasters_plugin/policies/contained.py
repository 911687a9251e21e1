"""Anybody's ranking rule and policy, kept from ending a run or overspending its budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.failure_log import FailureLog
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.policies._base import Choice, Member, PoolState, SelectionPolicy
from gpu_forecasters_plugin.policies.ranking import RankingContext, RankingRule

__all__ = ["ContainedPolicy", "ContainedRule"]


def _named(code: object) -> str:
    return f"{type(code).__module__}.{type(code).__qualname__}"


class ContainedRule:
    """A ranking rule whose failures leave a candidate without a score.

    A score that is no finite number is a failure too: it would compare with nothing.

    Attributes:
        errors: how many scores have failed.
    """

    def __init__(self, inner: RankingRule) -> None:
        self._inner = inner
        self._failures = FailureLog(_named(inner))

    @property
    def errors(self) -> int:
        return self._failures.count

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float | None:
        """The rule's score, or ``None``."""
        try:
            score = float(self._inner.score(forecast, candidate_key, context))
            if not math.isfinite(score):
                raise ValueError(f"a score of {score}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may be anybody's: only the user ends the process
            self._failures.add(error, "the candidate has no score, as if it had no forecast")
            return None
        return score


class ContainedPolicy(SelectionPolicy):
    """A policy that another one stands in for, whenever it raises or breaks a promise of its base class.

    Args:
        inner: the policy.
        instead: who chooses from a pool where it fails.

    Attributes:
        errors: from how many pools the other one has chosen.
    """

    def __init__(self, inner: SelectionPolicy, instead: SelectionPolicy) -> None:
        self._inner = inner
        self._instead = instead
        self._failures = FailureLog(_named(inner))

    @property
    def errors(self) -> int:
        return self._failures.count

    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        try:
            choices = dict(self._inner.select(members, state))
            _check(choices, members, state)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may be anybody's: only the user ends the process
            self._failures.add(error, f"{type(self._instead).__name__} chooses from this pool in its place")
            return self._instead.select(members, state)
        return choices


def _check(choices: dict[str, Choice], members: Sequence[Member], state: PoolState) -> None:
    """Whether a choice is one: anything else would be written into the ledger.

    Raises:
        ValueError: it is not.
    """
    if choices.keys() != {member.key for member in members}:
        raise ValueError(f"{len(choices)} choices that are not those of the {len(members)} members")
    for choice in choices.values():
        if not isinstance(choice, Choice) or not isinstance(choice.action, Action):
            raise ValueError(f"{choice!r} is no choice")
        probability = choice.sampling_probability
        if not isinstance(choice.reason, Reason) or not (probability is None or 0.0 < probability <= 1.0):
            raise ValueError(f"{choice!r} has no reason, or a sampling probability outside (0, 1]")
    measured = sum(choice.action is Action.MEASURE for choice in choices.values())
    if state.remaining is not None and measured > state.remaining:
        raise ValueError(f"{measured} measurements where the budget has {state.remaining} left")
