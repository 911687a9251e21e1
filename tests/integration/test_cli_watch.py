"""``gpu-forecasters watch`` as a user finds it: a run in one process, the watcher in another."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from helpers import (
    Command,
    Said,
    candidate,
    failed,
    measured,
    number_of,
    open_gate,
    peaked,
    surrogate,
    wait_until,
)
from rich.console import Console

from gpu_forecasters_plugin.cli.watch.frame import duration, frame
from gpu_forecasters_plugin.cli.watch.target import RunState, WatchTarget
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.folder_lock import hold_folder, is_held, release_folder
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastCost, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity

COST = ForecastCost(0.5, 1000, 800, 20, 0, 0.25)


def answer(query: Query) -> Forecast | ForecastFailure:
    """A language model's, of which every fifth is none."""
    number = number_of(query.candidate_code)
    if number % 5 == 4:
        return ForecastFailure(FailureKind.TIMEOUT, "no answer", cost=COST)
    return Forecast.from_weights(peaked(number % 8 + 1, 0.8), cost=COST)


def measure_pool(gate: Gate, numbers: range) -> None:
    for decision in gate.ask([candidate(number) for number in numbers]):
        if decision.measure and gate.start(decision.id):
            number = int(decision.candidate_id[1:])
            gate.tell(decision.id, failed(Outcome.INCORRECT) if number == 7 else measured(1.0 + number / 8))


@pytest.fixture
def run(ledger: Ledger, tmp_path: Path) -> Iterator[Path]:
    """Folder of a run that goes on: 4 of 9 measurements made, for 13 candidates."""
    hold_folder(tmp_path)
    identity = RunIdentity(
        "sum\x1b[31m[red]", candidate(0).key, device="H100", forecaster="gpt", model="oss", seed=3
    )
    config = surrogate(budget={"measurements": 9, "gpu_seconds": 100})
    gate = open_gate(ledger, ScriptedForecaster(answer), config=config, identity=identity)
    measure_pool(gate, range(1))
    measure_pool(gate, range(1, 13))
    yield tmp_path
    release_folder(tmp_path)


def test_a_picture_says_how_the_run_stands(gpu_forecasters: Command, run: Path) -> None:
    said = gpu_forecasters("watch", run, "--once")
    assert said.code == 0 and said.err == "" and "\x1b" not in said.out
    assert "run: sum\\x1b[31m[red]\n" in re.sub(" +\n", "\n", said.out) and "running; begun " in said.out
    assert "H100; gpt, model oss; seed 3" in said.out
    assert re.search(r"measurements +━+ +4 of 9, 5 left\n", re.sub(" +\n", "\n", said.out))
    assert "4.0 of 100, 96.0 left" in said.out and re.search(r"ended \d ok", said.out)
    assert re.search(r"best +\d\.\d{3}x over the reference, \d+\.\d+ us; kernel [0-9a-f]{12}", said.out)
    assert "13 candidates: 4 to measure (31%), 9 skipped" in said.out
    assert re.search(r"not_selected +━+ +9", said.out) and re.search(r"warm_up +━+ +1", said.out)
    assert "forecaster answers" in said.out and "10 forecasts; 2 failed (2 timeout)" in said.out
    assert "the guard leaves it" in said.out and "forecasts took 6.0 s, 3.0 GPU-seconds" in said.out
    assert "tokens: 12,000 prompt (80% cached), 240 completion" in said.out
    results = said.out.partition("last measured")[2]
    assert results.count(" ago ") == 4 and results.count("warm_up") == 1


@pytest.mark.parametrize("height", [24, 30, 60])
def test_the_picture_fits_a_terminal_of_80_columns(run: Path, height: int) -> None:
    console = Console(width=80, height=height, record=True, file=io.StringIO())
    console.print(frame(WatchTarget(str(run), None).look(), height=height))
    lines = console.export_text().splitlines()
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80
    assert len(lines) <= height and lines[-1].strip()


