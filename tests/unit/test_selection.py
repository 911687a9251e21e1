from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import pytest

from gpu_forecasters_plugin.config import DeferralConfig
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.policies import Choice, MeasureAll, Member, PoolState, TopFraction, quota


def members(size: int, *, confidence: float | None = 0.9) -> list[Member]:
    """Member i is called m<i> and has score i."""
    return [Member(f"m{i}", float(i), confidence) for i in range(size)]


def policy(**deferral: Any) -> TopFraction:
    return TopFraction(audit_fraction=0.0, deferral=DeferralConfig(**deferral))


def chosen(choices: dict[str, Choice]) -> dict[str, Reason]:
    return {key: choice.reason for key, choice in choices.items() if choice.action is Action.MEASURE}


@pytest.mark.parametrize(
    ("size", "fraction", "slots"),
    [(0, 0.25, 0), (1, 0.25, 1), (4, 0.25, 1), (6, 0.25, 2), (16, 0.25, 4), (10, 1.0, 10), (3, 0.01, 1)],
)
def test_the_quota_is_the_rounded_fraction_and_at_least_one(size: int, fraction: float, slots: int) -> None:
    assert quota(size, fraction) == slots


def test_the_best_by_score_are_measured() -> None:
    choices = policy().select(members(16), PoolState(0, seed=1))
    assert chosen(choices) == dict.fromkeys(["m12", "m13", "m14", "m15"], Reason.TOP_FRACTION)
    assert {choice.reason for choice in choices.values()} == {Reason.TOP_FRACTION, Reason.NOT_SELECTED}


def test_ties_are_drawn_by_seed_and_pool() -> None:
    tied = [Member(f"m{i}", 0.0, 0.9) for i in range(16)]
    picks = {
        tuple(sorted(chosen(policy().select(tied, PoolState(pool, seed)))))
        for pool, seed in ((0, 1), (1, 1), (0, 2))
    }
    assert len(picks) == 3


def test_uncertain_members_take_their_share_within_the_quota() -> None:
    pool = [Member(m.key, m.score, 0.1 if m.key in ("m0", "m1", "m2") else 0.9) for m in members(16)]
    found = chosen(policy(threshold=0.35, share=0.5).select(pool, PoolState(0, seed=1)))
    assert Counter(found.values()) == {Reason.UNCERTAIN: 2, Reason.TOP_FRACTION: 2}
    assert {key for key, reason in found.items() if reason is Reason.TOP_FRACTION} == {"m14", "m15"}


def test_the_deferral_in_force_for_a_pool_goes_before_the_policys_own() -> None:
    wider = DeferralConfig(threshold=0.95, share=1.0)
    found = chosen(policy(threshold=0.35).select(members(16), PoolState(0, seed=1, deferral=wider)))
    assert Counter(found.values()) == {Reason.UNCERTAIN: 4}


def test_the_least_confident_go_first() -> None:
    pool = [Member(f"m{i}", float(i), i / 16) for i in range(16)]
    found = chosen(policy(threshold=0.9, share=0.5).select(pool, PoolState(0, seed=1)))
    assert {key for key, reason in found.items() if reason is Reason.UNCERTAIN} == {"m0", "m1"}


def test_a_confidence_at_the_threshold_is_certain_enough() -> None:
    pool = members(16, confidence=0.35)
    assert Reason.UNCERTAIN not in chosen(policy(threshold=0.35).select(pool, PoolState(0, 1))).values()


def test_without_a_threshold_nobody_is_uncertain() -> None:
    found = chosen(policy(threshold=None).select(members(16, confidence=0.0), PoolState(0, seed=1)))
    assert set(found.values()) == {Reason.TOP_FRACTION}


def test_a_suspicious_forecast_is_deferred_and_never_followed() -> None:
    pool = [Member(m.key, m.score, m.confidence, m.key in ("m14", "m15")) for m in members(16)]
    found = chosen(policy(threshold=None, share=0.25).select(pool, PoolState(0, seed=1)))
    assert Counter(found.values()) == {Reason.UNCERTAIN: 1, Reason.TOP_FRACTION: 3}
    assert {key for key, reason in found.items() if reason is Reason.TOP_FRACTION} == {"m11", "m12", "m13"}


def test_the_suspicious_go_after_those_without_a_forecast_and_before_the_least_confident() -> None:
    pool = [Member("none"), Member("suspicious", 9.0, 1.0, True), Member("unsure", 0.0, 0.0)]
    pool += [Member(f"m{i}", 1.0, 0.9) for i in range(9)]
    for share, wanted in ((1 / 3, {"none"}), (2 / 3, {"none", "suspicious"})):
        found = chosen(policy(share=share).select(pool, PoolState(0, seed=1)))
        assert {key for key, reason in found.items() if reason is not Reason.TOP_FRACTION} == wanted


def test_where_every_forecast_is_suspicious_the_gpu_decides_within_the_quota() -> None:
    pool = [Member(m.key, m.score, m.confidence, True) for m in members(16)]
    found = chosen(policy().select(pool, PoolState(0, seed=1)))
    assert list(found.values()) == [Reason.UNCERTAIN] * 4


