from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers import Command, candidate, failed, measured, open_gate, peaked, surrogate

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.forecast import Query
from gpu_forecasters_plugin.ledger import Ledger

AUDITED = surrogate(
    anchor="reference",
    audit_fraction=1.0,
    keep_fraction=0.5,
    drift={"enabled": False},
    guard={"enabled": False},
)
RIGHT, WRONG = 1.2, 0.3


def bin_five(query: Query) -> list[float]:
    return peaked(5)


def write_run(ledger: Ledger, pools: int, speedup: float | None = RIGHT, forecast: Any = bin_five) -> None:
    """Pools of eight, half of them measured and all alike: failed where there is no speed-up."""
    gate = open_gate(ledger, forecast, config=AUDITED)
    gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))
    for pool in range(pools):
        for decision in gate.ask([candidate(100 + 8 * pool + i) for i in range(8)]):
            if decision.measure:
                result = failed(Outcome.COMPILE_ERROR) if speedup is None else measured(speedup)
                gate.tell(decision.id, result)


def calibrate(
    run: Command, ledger: Ledger, out: Path, *options: str, target: float = 0.3
) -> tuple[int, dict[str, Any], str, str]:
    said = run("calibrate", "--ledger", ledger.target, "--target-risk", target, "--out", out, *options)
    return said.code, json.loads((out / "summary.json").read_text()), said.out, said.err


