"""Progress on the terminal tells what was reached, however the work ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_forecasters_plugin.budget_progress import budget_progress
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.progress import WorkProgress


def follow(folder: Path, budget: dict[str, float], failure: Exception | None = None) -> None:
    """A run that measures its reference, and ends at once."""
    config = parse_surrogate_config({"budget": budget, "forecaster": {"kind": "random"}})
    reference, ledger = Candidate("reference", "pass"), Ledger(folder / "ledger.sqlite3")
    with Gate(reference, build_forecaster(config.forecaster), ledger, config) as gate:
        with budget_progress(gate, ledger):
            (decision,) = gate.ask([reference])
            assert gate.start(decision.id)
            gate.tell(decision.id, Measurement(Outcome.OK, time_us=1.0, speedup=1.0))
            if failure is not None:
                raise failure


@pytest.mark.parametrize(
    ("budget", "last"),
    [
        ({"measurements": 1}, "1/1 measurements: done"),
        ({"measurements": 2}, "1/2 measurements: ended"),
        ({"gpu_seconds": 60}, "1 measurements: done"),
    ],
)
def test_the_last_line_counts_what_was_measured_last(
    budget: dict[str, float], last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(tmp_path, budget)
    assert capsys.readouterr().err.splitlines()[-1] == last


def test_a_run_that_fails_is_not_called_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        follow(tmp_path, {"measurements": 1}, RuntimeError("spent"))
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == "1/1 measurements: best 1.00x" and "done" not in said


def test_what_is_printed_beside_a_bar_goes_where_the_output_goes() -> None:
    ours, theirs = os.openpty()
    code = "from gpu_forecasters_plugin.progress import WorkProgress\nwith WorkProgress(1): print('result')"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        drawn = b""
        with suppress(OSError):  # the terminal's end
            while data := os.read(ours, 65536):  # one that nobody reads would fill up
                drawn += data
        os.close(ours)
        assert process.stdout is not None and process.stdout.read() == "result\n"
    assert process.returncode == 0 and b"0/1" in drawn


def test_progress_without_a_total_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkProgress(None, "kernels") as progress:
        progress.update(3, "compiling")
    assert capsys.readouterr().err == "3 kernels: compiling\n3 kernels: done\n"
