from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import by_number, candidate, measured, surrogate

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
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