def test_where_a_picture_would_be_cut_off_a_folded_line_says_how_the_run_stands(
    gpu_forecasters: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_forecasters_plugin.cli.watch.screen._PIPE_WIDTH", 20)
    said = gpu_forecasters("watch", run, "--once").out
    assert "…" not in said and max(map(len, said.splitlines())) <= 20
    assert "4 of 9 measured of 13 candidates; best " in " ".join(said.split())


def test_a_forecaster_that_is_down_is_called_so(gpu_forecasters: Command, tmp_path: Path) -> None:
    silent = ScriptedForecaster(lambda query: ForecastFailure(FailureKind.UNREACHABLE, "refused"))
    gate = open_gate(tmp_path, silent)
    measure_pool(gate, range(1))
    assert "forecaster not asked yet" in gpu_forecasters("watch", tmp_path, "--once").out
    for pool in range(2):
        measure_pool(gate, range(1 + 8 * pool, 9 + 8 * pool))
    said = gpu_forecasters("watch", tmp_path, "--once").out
    assert "no forecast in the last 2 pools that needed one" in said and "is down" not in said
    for pool in range(2, 5):
        measure_pool(gate, range(1 + 8 * pool, 9 + 8 * pool))
    said = gpu_forecasters("watch", tmp_path, "--once").out
    assert "forecaster is down (no forecast in the last 5 pools that needed one)" in said
    assert "32 failed (32 unreachable)" in said, "the breaker has kept one pool from asking"


def test_a_run_that_was_stopped_is_over_and_one_that_nobody_can_tell_of_is_not(run: Path) -> None:
    target = WatchTarget(str(run), None)
    assert target.look().state is RunState.RUNNING and not target.look().over
    release_folder(run)
    assert target.look().state is RunState.STOPPED and target.look().over
    (run / ".lock").unlink()
    assert target.look().state is RunState.UNKNOWN and not target.look().over


def test_a_lock_is_seen_from_another_process_and_stays(tmp_path: Path) -> None:
    assert is_held(tmp_path) is None
    hold_folder(tmp_path)
    ask = "import sys, pathlib; from gpu_forecasters_plugin.folder_lock import is_held\n"
    program = [
        sys.executable,
        "-c",
        f"{ask}print(*[is_held(pathlib.Path(sys.argv[1])) for _ in range(2)])",
        tmp_path,
    ]
    assert is_held(tmp_path) is True and subprocess.check_output(program, text=True) == "True True\n"
    release_folder(tmp_path)
    assert subprocess.check_output(program, text=True) == "False False\n" and is_held(tmp_path) is False


# -- two processes ----------------------------------------------------------------------------------------------------


class Watcher:
    """``gpu-forecasters watch`` in a process of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        program = [sys.executable, "-m", "gpu_forecasters_plugin", "watch", *map(str, arguments)]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._out: IO[str] = self._process.stdout

    def line(self) -> str:
        return self._out.readline()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def finish(self) -> Said:
        out, err = self._process.communicate(timeout=180)
        return Said(self._process.returncode, out, err)


def test_it_waits_for_a_run_follows_it_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watcher = Watcher(folder, "--every", "0.1", "--out", tmp_path / "seen")
    assert watcher.line() == f"waiting: there is no ledger {folder}\n"
    hold_folder(folder)
    gate = open_gate(folder, config=surrogate(budget={"measurements": 40}))
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(watcher.line, "")))
    reader.start()
    pools = itertools.count(0, 8)
    for looks, goal in enumerate((10, 20, 40), 1):
        # As fast as it goes in between: nobody may have to wait for the watcher.
        while 40 - (gate.remaining() or 0) < goal:
            first = next(pools)
            measure_pool(gate, range(first, first + 8))
        wait_until(lambda: sum(" of 40 measured of " in line for line in lines) >= looks)  # noqa: B023
    release_folder(folder)
    reader.join(180)
    assert watcher.finish().code == 0
    assert "over: its budget is spent" in "".join(lines) and "40 of 40, 0 left" in "".join(lines)
    assert json.loads((tmp_path / "seen" / "summary.json").read_text())["measurements_used"] == 40


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_it_in_good_order(run: Path, number: int, code: int) -> None:
    watcher = Watcher(run, "--every", "0.1")
    assert "4 of 9 measured of 13 candidates; best " in watcher.line()
    watcher.signal(number)
    said = watcher.finish()
    assert said.code == code and "13 candidates: 4 to measure" in said.out and "Traceback" not in said.err


def test_on_a_terminal_it_draws_a_screen_and_leaves_the_last_picture(run: Path) -> None:
    release_folder(run)
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    program = [sys.executable, "-m", "gpu_forecasters_plugin", "watch", str(run)]
    process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the terminal's end
        while data := os.read(ours, 65536):
            said += data
    os.close(ours)
    assert process.wait(180) == 0
    screen, _, left = said.decode().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen and "4 of 9, 5 left" in screen
    assert "stopped before its budget was spent" in left and "last measured" in left


# -- which run --------------------------------------------------------------------------------------------------------


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A comparison that goes on, with two searches in its folder; the second was written to last."""
    folder = tmp_path / "cmp"
    hold_folder(folder)
    for at, name in enumerate(("surrogate-0", "random-0")):
        ledger = Ledger(folder / "runs" / name / "run" / "ledger.sqlite3")
        measure_pool(open_gate(ledger, config=surrogate(budget={"measurements": 1})), range(1))
        ledger.close()  # which writes: not later, when it is collected
        for file in (folder / "runs" / name / "run").iterdir():
            os.utime(file, (at, at))
    return folder


def test_of_a_comparison_the_latest_run_is_watched_until_the_comparison_ends(comparison: Path) -> None:
    target = WatchTarget(str(comparison), None)
    sight = target.look()
    assert sight.name == "runs/random-0/run" and sight.state is RunState.SPENT and not sight.over
    release_folder(comparison)
    assert target.look().over
    assert WatchTarget(str(comparison), "surrogate-0").look().standing.use.measurements == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nowhere", "--once"), 1, "/nowhere\n"),
        ((".", "--once"), 1, "there is no ledger "),
        (("cmp", "--once", "--run", "oracle-0"), 2, "there are: runs/random-0/run, runs/surrogate-0/run"),
        (("broken.sqlite3",), 1, "file is not a database"),
        (("mysql://host/db",), 1, "is not supported"),
        (("nowhere", "--every", "0"), 2, "--every"),
    ],
)
def test_what_cannot_be_watched_is_said_in_one_line(
    gpu_forecasters: Command,
    comparison: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(comparison.parent)
    Path("broken.sqlite3").write_text("no database at all, " * 100)
    if arguments[0] == ".":
        monkeypatch.chdir(comparison.parent / "cmp" / "runs" / "random-0" / "run")
        Path("ledger.sqlite3").unlink()
    said = gpu_forecasters("watch", *arguments)
    assert said.code == code and said.out == "" and says in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (7380, "2 h 03 min")],
)
def test_time_spans_are_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
