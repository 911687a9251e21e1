"""A real OpenEvolve search whose language model proposes kernels that cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broken_kernels import BAD, GOOD, KERNEL, SAYS, SCREEN
from helpers import wait_until, write_pool
from openevolve.config import PromptConfig
from openevolve.prompt.sampler import PromptSampler
from openevolve_runs import HOLDING, CodeProposer, fixed, start, write_task

from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import serve

pytest.importorskip("torch")
pytest.importorskip("triton")

# There is no GPU here, so the real measurement does not run the kernel; the dry one has a GPU of a kind, and does.
EVALUATOR = (
    HOLDING.replace("def evaluate(", "def measure_and_hold(")
    + """

def evaluate(program_path):
    import importlib.util
    import torch

    if torch.cuda.is_available():
        spec = importlib.util.spec_from_file_location("program", program_path)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        program.run(torch.randn(1024, 1024, device="cuda"))
    return measure_and_hold(program_path)
"""
)


def next_prompt(program: dict[str, Any]) -> str:
    """What OpenEvolve asks of its language model when this program is the parent."""
    prompt = PromptSampler(PromptConfig()).build_prompt(
        current_program=program["code"],
        parent_program=program["code"],
        program_metrics=program["metrics"],
        program_artifacts=json.loads(program["artifacts_json"]),
    )
    return prompt["user"]


def test_openevolve_spends_nothing_on_kernels_that_cannot_run_and_shows_why_to_the_model(
    tmp_path: Path,
) -> None:
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"))
    with serve(
        CodeProposer(pool, fixed([code for pair in zip(BAD, GOOD, strict=True) for code in pair]))
    ) as server:
        task = write_task(
            tmp_path / "run",
            tmp_path / "pool.jsonl",
            server.base_url,
            evaluator=EVALUATOR,
            budget=3,
            diff=False,
            workers=4,
            surrogate={"screen": SCREEN, "keep_fraction": 0.5},
            checkpoint_interval=1,
        )
        task.program.write_text(KERNEL)
        task.hold.touch()
        going = start(task)
        # The run ends when the good ones are measured, whether or not OpenEvolve has looked at the others by then.
        wait_until(lambda: "Metrics: error=" in going.text("stderr"), timeout=240.0)
        task.hold.unlink()
        finished = going.finish()
    assert finished.code == 0, finished.stderr[-2000:]
    assert not [call for call in task.calls() if "tl.lode" in call["code"]]
    reasons = dict(task.ledger("select reason, count(*) from decision group by reason"))
    assert reasons.get("invalid_source", 0) >= 1
    faults = task.ledger(
        "select fault, message from decision join screening using (run_id, candidate_key) "
        "where reason = 'invalid_source'"
    )
    assert faults and all(fault == "compile" and SAYS in message for fault, message in faults)
    broken = next(program for program in task.programs() if "tl.lode" in program["code"])
    assert SAYS in next_prompt(broken)
