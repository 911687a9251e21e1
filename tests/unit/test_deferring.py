from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import pytest
from helpers import candidate, measured, open_gate, peaked, surrogate

from gpu_forecasters_plugin.calibration.thresholds import THRESHOLDS
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.deferring import Deferring, ThresholdSource
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import ConfidenceKind, Forecast, Observation
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.summary import summarise, summary_lines

RIGHT, WRONG = 1.2, 0.3
"""Speed-ups in bin 5, where forecasts of these tests have their mass, and in bin 2."""

TARGETED = {"target_risk": 0.3, "threshold": 0.35}


def config(**deferral: object) -> SurrogateConfig:
    return surrogate(deferral=TARGETED | deferral, drift={"enabled": False})


def observations(
    count: int, speedup: float, *, mass: float = 0.9, first_pool: int = 1, probability: float | None = 0.0625
) -> list[Observation]:
    """One per pool, with a forecast of that confidence in bin 5."""
    forecast = Forecast.from_weights(peaked(5, mass))
    return [
        Observation(f"k{first_pool + i}", "", speedup, first_pool + i, forecast, 1.0, probability)
        for i in range(count)
    ]


# -- target risk ------------------------------------------------------------------------------------------------------


def test_the_configured_threshold_is_in_force_until_there_are_rows_enough() -> None:
    deferring = Deferring(config())
    rows = observations(40, RIGHT)
    sources = [deferring.in_force(rows[:count]).source for count in range(41)]
    first = sources.index(ThresholdSource.TARGET_RISK)
    assert 10 < first < 30 and set(sources[:first]) == {ThresholdSource.CONFIGURED}
    assert set(sources[first:]) == {ThresholdSource.TARGET_RISK}
    assert deferring.in_force(rows).rules.threshold == 0.0
    assert Deferring(config()).in_force(rows[: first - 1]).rules.threshold == 0.35


def test_a_threshold_is_fitted_between_good_and_bad_forecasts() -> None:
    rows = observations(40, RIGHT) + observations(40, WRONG, mass=0.45, first_pool=41)
    assert Deferring(config()).in_force(rows).rules.threshold == 0.5


def test_only_rows_that_were_drawn_at_random_count() -> None:
    rows = observations(60, RIGHT, probability=None)
    assert Deferring(config()).in_force(rows).source is ThresholdSource.CONFIGURED


def test_pools_from_the_first_open_one_on_do_not_count_yet() -> None:
    deferring = Deferring(config())
    rows = observations(40, RIGHT)
    assert deferring.in_force(rows, first_open_pool=5).source is ThresholdSource.CONFIGURED
    assert deferring.in_force(rows, first_open_pool=None).source is ThresholdSource.TARGET_RISK


def test_looking_after_every_pool_comes_to_what_one_look_does_whatever_was_late() -> None:
    section = surrogate(deferral=TARGETED)
    rows = (
        observations(30, RIGHT)
        + observations(12, WRONG, first_pool=31)
        + observations(30, RIGHT, first_pool=43)
    )
    deferring = Deferring(section)
    for count in range(len(rows)):
        before = [row for row in rows[: count + 1] if row.pool_id != 20 or count > 50]  # one comes late
        assert deferring.in_force(before) == Deferring(section).in_force(before)


def test_the_log2_error_is_another_risk() -> None:
    rows = observations(60, 1.45, mass=1.0)  # one bin off, a third of an octave from the expected one
    assert Deferring(config()).in_force(rows).source is ThresholdSource.CONFIGURED
    close = config(risk="log2_error", bound=0.5)
    assert Deferring(close).in_force(rows).source is ThresholdSource.TARGET_RISK


@pytest.mark.parametrize("kind", ["max_prob", "neg_entropy", "top2_margin"])
def test_every_kind_of_confidence_has_thresholds_of_its_own(kind: ConfidenceKind) -> None:
    sure, unsure = Forecast.from_weights(peaked(5, 0.9)), Forecast.from_weights(peaked(5, 0.2))
    rows = observations(40, RIGHT) + observations(40, WRONG, mass=0.2, first_pool=41)
    threshold = Deferring(config(confidence=kind)).in_force(rows).rules.threshold
    assert threshold in THRESHOLDS[kind]
    assert threshold is not None and unsure.confidence(kind) < threshold <= sure.confidence(kind)


