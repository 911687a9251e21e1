"""A real OpenEvolve search behind the filter, whose forecaster is a real server that dies on the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until

pytest.importorskip("openevolve")

from openevolve_runs import Task, assert_only_measured_programs, start, write_task

from benchmarks.local_vllm import MODEL_NAME, LocalVllm
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TASK = "softmax"
BUDGET = 14
A_FEW = 12
"""So many proposals are far from spending the budget, twice: one of four is measured."""
ENOUGH = 10_000
EVALUATOR = f"""
from pathlib import Path

from gpu_forecasters_plugin.recorded.evaluator import evaluate_program_file


def evaluate(program_path):
    return evaluate_program_file(program_path, {TASK!r}, folder=Path(__file__).parent)
"""


class HaltedProposer(RecordedProposer):
    """The recorded proposer, which proposes no more often than it is let."""

    def __init__(self) -> None:
        super().__init__(ProposalGraph.from_pool(load_task(TASK)), seed=3)
        self.let = threading.Semaphore(0)

    def propose(self, *arguments: Any, **more: Any) -> tuple[str, str]:
        self.let.acquire()
        return super().propose(*arguments, **more)


def forecasts(task: Task) -> list[float]:
    """When each decision with a forecast of the model was made, first one first."""
    query = "select created_at from decision where probabilities is not null and failure is null order by id"
    return [made_at for (made_at,) in task.ledger(query)]


def unreachable(task: Task) -> int:
    """How many forecasts have failed because nobody answered."""
    return int(task.ledger("select count(*) from decision where failure = 'unreachable'")[0][0])


def search(folder: Path, model: str, server: LocalVllm) -> Task:
    """A search on a recorded task: pools of four, of which one is measured."""
    forecaster = {
        "kind": "openai_server",
        "base_url": server.base_url,
        "model": MODEL_NAME,
        "max_kernel_tokens": 1500,
        "deadline_s": 200.0,
    }
    task = write_task(folder, TASK, model, evaluator=EVALUATOR, budget=BUDGET, workers=4)
    task.change(max_iterations=200, llm={"timeout": 300}, evaluator={"timeout": 300})
    task.change(surrogate={"forecaster": forecaster, "task": TASK})
    return task


def test_a_search_outlives_its_forecaster(tmp_path: Path, server: LocalVllm) -> None:
    proposer = HaltedProposer()
    with serve(proposer) as model:
        task = search(tmp_path, model.base_url, server)
        going = start(task, GPU_FORECASTERS_CALL_LOG="1")
        try:
            wait_until((tmp_path / "measurements.jsonl").exists, timeout=120)  # of the reference
            proposer.let.release(A_FEW)
            wait_until(lambda: len(forecasts(task)) >= 4, timeout=300)
            server.kill()
            proposer.let.release(A_FEW)
            wait_until(lambda: unreachable(task), timeout=120)
            server.start()
            server.wait_until_ready()
            back_at = time.time()
            proposer.let.release(ENOUGH)
            done = going.finish(timeout=400)
        except BaseException:
            proposer.let.release(ENOUGH)
            going.kill()
            raise
    assert done.code == 0, done.stderr[-3000:]
    measured = (tmp_path / "measurements.jsonl").read_text().splitlines()
    assert task.charges() == len(measured) == task.summary()["measurements_used"] == BUDGET
    assert_only_measured_programs(task)
    made_at = forecasts(task)
    assert made_at[0] < back_at < made_at[-1], "no forecast after the restart"
    assert done.stderr.count("forecaster is down") == done.stderr.count("forecaster answers again") == 1
