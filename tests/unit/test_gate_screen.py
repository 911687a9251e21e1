from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import by_number, candidate, failed, measured, number_of, peaked, surrogate
from static_profiles import profile_of_bytes

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import load_surrogate_config
from gpu_forecasters_plugin.decision import Action, Outcome, Reason
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import Attempt, Forecast, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters import Forecaster, ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.notes import decision_note
from gpu_forecasters_plugin.screen.pool_screen import PoolScreen, open_screen
from gpu_forecasters_plugin.screen.settings import ScreenConfig
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, invalid, undecided


class FakeScreener:
    """Calls texts invalid that end in an odd number."""

    problem: str | None = None

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False

    def screen(self, codes: Sequence[str], deadline_s: float, **more: Any) -> list[Verdict]:
        self.asked += codes
        number = [int(code.split()[2]) for code in codes]
        return [
            invalid(Fault.COMPILE, "no such thing", 3) if n % 2 else Verdict(Status.VALID) for n in number
        ]

    def close(self) -> None:
        self.closed = True


def gate(ledger: Ledger, screener: Any, policy: str, **section: Any) -> Gate:
    config = surrogate(screen={"policy": policy}, keep_fraction=1.0, **section)
    screen = PoolScreen(screener, config.screen)
    opened = Gate(candidate(0, "reference"), ScriptedForecaster(by_number), ledger, config, screen=screen)
    (decision,) = opened.ask([candidate(0, "reference")], measure_all=True)
    opened.tell(decision.id, measured(1.0))
    return opened


def test_invalid_candidates_are_skipped_and_the_reason_is_told(ledger: Ledger) -> None:
    screener = FakeScreener()
    decisions = gate(ledger, screener, "skip").ask([candidate(n) for n in range(1, 5)])
    assert [decision.action for decision in decisions] == [Action.SKIP, Action.MEASURE] * 2
    assert decisions[0].reason is Reason.INVALID_SOURCE and decisions[0].forecast is None
    assert (
        decision_note(decisions[0]) == "skip: invalid_source; cannot run (compile) at line 3: no such thing"
    )


def test_a_program_that_the_search_starts_from_is_not_screened(ledger: Ledger) -> None:
    screener = FakeScreener()
    opened = gate(ledger, screener, "skip")
    assert screener.asked == []
    assert all(decision.measure for decision in opened.ask([candidate(1), candidate(3)], measure_all=True))


def test_deferred_candidates_are_measured_within_the_budget(ledger: Ledger) -> None:
    opened = gate(ledger, FakeScreener(), "defer", budget={"measurements": 3})
    decisions = opened.ask([candidate(n) for n in (1, 3, 5, 7)])
    assert sum(decision.measure for decision in decisions) == 2
    assert {d.reason for d in decisions} == {Reason.UNCERTAIN, Reason.INVALID_SOURCE}


def test_nothing_is_screened_once_the_budget_is_spent(ledger: Ledger) -> None:
    screener = FakeScreener()
    opened = gate(ledger, screener, "skip", budget={"measurements": 1})
    (decision,) = opened.ask([candidate(1)])
    assert (decision.reason, screener.asked) == (Reason.BUDGET_SPENT, [])


def test_a_gate_ends_the_processes_of_its_screen(ledger: Ledger) -> None:
    screener = FakeScreener()
    gate(ledger, screener, "skip").close()
    assert screener.closed


def test_a_screen_that_decides_nothing_says_so_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    screener = FakeScreener()
    opened = gate(ledger, screener, "skip")
    screener.problem = "the reference cannot be run dry"
    screener.screen = lambda codes, deadline_s, **more: [undecided("?") for _ in codes]  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert all(decision.measure for decision in opened.ask([candidate(1)]) + opened.ask([candidate(3)]))
    assert [record.message for record in caplog.records].count(
        "screening decides nothing in this run: the reference cannot be run dry"
    ) == 1


def test_a_screen_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert open_screen(ScreenConfig(), Candidate("r", "x = 1"), device="?", folder=tmp_path) is None


@pytest.mark.parametrize(("word", "policy"), [("off", "off"), ("'off'", "off"), ("skip", "skip")])
def test_a_policy_is_what_the_yaml_file_says(tmp_path: Path, word: str, policy: str) -> None:
    (tmp_path / "config.yaml").write_text(f"surrogate: {{screen: {{policy: {word}}}}}\n")
    assert load_surrogate_config(tmp_path / "config.yaml").screen.policy == policy