def test_without_a_target_nothing_is_fitted() -> None:
    in_force = Deferring(surrogate()).in_force(observations(60, RIGHT))
    assert (in_force.source, in_force.rules) == (ThresholdSource.CONFIGURED, surrogate().deferral)


@pytest.mark.parametrize(
    "section", [{"target_risk": 0.0}, {"target_risk": 1.0}, {"risk": "bin"}, {"bound": 0.0}]
)
def test_wrong_targets_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="surrogate.deferral"):
        surrogate(deferral=section)


def test_a_target_without_audit_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="set audit_fraction above 0"):
        surrogate(deferral={"target_risk": 0.2}, audit_fraction=0.0)


# -- drift ------------------------------------------------------------------------------------------------------------


def test_drift_widens_deferral_says_so_once_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    deferring = Deferring(surrogate(deferral={"threshold": 0.3, "share": 0.3, "max_fraction": 0.6}))
    wrong = observations(20, WRONG)
    with caplog.at_level(logging.WARNING):
        for count in (10, 15, 20):
            in_force = deferring.in_force(wrong[:count])
        assert in_force.miscalibrated and in_force.source is ThresholdSource.DRIFT
        rules = in_force.rules
        assert (rules.threshold, rules.share, rules.max_fraction) == (0.65, 0.6, 1.0)
        assert len(caplog.records) == 1 and "have become miscalibrated" in caplog.text
        recovered = deferring.in_force(wrong + observations(60, RIGHT, first_pool=21))
    assert recovered.source is ThresholdSource.CONFIGURED and not recovered.miscalibrated
    assert len(caplog.records) == 2 and "caught up" in caplog.text


def test_a_resumed_run_may_be_harder_to_alarm_than_before(caplog: pytest.LogCaptureFixture) -> None:
    section = surrogate(drift={"false_alarm_rate": 1e-12})
    in_force = Deferring(section, announced=True).in_force(observations(5, WRONG))
    assert in_force.miscalibrated is False and not caplog.records


def test_fewer_settled_rows_than_before_are_seen_as_they_are() -> None:
    deferring = Deferring(config())
    rows = observations(40, RIGHT)
    assert deferring.in_force(rows).source is ThresholdSource.TARGET_RISK
    assert deferring.in_force(rows, first_open_pool=1).source is ThresholdSource.CONFIGURED


def test_fitted_thresholds_wait_while_forecasts_are_miscalibrated() -> None:
    rows = observations(40, RIGHT) + observations(20, WRONG, first_pool=41)
    both = surrogate(deferral=TARGETED | {"target_risk": 0.9})
    assert Deferring(both).in_force(rows).source is ThresholdSource.DRIFT


def test_deferral_that_is_turned_off_stays_off_in_drift() -> None:
    in_force = Deferring(surrogate(deferral={"threshold": None})).in_force(observations(20, WRONG))
    assert in_force.miscalibrated and in_force.rules.threshold is None


def test_nobody_looks_for_drift_when_that_is_turned_off() -> None:
    in_force = Deferring(surrogate(drift={"enabled": False})).in_force(observations(20, WRONG))
    assert in_force.miscalibrated is None and in_force.source is ThresholdSource.CONFIGURED


# -- in a gate --------------------------------------------------------------------------------------------------------


def search(gate: Gate, pools: Sequence[int], speedup: float) -> None:
    """Pools of eight that all measure alike."""
    for pool in pools:
        for decision in gate.ask([candidate(100 + 8 * pool + i) for i in range(8)]):
            if decision.measure:
                gate.tell(decision.id, measured(speedup))


def in_force(ledger: Ledger) -> list[tuple[float | None, str | None, bool | None]]:
    return [(p["threshold"], p["threshold_from"], p["miscalibrated"]) for p in ledger.pool_rows()]


