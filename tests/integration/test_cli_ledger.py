"""``gpu-forecasters ledger`` as a user finds it."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers import Command, candidate, failed, measured, open_gate, surrogate

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastCost, ForecastFailure
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.ledger.summary import summarise


@pytest.fixture
def command(gpu_forecasters: Command) -> Command:
    """``gpu-forecasters ledger``, in this process."""
    return partial(gpu_forecasters, "ledger")


@pytest.fixture
def run(ledger: Ledger, tmp_path: Path) -> Path:
    """Folder of a run of 13 candidates, of which 4 were measured."""
    identity = RunIdentity("sum\x1b[31m[red]", candidate(0).key, device="NVIDIA H100")
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 9}), identity=identity)
    for decision in gate.ask([candidate(number) for number in range(13)]):
        if decision.measure:
            number = int(decision.candidate_id[1:])
            gate.tell(decision.id, failed(Outcome.INCORRECT) if number == 7 else measured(1.0 + number / 8))
    return tmp_path


def test_show_says_what_a_run_did(command: Command, run: Path) -> None:
    said = command("show", run)
    assert said.code == 0 and said.err == ""
    assert "task sum\\x1b[31m[red], device NVIDIA H100" in said.out and "\x1b" not in said.out
    assert "4 of 9 measurements for 13 candidates; best speed-up 2." in said.out
    assert "outcomes 4: 3 ok, 1 incorrect" in said.out
    assert "decided to skip 9: 9 not_selected" in said.out
    assert "the last 13 of 13 decisions" in said.out
    best = said.out.partition("best kernels over time")[2].partition("the last")[0]
    speedups = [float(text) for text in re.findall(r"([\d.]+)x", best)]
    assert speedups[0] == 1.0 and len(speedups) > 1 and speedups == sorted(speedups)


@pytest.mark.parametrize(("limit", "shown"), [("3", 3), ("0", 0), ("99", 13)])
def test_limit_is_how_many_of_the_last_decisions_are_listed(
    command: Command, run: Path, limit: str, shown: int
) -> None:
    table = command("show", run, "--limit", limit).out.partition("of 13 decisions")[2]
    ids = [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
    assert ids == [str(number) for number in range(14 - shown, 14)]


def test_out_leaves_the_numbers_in_files(command: Command, run: Path, tmp_path: Path) -> None:
    assert command("show", run / "ledger.sqlite3", "--out", tmp_path / "a" / "b").code == 0
    summary = json.loads((tmp_path / "a" / "b" / "summary.json").read_text())
    assert (summary["measurements_used"], summary["budget"], summary["gpu_seconds"]) == (4, 9, 4.0)
    rows = [json.loads(line) for line in (tmp_path / "a" / "b" / "decisions.jsonl").read_text().splitlines()]
    assert len(rows) == summary["candidates_considered"] == 13
    assert sum(row["expected_speedup"] is not None for row in rows) == 12, "the reference is never forecast"
    assert summary["best"][-1]["speedup"] == summary["best_speedup"] == max(r["speedup"] or 0 for r in rows)


def test_what_forecasts_cost_and_which_failed_is_said(command: Command, tmp_path: Path) -> None:
    cost = ForecastCost(1.0, 100, 80, 2, 0, 0.5)
    said = [
        Forecast.from_weights([1.0] * 8, cost=cost),
        replace(Forecast.from_weights([1.0] * 8, cost=cost), suspicions=("talks",)),
        ForecastFailure(FailureKind.TIMEOUT, cost=ForecastCost(9.0)),
    ]
    config = surrogate(budget={"gpu_seconds": 9, "count_forecasting": True})
    gate = open_gate(tmp_path, ScriptedForecaster(said), config=config)
    gate.ask([candidate(number) for number in range(1, 4)])
    shown = command("show", tmp_path / "ledger.sqlite3", "--out", tmp_path / "shown")
    assert "failed forecasts 1: 1 timeout" in shown.out
    assert "candidates whose forecast was not to be trusted: 1" in shown.out
    assert "forecast tokens: 200 prompt, 160 cached, 4 completion, 0 reasoning" in shown.out
    assert "forecasting took 1.0 GPU-seconds" in shown.out
    assert "1.0 of 9 s in the evaluator and in forecasting" in shown.out
    assert json.loads((tmp_path / "shown" / "summary.json").read_text())["forecasting"] == {
        "answered": 2,
        "failures": {"timeout": 1},
        "suspicious": 1,
        "seconds": 11.0,
        "prompt_tokens": 200,
        "cached_tokens": 160,
        "completion_tokens": 4,
        "reasoning_tokens": 0,
        "gpu_seconds": 1.0,
    }


def test_a_shared_ledger_shows_the_latest_run_or_the_one_that_is_named(
    command: Command, ledger: Ledger, run: Path
) -> None:
    open_gate(Ledger(ledger.target), run_name="later")
    latest, named = command("show", run), command("show", run, "--run", "run")
    assert "run 'later'" in latest.out and "--run shows another: run, later" in latest.out
    assert "run 'run'" in named.out and "--run" not in named.out


def test_of_many_runs_the_first_are_named_and_the_rest_counted(
    command: Command, ledger: Ledger, run: Path
) -> None:
    for number in range(7):
        open_gate(Ledger(ledger.target), run_name=f"later-{number}")
    said = command("show", run).out
    assert "the latest of 8 runs; --run shows another: run, later-0, " in " ".join(said.split())
    assert "and 3 more" in said and "later-6'" in said


def test_the_table_says_what_its_columns_are_relative_to(command: Command, run: Path) -> None:
    assert "forecast and measured: speed-up over the reference" in command("show", run).out
    assert "confidence: of the bin relative to the best kernel so far" in command("show", run).out
    relative = open_gate(run / "other", config=surrogate(anchor="reference"))
    relative.ask([candidate(1)])
    assert "confidence: of the bin relative to the reference" in command("show", run / "other").out


def test_a_kernel_that_is_measured_again_and_faster_is_listed_once(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(keep_fraction=1.0))
    decisions = gate.ask([candidate(number) for number in range(5)])
    for decision, speedup in zip(decisions, (1.0, 2.0, 2.1, 1.5, 3.0), strict=True):
        gate.tell(decision.id, measured(speedup))
    first, second, again, slower, last = (decision.candidate_key for decision in decisions)
    same = (
        ("UPDATE measurement SET candidate_key = ? WHERE candidate_key = ?", keys)
        for keys in ((second, again), (first, slower))
    )
    with closing(sqlite3.connect(ledger.file)) as connection, connection:
        for statement, keys in same:
            connection.execute(statement, keys)
    found = summarise(ledger)["best"]
    assert [(row["candidate_key"], row["speedup"], row["measurement"]) for row in found] == [
        (first, 1.0, 1),
        (second, 2.1, 3),
        (last, 3.0, 5),
    ]


def test_of_speed_ups_that_read_the_same_the_first_is_shown(
    command: Command, ledger: Ledger, tmp_path: Path
) -> None:
    gate = open_gate(ledger, config=surrogate(keep_fraction=1.0))
    for decision, speedup in zip(
        gate.ask([candidate(number) for number in range(4)]), (1.0, 2.00001, 2.00002, 2.1), strict=True
    ):
        gate.tell(decision.id, measured(speedup))
    said = command("show", tmp_path, "--limit", "0").out
    assert re.findall(r"│ +(\S+)x │", said) == ["1.000", "2.000", "2.100"]


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A folder with two runs below it, and a broken ledger."""
    folder = tmp_path / "cmp"
    for name, count in (("random-0", 3), ("surrogate-0", 5)):
        gate = open_gate(folder / "runs" / name / "run", config=surrogate(task="sum", keep_fraction=1.0))
        for decision in gate.ask([candidate(number) for number in range(count)]):
            gate.tell(decision.id, measured(1.0 + count / 10))
    return folder


