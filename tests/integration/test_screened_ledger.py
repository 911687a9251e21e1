"""What the compiler said, in the ledger and in all that is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Command, by_number, candidate, failed, measured, number_of, surrogate
from report_pages import write_report

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.screen.pool_screen import PoolScreen
from gpu_forecasters_plugin.screen.profile import LaunchProfile, SourceProfile
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, invalid, undecided

HOSTILE = "\x1b[2J<script>alert(1)</script>\ud800\x00\nNameError: '<img src=x onerror=alert(2)>' \u202e"
LAUNCH = LaunchProfile("rows", "triton", 1, (64, 1, 1), 128, 40, 0, 0, 2048, 1.0, 16, "warps", 0.5, 4096)
VALID = Verdict(Status.VALID, profile=SourceProfile("sm_90", 1, (LAUNCH,), roofline_us=3.5), cpu_seconds=0.5)
REFERENCE = replace(
    VALID, profile=SourceProfile("sm_90", 1, (replace(LAUNCH, registers=255, spill_bytes=96),))
)


class FakeScreener:
    """Says what it is told to, by number of the source."""

    problem: str | None = None

    def __init__(self, says: dict[int, Verdict]) -> None:
        self.says = says

    def screen(self, codes: Sequence[str], deadline_s: float, **more: Any) -> list[Verdict]:
        return [self.says.get(number_of(code), VALID) for code in codes]

    def reference_verdict(self, deadline_s: float) -> Verdict:
        return REFERENCE

    def close(self) -> None:
        pass


def search(ledger: Ledger, says: dict[int, Verdict], numbers: Sequence[int], policy: str = "skip") -> Gate:
    """A run of one pool after its reference: what is measured takes as long as its number says, odd ones raise."""
    config = surrogate(screen={"policy": policy}, keep_fraction=0.5, task="toy")
    reference = candidate(0, "reference")
    screen = PoolScreen(FakeScreener(says), config.screen, reference.key)  # type: ignore[arg-type]
    gate = Gate(reference, ScriptedForecaster(by_number), ledger, config, screen=screen)
    (first,) = gate.ask([reference], measure_all=True)
    gate.tell(first.id, measured(1.0))
    for decision in gate.ask([candidate(number) for number in numbers]):
        if decision.measure:
            number = int(decision.candidate_id[1:])
            ended = failed(Outcome.RUNTIME_ERROR) if number % 2 else measured(1.0 + number)
            gate.tell(decision.id, ended)
    return gate


BAD = {
    2: invalid(Fault.COMPILE, "at 3:7:\n  ^\nNameError: 'foo' is gone", 3, cpu_seconds=1.0),
    4: invalid(Fault.COMPILE, "NameError: 'bar' is gone"),
}


def test_a_verdict_is_in_the_ledger_as_it_was_given(ledger: Ledger) -> None:
    hostile = invalid(Fault.RAISES, HOSTILE, 7, seconds=1.5, sandbox=("namespaces",))
    search(ledger, {2: hostile, 4: undecided("it needs data")}, [2, 4, 6])
    kept = ledger.verdicts()
    assert kept[candidate(2).key] == hostile
    assert kept[candidate(4).key] == undecided("it needs data")
    assert kept[candidate(6).key] == VALID and kept[candidate(0).key] == REFERENCE


def test_a_decided_verdict_replaces_an_undecided_one_and_never_the_other_way(ledger: Ledger) -> None:
    gate = search(ledger, {2: undecided("no verdict by the deadline")}, [2, 4, 6, 8])
    screener = gate._screen._screener  # type: ignore[union-attr]
    screener.says = BAD | {6: undecided("too late")}  # type: ignore[attr-defined]
    gate.ask([candidate(2, "again"), candidate(6, "again too")])
    kept = ledger.verdicts()
    assert kept[candidate(2).key] == BAD[2] and kept[candidate(6).key] == VALID


def test_a_skipped_row_says_why(ledger: Ledger, gpu_forecasters: Command, tmp_path: Path) -> None:
    search(ledger, BAD, [2, 4, 6, 8])
    said = gpu_forecasters("ledger", "show", tmp_path, "--out", tmp_path / "shown")
    assert said.code == 0
    assert "candidates screened 5: 3 valid, 2 invalid" in said.out and "cannot run 2: 2 compile" in said.out
    assert "cannot run: compile" in said.out
    summary = json.loads((tmp_path / "shown" / "summary.json").read_text())["screening"]
    assert summary["reasons"] == [{"fault": "compile", "message": "NameError: 'foo' is gone", "count": 2}]
    assert (summary["kept_from_gpu"], summary["measurements_saved"], summary["missed"]) == (2, 1.0, 0)
    rows = [json.loads(line) for line in (tmp_path / "shown" / "decisions.jsonl").read_text().splitlines()]
    told = {r["candidate_id"]: (r["screen_status"], r["screen_line"], r["screen_message"]) for r in rows}
    assert told["c2"] == ("invalid", 3, BAD[2].message) and told["c6"][0] == "valid"


@pytest.mark.parametrize("policy", ["skip", "defer"])
def test_the_page_tells_what_was_caught_saved_and_missed(
    ledger: Ledger, gpu_forecasters: Command, tmp_path: Path, policy: str
) -> None:
    search(ledger, BAD, [2, 4, 3, 6, 7, 8], policy)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "page.html")
    assert "2 of them (29%) cannot run" in page.text and "NameError: 'foo' is gone" in page.text
    counts = page.data["screening"]
    if policy == "skip":
        assert "2 candidates were kept from the GPU" in page.text and counts["wrongly_invalid"] == 0
        assert "went to candidates that it let pass and that did not build or run" in page.text
    else:
        assert "although the compiler had called the candidate invalid" in page.text
        assert counts["kept_from_gpu"] == 0 and counts["wrongly_invalid"] == 2
    assert "What the compiler made of it, for sm_90" in page.text
    assert re.search(r"spilled bytes per thread 96 0\b", page.text)
    assert page.data["best"]["profile"]["launches"][0]["registers"] == 40


def test_a_page_of_a_run_without_a_screen_says_nothing_of_one(
    ledger: Ledger, gpu_forecasters: Command, tmp_path: Path
) -> None:
    config = surrogate(task="toy")
    gate = Gate(candidate(0, "reference"), ScriptedForecaster(by_number), ledger, config)
    gate.tell(gate.ask([candidate(0, "reference")])[0].id, measured(1.0))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "page.html")
    assert page.data["screening"] is None and "compiler caught" not in page.text


def test_what_a_candidate_makes_a_compiler_say_stays_inert(
    ledger: Ledger, gpu_forecasters: Command, tmp_path: Path
) -> None:
    evil = replace(LAUNCH, kernel=HOSTILE, limited_by=HOSTILE)
    best = replace(VALID, stopped=HOSTILE, profile=SourceProfile("sm_90", 1, (evil,)))
    search(ledger, {2: invalid(Fault.RAISES, HOSTILE), 6: best}, [2, 4, 6, 8])
    said = gpu_forecasters("ledger", "show", tmp_path, "--out", tmp_path / "shown")
    assert said.code == 0 and not set("\x1b\x00\u202e") & set(said.out)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "page.html")
    assert not set("\x1b\x00\u202e") & set(page.html)
    assert [tag for tag, _ in page.tags if tag == "img"] == [] and "<script>alert" not in page.html


def test_a_profile_of_no_usual_size_is_not_kept(ledger: Ledger) -> None:
    many = tuple(replace(LAUNCH, kernel=f"kernel_{number}") for number in range(2000))
    search(ledger, {2: replace(VALID, profile=SourceProfile("sm_90", 1, many))}, [2])
    assert ledger.verdicts()[candidate(2).key] == replace(VALID, profile=None)
