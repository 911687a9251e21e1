"""The recorded proposer in ShinkaEvolve's words: its real prompts in, its real patches out."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from shinka.core.sampler import PromptSampler
from shinka.database import Program
from shinka.edit import apply_diff_patch, apply_full_patch

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.recorded.answers import read_request
from gpu_forecasters_plugin.recorded.lookup_table import answer_program_file
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task
from gpu_forecasters_plugin.recorded.tagged_answers import BLOCK_END, BLOCK_START


@pytest.fixture(scope="module", params=["cross_entropy", "softmax"])
def pool(request: pytest.FixtureRequest) -> RecordedPool:
    return open_pool(request.param)


def marked(code: str) -> str:
    return f"# {BLOCK_START}\n{code.rstrip()}\n# {BLOCK_END}\n"


def host_program(code: str) -> Program:
    return Program(id=source_key(code), code=marked(code), combined_score=1.0, correct=True)


def messages(kind: str, parent: str, others: list[str]) -> list[dict[str, Any]]:
    sampler = PromptSampler(patch_types=[kind], patch_type_probs=[1.0], use_text_feedback=True)
    inspirations = [host_program(code) for code in others]
    if kind == "fix":
        system, user, _ = sampler.sample_fix(host_program(parent), inspirations)
    else:
        system, user, _ = sampler.sample(host_program(parent), inspirations[:1], inspirations[1:])
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


@pytest.mark.parametrize("kind", ["diff", "full", "cross", "fix"])
def test_every_kind_of_patch_makes_exactly_the_proposed_kernel(pool: RecordedPool, kind: str) -> None:
    proposer = RecordedProposer(ProposalGraph.from_pool(pool), seed=4)
    codes = [candidate.code for candidate in pool.candidates.values()]
    for parent in islice(codes, 0, None, 20):
        request = read_request(
            messages(kind, parent, codes[:2]), lambda code: bool(proposer.graph.find(code))
        )
        assert source_key(request.parent_code) == source_key(parent)
        assert request.fmt == ("tagged_diff" if kind == "diff" else "tagged_full")
        child, answer = proposer.propose(request.parent_code, request.fmt, language=request.language)
        apply = apply_diff_patch if kind == "diff" else apply_full_patch
        made, applied, _, error, *_ = apply(
            answer, original_str=marked(parent), language="python", verbose=False
        )
        assert error is None and applied > 0
        assert source_key(made) == source_key(proposer.graph.code(child))
        assert made.count(BLOCK_START) == made.count(BLOCK_END) == 1


def test_the_task_answers_with_what_was_measured(pool: RecordedPool, tmp_path: Path) -> None:
    task = write_shinka_task(pool.source, tmp_path / "task", api_base="http://127.0.0.1:1/v1")
    assert source_key(task.initial.read_text()) == pool.reference.key
    program = tmp_path / "main.py"
    seen = set()
    for candidate in [*islice(pool.candidates.values(), 0, None, 7), None]:
        program.write_text("x = 'nobody has measured this'" if candidate is None else marked(candidate.code))
        answer_program_file(str(program), str(tmp_path / "results"), task.folder / "measured.json")
        metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())
        verdict = json.loads((tmp_path / "results" / "correct.json").read_text())
        speedup = None if candidate is None else pool.speedup(candidate.id)
        assert verdict["correct"] == (speedup is not None)
        assert metrics["combined_score"] == (speedup or 0.0)
        outcome = "runtime_error" if candidate is None else str(candidate.outcome)
        assert metrics["private"].get("outcome", "ok") == outcome
        seen.add(verdict["correct"])
    assert seen == {True, False}


@pytest.mark.slow
def test_a_comparison_spends_every_arms_budget_exactly(tmp_path: Path) -> None:
    summary = run_comparison(
        "rmsnorm",
        host="shinka",
        budget=4,
        seeds=1,
        arms=["baseline", "random"],
        surrogate=parse_surrogate_config({"pool": {"max_wait_s": 60.0}}),
        out=tmp_path,
    )
    assert {name: arm["measurements_used"] for name, arm in summary["arms"].items()} == {
        "baseline": [4],
        "random": [4],
    }
    assert summary["arms"]["random"]["candidates_considered"][0] > 4
    assert summary["arms"]["baseline"]["best_speedup"][0] >= 1.0