def test_on_a_narrow_terminal_lines_are_folded_and_no_number_is_cut_off(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    best = command("show", run).out.partition("best kernels over time")[2].partition("the last")[0]
    assert "…" not in best and "1.000x" in best


def test_of_a_folder_of_many_runs_all_are_listed(command: Command, comparison: Path, tmp_path: Path) -> None:
    said = command("show", comparison, "--out", tmp_path / "out")
    assert said.code == 0 and "runs below" in said.out
    assert re.search(r"runs/random-0/run +│ sum +│ +3 │ +3 │ +1\.300x", said.out)
    assert re.search(r"runs/surrogate-0/run +│ sum +│ +5 │ +5 │ +1\.500x", said.out)
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {name: run["measurements_used"] for name, run in written["runs"].items()} == {
        "runs/random-0/run": 3,
        "runs/surrogate-0/run": 5,
    }


def test_one_of_many_runs_is_shown_by_the_name_of_its_folder(command: Command, comparison: Path) -> None:
    said = command("show", comparison, "--run", "surrogate-0")
    assert said.code == 0 and "5 measurements for 5 candidates" in said.out
    unclear, unknown = (command("show", comparison, "--run", name) for name in ("run", "oracle-0"))
    assert (unclear.code, unknown.code) == (2, 2)
    assert "more than one run 'run' below" in unclear.err and "no run 'oracle-0' below" in unknown.err
    assert "there are: runs/random-0/run, runs/surrogate-0/run" in unclear.err


def test_a_broken_ledger_among_many_does_not_hide_the_others(command: Command, comparison: Path) -> None:
    broken = comparison / "runs" / "z-0" / "ledger.sqlite3"
    broken.parent.mkdir()
    broken.write_text("no database at all, " * 100)
    said = command("show", comparison)
    assert said.code == 1 and "runs/surrogate-0/run" in said.out
    assert said.err.count("\n") == 1 and f"{broken}: file is not a database" in said.err


def test_rows_go_from_ledger_to_ledger(command: Command, run: Path, tmp_path: Path) -> None:
    rows, other = tmp_path / "rows.jsonl.gz", tmp_path / "other.sqlite3"
    assert command("export", run, "--out", rows).out == f"4 rows written to {rows}\n"
    assert command("import", rows, "--ledger", other).out == f"4 rows added to {other}\n"
    assert command("import", rows, "--ledger", other).out.endswith("; 4 were there already\n")
    assert command("export", other, "--out", tmp_path / "again.jsonl.gz").code == 0
    assert rows.read_bytes() == (tmp_path / "again.jsonl.gz").read_bytes()
    assert "has no run, only 4 imported rows" in command("show", other).err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "missing.sqlite3"), 1, "there is no ledger "),
        (("export", "missing.sqlite3", "--out", "rows.jsonl"), 1, "there is no ledger "),
        (("show", "."), 1, "there is no ledger "),
        (("show", "mysql://host/db"), 1, "is not supported"),
        (("import", "missing.jsonl", "--ledger", "new.sqlite3"), 1, "cannot be read: No such file"),
        (("import", "rows.csv", "--ledger", "new.sqlite3"), 2, "ends in .jsonl, .jsonl.gz or .parquet"),
        (("show", "notes.sqlite3"), 1, "holds no ledger"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_one_line_and_makes_no_file(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("notes.sqlite3")) as connection:
        connection.execute("CREATE TABLE note (text)")
    said = command(*arguments)
    assert said.code == code and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and says in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.sqlite3"]
    with closing(sqlite3.connect("notes.sqlite3")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("note",)]


def test_an_unknown_run_is_wrong_use_and_the_others_are_named(command: Command, run: Path) -> None:
    said = command("show", run, "--run", "rnu")
    assert (said.code, said.out) == (2, "") and "no run 'rnu'" in said.err and "there are: run" in said.err


def test_an_export_into_a_missing_folder_is_one_line(command: Command, run: Path) -> None:
    said = command("export", run, "--out", run / "nowhere" / "rows.jsonl")
    assert said.code == 1 and said.err.endswith("cannot be written: No such file or directory\n")


@pytest.mark.parametrize("arguments", [("show",), ("export", "run"), ("import", "rows.jsonl"), ("list",)])
def test_wrong_use_ends_with_code_2(command: Command, arguments: tuple[str, ...]) -> None:
    assert command(*arguments).code == 2


@pytest.mark.parametrize("name", ["show", "export", "import", "upgrade"])
def test_every_subcommand_has_help_with_an_example(command: Command, name: str) -> None:
    said = command(name, "--help")
    assert said.code == 0 and f"Example: gpu-forecasters ledger {name}" in " ".join(said.out.split())


def test_the_help_of_the_group_has_an_example(command: Command) -> None:
    assert "Example: gpu-forecasters ledger show" in " ".join(command("--help").out.split())
