"""The extension point of selection policies: one verb, a pool in, a choice per member out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.config import DeferralConfig
from gpu_forecasters_plugin.decision import Action, Reason

__all__ = ["Choice", "Member", "PoolState", "SelectionPolicy"]


@dataclass(frozen=True)
class Member:
    """A candidate of a pool as a policy sees it.

    Attributes:
        key: identity of the candidate.
        score: what the ranking rule gave its forecast; ``None`` without a forecast.
        confidence: confidence of its forecast, in [0, 1]; ``None`` without a forecast.
        suspicious: its forecast is not to be followed, whatever its score and confidence.
    """

    key: str
    score: float | None = None
    confidence: float | None = None
    suspicious: bool = False

    @property
    def rank(self) -> float | None:
        """The score that it competes with; ``None`` where there is none, or none to be trusted."""
        return None if self.suspicious else self.score


@dataclass(frozen=True)
class PoolState:
    """What a policy may know beside the members.

    Attributes:
        pool_id: number of the pool in its run.
        seed: the run's seed.
        remaining: measurements that the budget still allows; ``None`` without a limit.
        trust: share of its slots that the surrogate keeps, in [0, 1] (see :func:`~.guard.trust`).
        warming_up: whether forecasts are not to be followed yet.
        deferral: when a forecast is not trusted in this pool; ``None``: as the policy was configured.
    """

    pool_id: int
    seed: int
    remaining: int | None = None
    trust: float = 1.0
    warming_up: bool = False
    deferral: DeferralConfig | None = None


@dataclass(frozen=True)
class Choice:
    """What a policy wants done with a member, and why.

    Attributes:
        action: measure or skip.
        reason: why.
        sampling_probability: for a member drawn at random: the chance with which it was, in (0, 1]. Guarantees rest on
            it: the draw knows nothing of how measurements turn out, and draws of a pool are independent, or those of
            a sample without replacement. ``None`` for every other member.
    """

    action: Action
    reason: Reason
    sampling_probability: float | None = None


class SelectionPolicy(ABC):
    """Chooses which members of a pool are measured.

    Promises: pure (no model, no clock, no global randomness); the answer does not depend on the order of the
    members; never more ``measure`` than ``state.remaining``.
    """

    @abstractmethod
    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        """One choice per member, by key.

        Args:
            members: distinct candidates of one pool.
            state: budget, trust and seed.
        """
