"""The examples that ask the filter from a search of one's own."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.recorded.pool import open_pool

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_search_of_ones_own_is_filtered_in_forty_lines_and_goes_on(tmp_path: Path) -> None:
    for file in (EXAMPLES / "own_loop").glob("*.*"):
        shutil.copy(file, tmp_path)
    script = tmp_path / "search.py"
    assert len(script.read_text().splitlines()) <= 40
    for budget in (12, 16):
        settings = tmp_path / "surrogate.yaml"
        settings.write_text(re.sub(r"\d+", str(budget), settings.read_text()))
        command = [sys.executable, script.name, "ledger.sqlite3"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found = re.fullmatch(r"best of (\d+) measurements: (\d\.\d\d)x\n", done.stdout)
        assert found and int(found[1]) == budget and float(found[2]) > 1.0
        reader = LedgerReader(tmp_path / "ledger.sqlite3")
        reader.follow_run(reader.runs()[0]["id"])
        assert reader.budget_use().measurements == budget < len(reader.decisions()) / 2
        reader.close()


@pytest.mark.filterwarnings("ignore:None of the tunable parameters specify thread block dimensions")
def test_kernel_tuner_tunes_a_recorded_task_through_the_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kernel_tuner")
    monkeypatch.syspath_prepend(str(EXAMPLES / "kernel_tuner"))
    run, space = importlib.import_module("run"), importlib.import_module("recorded_space")
    task = open_pool("rmsnorm")
    assert sorted(space.configurations(task).values()) == sorted(task.candidates)
    best = run.compare(task, 14, 3, tmp_path)
    assert best.keys() == {"random_sample", "genetic_algorithm", "filtered"}
    assert all(1.0 <= speedup <= task.best_speedup * 1.0001 for speedup in best.values())
    cache = json.loads((tmp_path / "cache.json").read_text())
    assert len(cache["cache"]) == len(task.candidates)
    reader = LedgerReader(tmp_path / "ledger.sqlite3")
    reader.follow_run(reader.runs()[0]["id"])
    rows = reader.decisions()
    reader.close()
    measured = [row for row in rows if row["outcome"] is not None]
    assert len(measured) == 14 < len(rows) / 3
    assert best["filtered"] == pytest.approx(max(row["speedup"] or 0.0 for row in measured))
    assert {row["outcome"] for row in measured} <= {"ok", "runtime_error"}