def test_on_top_uncertain_members_are_measured_beyond_the_quota() -> None:
    pool = [Member(m.key, m.score, 0.1 if m.key in ("m0", "m1", "m2") else 0.9) for m in members(16)]
    found = chosen(policy(mode="on_top").select(pool, PoolState(0, seed=1)))
    assert Counter(found.values()) == {Reason.TOP_FRACTION: 4, Reason.UNCERTAIN: 3}


def test_on_top_has_its_own_limit() -> None:
    choices = policy(mode="on_top", max_fraction=0.25).select(
        members(16, confidence=0.1), PoolState(0, seed=1)
    )
    assert Counter(chosen(choices).values()) == {Reason.TOP_FRACTION: 4, Reason.UNCERTAIN: 4}


@pytest.mark.parametrize("mode", ["within_quota", "on_top"])
@pytest.mark.parametrize("remaining", [0, 1, 2, 3, 5, 7])
def test_no_mode_overspends_the_budget(mode: str, remaining: int) -> None:
    spending = TopFraction(0.25, 0.5, DeferralConfig(mode=mode, threshold=1.0))  # type: ignore[arg-type]
    choices = spending.select(members(16, confidence=0.1), PoolState(0, 1, remaining))
    assert len(chosen(choices)) <= remaining
    if remaining == 0:
        assert {choice.reason for choice in choices.values()} == {Reason.BUDGET_SPENT}


def test_members_without_a_forecast_are_deferred_before_uncertain_ones() -> None:
    pool = [*members(14, confidence=0.1), Member("blind1"), Member("blind2")]
    found = chosen(policy(share=0.5).select(pool, PoolState(0, seed=1)))
    assert {key for key, reason in found.items() if reason is Reason.NO_FORECAST} == {"blind1", "blind2"}


def test_too_few_forecasts_are_filled_up_by_the_gpu() -> None:
    pool = [Member("m0", 1.0, 0.9), *[Member(f"blind{i}") for i in range(15)]]
    found = chosen(policy(share=0.25).select(pool, PoolState(0, seed=1)))
    assert Counter(found.values()) == {Reason.NO_FORECAST: 3, Reason.TOP_FRACTION: 1}


def test_without_any_forecast_the_quota_is_drawn_by_chance() -> None:
    pool = [Member(f"m{i}") for i in range(16)]
    choices = policy(mode="on_top").select(pool, PoolState(0, seed=1))
    assert list(chosen(choices).values()) == [Reason.FALLBACK] * 4
    assert {c.sampling_probability for c in choices.values() if c.action is Action.MEASURE} == {0.25}


def test_while_warming_up_scores_are_not_followed() -> None:
    seeds = [chosen(policy().select(members(16), PoolState(0, seed, warming_up=True))) for seed in range(20)]
    assert {reason for found in seeds for reason in found.values()} == {Reason.WARM_UP}
    assert all(len(found) == 4 for found in seeds)
    assert len({key for found in seeds for key in found}) > 12


def test_audit_rows_are_a_fair_sample_of_the_whole_pool() -> None:
    audited: Counter[str] = Counter()
    for pool in range(1000):
        choices = TopFraction(0.25, 0.25).select(members(16), PoolState(pool, seed=1))
        audits = [key for key, choice in choices.items() if choice.reason is Reason.AUDIT]
        assert len(audits) == 1 and choices[audits[0]].sampling_probability == 1 / 16
        audited.update(audits)
    assert len(audited) == 16
    # Multinomial with 62.5 expected each: seven standard deviations.
    assert max(abs(count - 62.5) for count in audited.values()) < 7 * math.sqrt(62.5)


def test_a_fractional_audit_share_holds_in_the_mean() -> None:
    counts, declared = [], 0.0
    for pool in range(1000):
        choices = TopFraction(0.25, 0.3).select(members(16), PoolState(pool, seed=1))
        audits = [choice for choice in choices.values() if choice.reason is Reason.AUDIT]
        counts.append(len(audits))
        declared = audits[0].sampling_probability or 0.0
    assert statistics.mean(counts) == pytest.approx(1.2, abs=0.06) and declared == pytest.approx(1.2 / 16)


def test_slots_taken_from_a_distrusted_surrogate_go_to_chance() -> None:
    def audits(trust: float) -> int:
        choices = TopFraction(0.25, 0.25).select(members(16), PoolState(0, 1, None, trust))
        return Counter(chosen(choices).values())[Reason.AUDIT]

    assert [audits(1.0), audits(1 / 3), audits(0.0)] == [1, 3, 4]


def test_measure_all_measures_all_that_the_budget_allows() -> None:
    assert chosen(MeasureAll().select(members(5), PoolState(0, 1))) == dict.fromkeys(
        [f"m{i}" for i in range(5)], Reason.WARM_UP
    )
    choices = MeasureAll().select(members(5), PoolState(0, 1, remaining=2))
    assert Counter(c.reason for c in choices.values()) == {Reason.WARM_UP: 2, Reason.BUDGET_SPENT: 3}
