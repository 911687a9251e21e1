"""The kernels of the live run as a pool that is searched again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.live_gpu_replay import pool_text
from gpu_forecasters_plugin.recorded.pool import load_pool


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def decision(child: str, parent: str | None) -> dict[str, Any]:
    return {"candidate_key": child, "parent_key": parent}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    results = {
        "start": {"outcome": "ok", "time_us": 8.0, "spread": 0.01},
        "fast": {"outcome": "ok", "time_us": 2.0, "spread": 0.01},
        "broken": {"outcome": "compile_error", "error": "no"},
        "island": {"outcome": "ok", "time_us": 1.0, "spread": 0.01},
    }
    rows = [
        {"task": "t", "key": key, "code": f"kernel = {key!r}", "result": result}
        for key, result in results.items()
    ]
    other = {"task": "other", "key": "elsewhere", "code": "kernel = 0", "result": results["fast"]}
    write_rows(tmp_path / "measurements.jsonl.gz", [*rows, other])
    first = [decision("start", None), decision("skipped", "start"), decision("fast", "start")]
    write_rows(tmp_path / "t" / "baseline-0.decisions.jsonl.gz", first)
    second = [decision("start", None), decision("broken", "fast"), decision("fast", "fast")]
    write_rows(tmp_path / "t" / "surrogate-0.decisions.jsonl.gz", second)
    return tmp_path


def test_the_pool_has_what_was_measured_and_can_be_reached_by_the_proposers_edits(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.jsonl").write_text(pool_text(data, "t", "NVIDIA H200"))
    pool = load_pool(tmp_path / "t.jsonl")
    assert set(pool.candidates) == {"start", "fast", "broken"}
    assert pool.reference.id == "start" and pool.speedup("fast") == pytest.approx(4.0)
    assert set(pool.neighbours("fast")) == {"start", "broken"}
    assert pool.candidates["broken"].time_us is None