@pytest.mark.parametrize(
    ("section", "device", "says"),
    [
        ({"arch": "sm_90"}, "H100", "set screen.task_file"),
        ({"arch": "sm_90", "task_file": "/nowhere/task.py"}, "H100", "no file"),
        ({"task_file": __file__}, "unknown", "write it: sm_90"),
        ({"task_file": __file__, "arch": "hopper"}, "H100", "unknown architecture"),
    ],
)
def test_a_screen_that_cannot_work_is_refused_at_once(
    tmp_path: Path, section: dict[str, Any], device: str, says: str
) -> None:
    config = ScreenConfig(policy="skip", **section)
    with pytest.raises(ConfigError, match=says):
        open_screen(config, Candidate("r", "x = 1"), device=device, folder=tmp_path)


# -- what forecasters see of it ----------------------------------------------------------------------------------------


class Watching(Forecaster):
    """Notes what it is told; calls everything equal, and odd numbers risky."""

    name = "watching"
    foresees_failure = True

    def __init__(self) -> None:
        self.asked: list[Query] = []
        self.seen: list[Observation] = []
        self.attempts: list[Attempt] = []

    def observe(self, observations: Sequence[Observation]) -> None:
        self.seen = list(observations)

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = list(attempts)

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        self.asked += queries
        risks = [0.4 if number_of(query.candidate_code) % 2 else 0.1 for query in queries]
        return [Forecast(tuple(peaked(6)), p_invalid=risk, p_incorrect=0.05) for risk in risks]


class RecordedVerdicts:
    """Every candidate is valid, and moves as many MiB as its number says."""

    def verdicts(self, candidates: Sequence[Candidate]) -> dict[str, Verdict]:
        asked = [candidate(0), *candidates]
        return {c.key: Verdict(Status.VALID, profile=profile_of_bytes(1 + number_of(c.code))) for c in asked}

    def close(self) -> None:
        pass


def watched(path: Path) -> tuple[Gate, Watching]:
    config = surrogate(
        screen={"policy": "skip"},
        keep_fraction=0.5,
        audit_fraction=0.0,
        deferral={"threshold": None},
        guard={"enabled": False},
    )
    forecaster = Watching()
    ledger = Ledger(path)
    return Gate(candidate(0, "reference"), forecaster, ledger, config, screen=RecordedVerdicts()), forecaster


def test_questions_and_measurements_come_with_their_profiles_also_after_a_resume(tmp_path: Path) -> None:
    opened, first = watched(tmp_path / "ledger.sqlite3")
    with opened:
        (reference,) = opened.ask([candidate(0, "reference")])
        opened.start(reference.id)
        opened.tell(reference.id, measured(1.0))
        decisions = opened.ask([candidate(n) for n in range(2, 10)])
        asked = {number_of(query.candidate_code): query.profile for query in first.asked}
        assert asked == {number: profile_of_bytes(number + 1) for number in range(2, 10)}
        assert all(query.reference_profile == profile_of_bytes(1) for query in first.asked)
        assert {query.screened for query in first.asked} == {"valid"}
        for number, decision in enumerate(d for d in decisions if d.measure):
            opened.start(decision.id)
            opened.tell(decision.id, failed(Outcome.INCORRECT) if number == 0 else measured(2.0))
    resumed, second = watched(tmp_path / "ledger.sqlite3")
    with resumed:
        resumed.ask([candidate(11)])
    profiles = {o.candidate_key: o.profile for o in second.seen}
    expected = {candidate(n).key: profile_of_bytes(n + 1) for n in range(10)}
    assert len(profiles) == 4 and profiles.items() <= expected.items()
    assert sorted(a.ending for a in second.attempts) == ["incorrect", "ok", "ok", "ok", "ok"]
    assert {a.candidate_key: a.profile for a in second.attempts}.items() <= expected.items()


def test_of_equal_candidates_those_that_rather_run_are_measured_and_the_risk_is_kept(tmp_path: Path) -> None:
    opened, _ = watched(tmp_path / "ledger.sqlite3")
    with opened:
        (reference,) = opened.ask([candidate(0, "reference")])
        opened.start(reference.id)
        opened.tell(reference.id, measured(1.0))
        decisions = opened.ask([candidate(n) for n in range(1, 9)])
        assert {int(d.candidate_id[1:]) % 2 for d in decisions if d.measure} == {0}
        for decision in decisions:
            if decision.measure:
                opened.start(decision.id)
                opened.tell(decision.id, measured(1.5))
        results = opened._ledger.results_since(0)
    kept = [result.observation.forecast for result in results if result.observation is not None]
    assert [(f.p_invalid, f.p_incorrect) for f in kept if f is not None] == [(0.1, 0.05)] * 4
