"""Top fraction with audit, deferral and fallback: the policy that a run uses.

Slots of a pool of n candidates: q = max(1, round(keep_fraction * n)), never more than the budget allows. They
are filled in this order: audit (random members of the whole pool, so that audit rows are an unbiased sample of
it), uncertain forecasts, and then the best by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.config import DeferralConfig, SurrogateConfig
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.draws import keyed_uniform, rounded_at_random
from gpu_forecasters_plugin.policies._base import Choice, Member, PoolState, SelectionPolicy

__all__ = ["MeasureAll", "TopFraction", "quota"]


def quota(size: int, keep_fraction: float) -> int:
    """Measured slots of a pool: max(1, round(keep_fraction * size)), halves up; 0 for an empty pool."""
    return max(1, int(keep_fraction * size + 0.5)) if size else 0


class MeasureAll(SelectionPolicy):
    """Measure every member, as far as the budget goes: for programs that a search starts from."""

    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        room = len(members) if state.remaining is None else state.remaining
        measured, spent = Choice(Action.MEASURE, Reason.WARM_UP), Choice(Action.SKIP, Reason.BUDGET_SPENT)
        keys = sorted(member.key for member in members)
        return {key: measured if rank < room else spent for rank, key in enumerate(keys)}


@dataclass(frozen=True)
class TopFraction(SelectionPolicy):
    """Measure the top fraction, the uncertain and an audit sample.

    Attributes:
        keep_fraction: part of the pool that is measured, in (0, 1].
        audit_fraction: part of the measured slots that goes to random members, in [0, 1]. What the guard takes
            from the surrogate is added to it.
        deferral: when a forecast is not trusted, unless the pool's state says otherwise.
    """

    keep_fraction: float = 0.25
    audit_fraction: float = 0.25
    deferral: DeferralConfig = DeferralConfig()

    @classmethod
    def from_config(cls, config: SurrogateConfig) -> TopFraction:
        """The policy that a configuration describes."""
        return cls(config.keep_fraction, config.audit_fraction, config.deferral)

    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        if not members:
            return {}
        if state.remaining is not None and state.remaining <= 0:
            return {member.key: Choice(Action.SKIP, Reason.BUDGET_SPENT) for member in members}
        slots = quota(len(members), self.keep_fraction)
        if state.remaining is not None:
            slots = min(slots, state.remaining)
        # Canonical order first: nothing below may see the order of arrival.
        by_draw = sorted(
            members, key=lambda m: (keyed_uniform(state.seed, "draw", state.pool_id, m.key), m.key)
        )
        if state.warming_up or all(member.score is None for member in members):
            reason = Reason.WARM_UP if state.warming_up else Reason.FALLBACK
            return self._at_random(by_draw, slots, reason)
        rules = state.deferral or self.deferral
        chosen = self._audit(by_draw, slots, state)
        if rules.mode == "within_quota":
            self._defer(by_draw, slots, state, rules, chosen)
        self._fill_by_rank(by_draw, slots, chosen)
        if rules.mode == "on_top":
            self._defer_on_top(by_draw, state, rules, chosen)
        rest = Choice(Action.SKIP, Reason.NOT_SELECTED)
        return {member.key: chosen.get(member.key, rest) for member in members}

    @staticmethod
    def _at_random(by_draw: Sequence[Member], slots: int, reason: Reason) -> dict[str, Choice]:
        measured = Choice(Action.MEASURE, reason, slots / len(by_draw))
        rest = Choice(Action.SKIP, Reason.NOT_SELECTED)
        return {member.key: measured if rank < slots else rest for rank, member in enumerate(by_draw)}

    def _audit(self, by_draw: Sequence[Member], slots: int, state: PoolState) -> dict[str, Choice]:
        share = 1.0 - state.trust * (1.0 - self.audit_fraction)
        expected = share * slots
        drawn = rounded_at_random(expected, keyed_uniform(state.seed, "audit", state.pool_id))
        choice = Choice(Action.MEASURE, Reason.AUDIT, expected / len(by_draw))
        return {member.key: choice for member in by_draw[:drawn]}

    @staticmethod
    def _uncertain(
        by_draw: Sequence[Member], threshold: float | None, chosen: dict[str, Choice]
    ) -> list[tuple[Member, Reason]]:
        """Members to defer: no forecast first, then the suspicious, then the least confident."""
        found: list[tuple[Member, Reason]] = []
        for member in by_draw:
            if member.key in chosen:
                continue
            if member.confidence is None:
                found.append((member, Reason.NO_FORECAST))
            elif member.suspicious or (threshold is not None and member.confidence < threshold):
                found.append((member, Reason.UNCERTAIN))
        # Stable sort: equals keep their seeded draw.
        found.sort(key=lambda pair: _certainty(pair[0]))
        return found

    def _defer(
        self,
        by_draw: Sequence[Member],
        slots: int,
        state: PoolState,
        rules: DeferralConfig,
        chosen: dict[str, Choice],
    ) -> None:
        uniform = keyed_uniform(state.seed, "defer", state.pool_id)
        room = min(slots - len(chosen), rounded_at_random(rules.share * slots, uniform))
        for member, reason in self._uncertain(by_draw, rules.threshold, chosen)[:room]:
            chosen[member.key] = Choice(Action.MEASURE, reason)

    @staticmethod
    def _fill_by_rank(by_draw: Sequence[Member], slots: int, chosen: dict[str, Choice]) -> None:
        rest = [member for member in by_draw if member.key not in chosen]
        ranked = sorted((m for m in rest if m.rank is not None), key=lambda m: -(m.rank or 0.0))
        for member in ranked[: slots - len(chosen)]:
            chosen[member.key] = Choice(Action.MEASURE, Reason.TOP_FRACTION)
        # Too few forecasts to fill the quota: what is left is decided by the GPU.
        for member in [m for m in rest if m.rank is None][: slots - len(chosen)]:
            reason = Reason.NO_FORECAST if member.score is None else Reason.UNCERTAIN
            chosen[member.key] = Choice(Action.MEASURE, reason)

    def _defer_on_top(
        self, by_draw: Sequence[Member], state: PoolState, rules: DeferralConfig, chosen: dict[str, Choice]
    ) -> None:
        room = int(rules.max_fraction * len(by_draw))
        if state.remaining is not None:
            room = min(room, state.remaining - len(chosen))
        for member, reason in self._uncertain(by_draw, rules.threshold, chosen)[:room]:
            chosen[member.key] = Choice(Action.MEASURE, reason)


def _certainty(member: Member) -> float:
    """What uncertain members are ordered by; below 0 where there is nothing to be trusted."""
    if member.confidence is None:
        return -2.0
    return -1.0 if member.suspicious else member.confidence