def test_a_threshold_with_its_guarantee_is_printed_written_and_drawn(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 10)
    code, summary, out, _ = calibrate(gpu_forecasters, ledger, tmp_path / "out")
    assert code == 0
    contract = {name: summary[name] for name in ("threshold", "coverage", "risk", "n", "method")}
    assert contract == {
        "threshold": 0.0,
        "coverage": 1.0,
        "risk": 0.0,
        "n": 40,
        "method": "betting_anytime_union",
    }
    assert 0.0 < summary["upper_bound"] <= 0.3 and summary["effective_n"] == pytest.approx(40)
    assert [row["threshold"] for row in summary["thresholds"]] == [0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9]
    assert "with 90% confidence at most 0.3 of the forecasts" in out and "guaranteed" in out
    assert (tmp_path / "out" / "thresholds.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_rows_are_counted_and_give_no_threshold(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 2)
    code, summary, _, err = calibrate(gpu_forecasters, ledger, tmp_path, target=0.1)
    assert code == 1 and summary["threshold"] is None and summary["coverage"] is None
    assert "too few rows: 8 drawn at random" in err
    assert f"takes at least {summary['rows_needed']}" in err and summary["rows_needed"] > 8


def test_a_risk_above_the_target_gives_no_threshold_and_says_what_is_known(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 10, WRONG)
    code, summary, _, err = calibrate(gpu_forecasters, ledger, tmp_path)
    assert code == 1 and summary["threshold"] is None
    assert "no threshold has the guarantee: the risk is at most 1 with 90% confidence" in err


@pytest.mark.parametrize("pools", [0, 1])
def test_an_empty_ledger_and_one_pool_are_too_few(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path, pools: int
) -> None:
    write_run(ledger, pools)
    code, summary, _, err = calibrate(gpu_forecasters, ledger, tmp_path)
    assert (code, summary["n"], summary["threshold"]) == (1, 4 * pools, None)
    assert "too few rows" in err


def test_a_run_of_failures_has_no_rows_and_says_so(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 5, None)
    code, summary, out, err = calibrate(gpu_forecasters, ledger, tmp_path)
    assert (code, summary["n"], summary["failures"]) == (1, 0, 20)
    assert "20 that failed" in out and "too few rows: 0" in err


@pytest.mark.parametrize(("mass", "covered"), [(1.0, 1.0), (0.125, 0.0)])
def test_confidences_at_their_limits_are_counted_on_the_right_side(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path, mass: float, covered: float
) -> None:
    write_run(ledger, 10, RIGHT, lambda query: peaked(5, mass))
    _, summary, _, _ = calibrate(gpu_forecasters, ledger, tmp_path)
    assert [row["coverage"] for row in summary["thresholds"]] == [1.0, *[covered] * 7]


def test_a_ledger_that_is_being_written_is_read_up_to_the_first_open_pool(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 10)
    gate = open_gate(ledger, bin_five, config=AUDITED)
    for pool in (10, 11):
        first, *others = [d for d in gate.ask([candidate(100 + 8 * pool + i) for i in range(8)]) if d.measure]
        gate.start(first.id)
        for decision in others:
            gate.tell(decision.id, measured(RIGHT))
    code, summary, out, _ = calibrate(gpu_forecasters, ledger, tmp_path)
    assert (code, summary["n"], summary["under_way"]) == (0, 40, 6)
    assert "6 that wait for a measurement to end" in out


def test_reading_waits_for_no_writer_and_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    write_run(ledger, 10)
    path = str(ledger.target).removeprefix("sqlite:///")
    command = [sys.executable, "-m", "gpu_forecasters_plugin", "calibrate", "--ledger", path]
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE measurement SET speedup = 0.3")
        done = subprocess.run(
            [*command, "--target-risk", "0.3", "--out", str(tmp_path / "out")],
            capture_output=True,
            timeout=180,
        )
        writer.execute("ROLLBACK")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["risk"] == 0.0


def test_other_risks_and_levels_can_be_asked_for(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 10, 1.45)
    assert calibrate(gpu_forecasters, ledger, tmp_path / "bin")[0] == 1
    options = ("--risk", "log2_error", "--bound", "0.8", "--confidence-level", "0.95")
    code, summary, out, _ = calibrate(gpu_forecasters, ledger, tmp_path / "log2", *options)
    assert (code, summary["risk_kind"], summary["bound"], summary["confidence_level"]) == (
        0,
        "log2_error",
        0.8,
        0.95,
    )
    assert "log2 error above 0.8" in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--target-risk", "1.0"], "--target-risk lies between 0 and 1"),
        (["--target-risk", "nan"], "--target-risk lies between 0 and 1"),
        (["--confidence-level", "0"], "--confidence-level lies between 0 and 1"),
        (["--risk", "bins"], "--risk is wrong_bin or log2_error"),
        (["--bound", "1"], "--bound is a setting of --risk log2_error"),
        (["--risk", "log2_error", "--bound", "-1"], "--bound is above 0"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_read(
    gpu_forecasters: Command, tmp_path: Path, options: list[str], complaint: str
) -> None:
    said = gpu_forecasters(
        "calibrate",
        "--ledger",
        tmp_path / "none",
        "--target-risk",
        "0.3",
        "--out",
        tmp_path / "out",
        *options,
    )
    assert said.code == 2 and complaint in said.err and not (tmp_path / "out").exists()


def test_a_ledger_that_is_not_there_is_an_error(gpu_forecasters: Command, tmp_path: Path) -> None:
    said = gpu_forecasters(
        "calibrate", "--ledger", tmp_path / "none", "--target-risk", "0.3", "--out", tmp_path / "out"
    )
    assert said.code == 1 and "there is no ledger" in said.err


def test_of_a_comparisons_folder_the_only_run_is_taken_and_of_several_one_has_to_be_named(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 1)
    written = Path(ledger.target.removeprefix("sqlite:///"))
    runs = [tmp_path / "cmp" / "runs" / name for name in ("a-0", "b-0")]
    command = ("calibrate", "--ledger", tmp_path / "cmp", "--target-risk", "0.3", "--out", tmp_path / "out")
    for run in runs:
        run.mkdir(parents=True)
        with (
            closing(sqlite3.connect(written)) as source,
            closing(sqlite3.connect(run / "ledger.sqlite3")) as copy,
        ):
            source.backup(copy)
        if run is runs[0]:
            assert "too few rows" in gpu_forecasters(*command).err
    said = gpu_forecasters(*command)
    assert said.code == 2
    assert said.err == f"error: {tmp_path}/cmp holds several runs: say --run; there are: runs/a-0, runs/b-0\n"
    exported = gpu_forecasters("ledger", "export", tmp_path / "cmp", "--out", tmp_path / "rows.jsonl")
    assert exported.code == 1
    assert exported.err.endswith(f"; there are: {runs[0]}/ledger.sqlite3, {runs[1]}/ledger.sqlite3\n")


def test_of_many_runs_the_first_are_named_and_the_others_counted(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    for number in range(12):
        folder = tmp_path / "cmp" / f"arm-{number:02d}"
        folder.mkdir(parents=True)
        (folder / "ledger.sqlite3").touch()
    said = gpu_forecasters(
        "calibrate", "--ledger", tmp_path / "cmp", "--target-risk", "0.3", "--out", tmp_path
    )
    assert said.code == 2
    assert said.err.endswith("there are: arm-00, arm-01, arm-02, arm-03, arm-04 and 7 more\n")


def test_help_has_an_example(gpu_forecasters: Command) -> None:
    assert "Example: gpu-forecasters calibrate" in gpu_forecasters("calibrate", "--help").out