def test_every_pool_in_the_ledger_has_the_threshold_that_it_was_decided_by(ledger: Ledger) -> None:
    section = surrogate(
        anchor="reference",
        deferral={"target_risk": 0.5},
        audit_fraction=1.0,
        keep_fraction=0.5,
        drift={"enabled": False},
    )
    search(open_gate(ledger, lambda query: peaked(5), config=section), range(5), RIGHT)
    rows = in_force(ledger)
    assert rows[0] == (0.35, "configured", None) and rows[-1] == (0.0, "target_risk", None)
    assert [pool["drift_evidence"] for pool in ledger.pool_rows()] == [None] * 5
    summary = summarise(ledger)
    counts = Counter(source for _, source, _ in rows)
    assert summary["deferral"] == {"target_risk": 0.5, "threshold": 0.0, "pools": dict(counts)}
    assert f"target_risk, {counts['configured']} configured; the last 0" in summary_lines(summary)[-1]


def test_a_target_risk_that_no_threshold_ever_had_the_guarantee_of_is_told_at_the_end(ledger: Ledger) -> None:
    section = surrogate(anchor="reference", deferral={"target_risk": 0.1}, drift={"enabled": False})
    search(open_gate(ledger, lambda query: peaked(5), config=section), range(3), RIGHT)
    summary = summarise(ledger)
    assert summary["deferral"]["target_risk"] == 0.1 and set(summary["deferral"]["pools"]) == {"configured"}
    pools = summary["deferral"]["pools"]["configured"]
    assert summary_lines(summary)[-1] == (
        f"no deferral threshold had the guarantee of target_risk 0.1 in any of the {pools} pools: the configured "
        "one was in force, 0.35"
    )


def test_the_same_ledger_gives_the_same_threshold_when_a_run_goes_on(ledger: Ledger) -> None:
    section = surrogate(
        anchor="reference", deferral={"target_risk": 0.5}, audit_fraction=1.0, keep_fraction=0.5
    )
    search(open_gate(ledger, lambda query: peaked(5), config=section), range(3), RIGHT)
    search(open_gate(ledger, lambda query: peaked(5), config=section), [3], RIGHT)
    resumed = in_force(ledger)
    assert resumed[-1][:2] == (0.0, "target_risk")
    search(open_gate(ledger, lambda query: peaked(5), config=section), [4], RIGHT)
    assert in_force(ledger)[-1] == resumed[-1]


def test_a_resumed_run_does_not_announce_the_same_drift_again(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    section = surrogate(anchor="reference", guard={"enabled": False})
    with caplog.at_level(logging.WARNING):
        search(open_gate(ledger, lambda query: peaked(5), config=section), range(6), WRONG)
        assert caplog.text.count("have become miscalibrated") == 1
        search(open_gate(ledger, lambda query: peaked(5), config=section), [6], WRONG)
    assert caplog.text.count("have become miscalibrated") == 1
    assert in_force(ledger)[-1] == ((1 + 0.35) / 2, "drift", True)


def test_a_measurement_under_way_keeps_its_pool_and_later_ones_from_counting(ledger: Ledger) -> None:
    section = surrogate(
        anchor="reference",
        deferral={"target_risk": 0.5},
        audit_fraction=1.0,
        keep_fraction=0.5,
        drift={"enabled": False},
    )
    gate = open_gate(ledger, lambda query: peaked(5), config=section)
    slow, *others = [d for d in gate.ask([Candidate(f"s{i}", f"S = {i}\n") for i in range(8)]) if d.measure]
    gate.start(slow.id)
    for decision in others:
        gate.tell(decision.id, measured(RIGHT))
    search(gate, range(4), RIGHT)
    assert {source for _, source, _ in in_force(ledger)} == {"configured"}
    gate.tell(slow.id, measured(RIGHT))
    search(gate, [4], RIGHT)
    assert in_force(ledger)[-1][1] == "target_risk"


def test_widened_deferral_measures_more_uncertain_candidates(ledger: Ledger) -> None:
    section = surrogate(
        anchor="reference",
        guard={"enabled": False},
        audit_fraction=0.0,
        deferral={"share": 0.5, "threshold": 0.5},
    )
    gate = open_gate(ledger, lambda query: peaked(5, 0.6), config=section)
    search(gate, range(12), WRONG)
    reasons = [(row["pool_number"], row["reason"]) for row in ledger.decisions()]
    before = [reason for pool, reason in reasons if pool == 0]
    after = [reason for pool, reason in reasons if pool == 11]
    assert before.count("uncertain") == 0 and after.count("uncertain") == 2
