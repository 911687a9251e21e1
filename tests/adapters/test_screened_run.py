"""A real OpenEvolve search whose language model proposes kernels that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import write_pool
from openevolve_runs import PLAIN, CodeProposer, fixed, run, write_task

from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import serve

pytest.importorskip("openevolve")
pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def run(x):
    BLOCK = 128
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), SIZE=BLOCK)
    return y
"""
# There is no GPU here, so the real measurement does not run the kernel; the dry one has a GPU of a kind, and does.
EVALUATOR = (
    PLAIN
    + """

def evaluate(program_path):
    import importlib.util
    import torch

    if torch.cuda.is_available():
        spec = importlib.util.spec_from_file_location("program", program_path)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        program.run(torch.randn(1024, 1024, device="cuda"))
    return measure(program_path)
"""
)


def test_kernels_that_cannot_run_cost_no_measurement_and_their_fault_is_shown(tmp_path: Path) -> None:
    good = [KERNEL.replace("BLOCK = 128", f"BLOCK = {size}") for size in (256, 512, 1024, 2048)]
    bad = [code.replace("tl.load", "tl.lode") for code in good]
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"))
    with serve(CodeProposer(pool, fixed([*good, *bad]))) as server:
        task = write_task(
            tmp_path / "run",
            tmp_path / "pool.jsonl",
            server.base_url,
            evaluator=EVALUATOR,
            budget=4,
            diff=False,
            workers=4,
            surrogate={"screen": {"policy": "skip", "arch": "sm_90"}, "keep_fraction": 0.5},
        )
        task.program.write_text(KERNEL)
        finished = run(task, timeout=240.0)
    assert finished.code == 0, finished.stderr[-2000:]
    assert not [call for call in task.calls() if "tl.lode" in call["code"]]
    reasons = dict(task.ledger("select reason, count(*) from decision group by reason"))
    assert reasons.get("invalid_source", 0) >= 1
    assert list((task.out / "screen").glob("*.json"))
