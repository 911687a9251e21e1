"""Recorded tasks through real OpenEvolve, without the plugin in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import write_pool

import gpu_forecasters_plugin
from gpu_forecasters_plugin.recorded.evaluator import write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import load_pool, open_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve

pytest.importorskip("openevolve")

ITERATIONS = 12


def openevolve_run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name("openevolve-run")
    command = str(beside) if beside.exists() else shutil.which("openevolve-run")
    assert command is not None
    # The checkout under test, whether or not it is installed.
    root = str(Path(gpu_forecasters_plugin.__file__).parents[1])
    environment = {**os.environ, "GPU_FORECASTERS_CALL_LOG": "1", "PYTHONPATH": root}
    return subprocess.run(
        [command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=folder,
        env=environment,
    )


@pytest.mark.parametrize("diff", [True, False], ids=["diff", "full_rewrite"])
def test_every_child_is_a_recorded_kernel(tmp_path: Path, diff: bool) -> None:
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"), strict=True)
    with serve(RecordedProposer(ProposalGraph.from_pool(pool), seed=3)) as server:
        task = write_openevolve_task(
            tmp_path / "pool.jsonl",
            tmp_path / "run",
            api_base=server.base_url,
            seed=3,
            iterations=ITERATIONS,
            diff=diff,
            workers=2,
        )
        done = openevolve_run(
            [
                str(task.initial_program),
                str(task.evaluator),
                "--config",
                str(task.config),
                "--output",
                str(tmp_path / "out"),
            ],
            tmp_path,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    calls = [json.loads(line) for line in (tmp_path / "run" / "measurements.jsonl").read_text().splitlines()]
    # The host measures the initial program once, then each child once.
    assert len(calls) == ITERATIONS + 1
    assert calls[0]["id"] == pool.reference_id
    assert all(call["id"] in pool.candidates for call in calls)
    assert len({call["id"] for call in calls}) > 3

    programs = list((tmp_path / "out" / "checkpoints").glob("checkpoint_*/programs/*.json"))
    assert programs
    for path in programs:
        program = json.loads(path.read_text())
        candidate = pool.find(program["code"])
        assert candidate is not None
        assert program["metrics"]["combined_score"] == (pool.speedup(candidate.id) or 0.0)
        assert all(isinstance(value, int | float) for value in program["metrics"].values())
    assert "error" not in done.stderr.lower().replace("0 error", "")


@pytest.mark.parametrize(
    "name", ["attention_forward", "cross_entropy@h200", "gdn_recompute_w_u", "rmsnorm", "trimul"]
)
def test_a_shipped_task_runs(tmp_path: Path, name: str) -> None:
    pool = open_pool(name)
    with serve(RecordedProposer(ProposalGraph.from_pool(pool), seed=1)) as server:
        task = write_openevolve_task(
            name, tmp_path, api_base=server.base_url, iterations=ITERATIONS, workers=2, log_level="WARNING"
        )
        done = openevolve_run(
            [str(task.initial_program), str(task.evaluator), "--config", str(task.config)], tmp_path
        )
    assert done.returncode == 0, done.stderr[-3000:]
    calls = [json.loads(line) for line in (tmp_path / "measurements.jsonl").read_text().splitlines()]
    assert len(calls) == ITERATIONS + 1
    assert all(call["id"] in pool.candidates for call in calls)
