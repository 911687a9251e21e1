"""``gpu-forecasters openevolve`` and the drop-in evaluator, with real OpenEvolve."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import write_pool

pytest.importorskip("openevolve")

from openevolve_runs import (
    EVALUATOR,
    Task,
    assert_only_measured_programs,
    run,
    sha,
    write_task,
)

import gpu_forecasters_plugin
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve

BUDGET = 10


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("pool") / "pool.jsonl")


@pytest.fixture(scope="module")
def model(pool: Path) -> Iterator[str]:
    """Address of the recorded proposer."""
    with serve(RecordedProposer(ProposalGraph.from_pool(load_pool(pool)), seed=3)) as server:
        yield server.base_url


def command(name: str, arguments: list[str], folder: Path, **environment: str) -> Any:
    """A command as a user starts it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None
    root = Path(gpu_forecasters_plugin.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "adapters")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [found, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=environment,
        check=False,
    )


def assert_budget_spent(task: Task, budget: int = BUDGET) -> None:
    assert len(task.calls("start")) == len(task.calls("end")) == budget
    assert task.charges() == budget
    assert len({call["sha"] for call in task.calls()}) == budget


def artifacts(program: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program.get("artifacts_json") or "{}")
    return found


@pytest.mark.parametrize("diff", [True, False], ids=["diff", "full_rewrite"])
def test_the_command_measures_exactly_the_budget(tmp_path: Path, pool: Path, model: str, diff: bool) -> None:
    task = write_task(tmp_path, pool, model, budget=BUDGET, diff=diff, forecaster="learned")
    evaluator = task.evaluator.read_bytes()
    done = command("gpu-forecasters", task.arguments, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_budget_spent(task)
    assert_only_measured_programs(task)
    assert task.evaluator.read_bytes() == evaluator

    # The candidate's own file, byte for byte, at the host's own temporary path.
    first, *rest = task.calls()
    assert first["path"] == str(task.program)
    assert first["sha"] == sha(task.program.read_text())
    sources = {row["code"].strip() for row in map(json.loads, pool.read_text().splitlines()[1:])}
    for call in rest:
        assert Path(call["path"]).name.startswith("tmp") and call["path"].endswith(".py")
        assert call["code"].strip() in sources

    # Forecasts are in the artifacts; metrics are the evaluator's own.
    programs = list(task.programs())
    for program in programs:
        assert set(program["metrics"]) == {"time_us", "combined_score", "correct"}
    children = [artifacts(p) for p in programs if p["parent_id"]]
    assert children and all(
        "measure" in found["surrogate"] or "answered" in found["surrogate"] for found in children
    )
    assert any("forecast" in found["surrogate"] for found in children)

    # The ledger knows what each program was derived from.
    codes = {program["id"]: source_key(program["code"]) for program in programs}
    derived = set(task.ledger("select candidate_key, parent_key from decision where parent_key is not null"))
    children_of = {(codes[p["id"]], codes[p["parent_id"]]) for p in programs if p["parent_id"] in codes}
    assert children_of and children_of <= derived

    summary = task.summary()
    assert summary["budget"] == summary["measurements_used"] == BUDGET
    assert summary["candidates_considered"] > BUDGET
    assert sum(summary["decisions"].values()) == summary["candidates_considered"]
    assert summary["outcomes"] == {"ok": BUDGET}
    best = max(10.0 / time for (time,) in task.ledger("select time_us from measurement"))
    assert task.best()["metrics"]["combined_score"] == pytest.approx(best)
    (reference,) = task.ledger("select time_us from measurement order by id limit 1")[0]
    assert summary["best_speedup"] == pytest.approx(best / (10.0 / reference))
    assert f"{BUDGET} of {BUDGET} measurements" in done.stdout


def test_the_drop_in_keeps_the_same_promises(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=BUDGET, workers=4)
    # Proposals enough, however many of them repeat what was proposed before.
    task.change(max_iterations=400)
    drop_in = tmp_path / "drop_in.py"
    drop_in.write_text(
        "from gpu_forecasters_openevolve import filtered\n"
        "filtered(globals(), program='initial_program.py', evaluator='evaluator.py', config='config.yaml')\n"
    )
    arguments = [str(task.program), str(drop_in), "--config", str(task.config), "--output", str(task.out)]
    done = command("openevolve-run", arguments, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_budget_spent(task)
    assert_only_measured_programs(task)
    assert "Graceful shutdown requested" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    # The last words are what the filter did; the ledger is where the host's own output is.
    closing = done.stdout.partition("surrogate filter: ")[2]
    assert closing.startswith(f"{BUDGET} of {BUDGET} measurements for ") and "best speed-up" in closing
    assert f"decided to measure {BUDGET}: " in closing and "decided to skip " in closing
    assert closing.endswith(f"  ledger: sqlite:///{task.out / 'ledger.sqlite3'}\n")
    assert task.summary()["measurements_used"] == BUDGET


@pytest.mark.parametrize("where", ["yaml", "command_line"])
def test_evaluator_args_reach_the_evaluator(tmp_path: Path, pool: Path, model: str, where: str) -> None:
    source = EVALUATOR + "\n\ndef evaluate(program_path, *, weight, name='x'):\n"
    source += "    return measure(program_path, weight=weight, name=name)\n"
    given = {"weight": 2.5, "name": "mine"}
    task = write_task(tmp_path, pool, model, evaluator=source, budget=4)
    more: list[str] = []
    if where == "yaml":
        task.change(evaluator={"evaluator_args": given})
    else:
        task.change(evaluator={"evaluator_args": {"weight": 1.0}})
        more = ["--evaluator-args", json.dumps(given)]
    done = run(task, *more)
    assert done.code == 0, done.stderr[-3000:]
    assert [(call["weight"], call["name"]) for call in task.calls()] == [(2.5, "mine")] * 4


@pytest.mark.parametrize("text", ['{"wieght": 1}', "[1]", "{"])
def test_wrong_evaluator_args_stop_the_run_before_a_call(
    tmp_path: Path, pool: Path, model: str, text: str
) -> None:
    task = write_task(tmp_path, pool, model)
    done = run(task, "--evaluator-args", text)
    assert done.code in (1, 2)
    assert "Traceback" not in done.stderr
    assert "evaluator_args" in done.stderr or "--evaluator-args" in done.stderr
    assert task.calls() == []


def test_an_async_evaluator_is_awaited(tmp_path: Path, pool: Path, model: str) -> None:
    source = EVALUATOR + "\n\nimport asyncio\n\nasync def evaluate(program_path):\n"
    source += "    await asyncio.sleep(0)\n    return measure(program_path)\n"
    task = write_task(tmp_path, pool, model, evaluator=source, budget=5)
    assert run(task).code == 0
    assert_budget_spent(task, 5)
    assert set(task.outcomes().values()) == {"ok"}


CASCADE = (
    EVALUATOR
    + """

LOADED = []  # a cascade's file is executed anew for every candidate


def evaluate(program_path):
    raise AssertionError("a cascade never calls this")


def stage(number, program_path):
    LOADED.append((number, str(program_path)))
    log("stage", program_path, number=number, seen=list(LOADED))


def turn():
    # A number of its own for each call, from 0, in whichever process.
    for number in range(1000):
        try:
            os.close(os.open(LOG.with_name(f"turn{number}"), os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            pass


def evaluate_stage1(program_path):
    stage(1, program_path)
    # Every third call fails, whatever the search proposes; the first, which is the initial program, passes.
    passes = turn() % 3 != 2
    log("start", program_path, passes=passes)
    return {"combined_score": 1.0 if passes else 0.1, "compiles": 1.0}


def evaluate_stage2(program_path):
    stage(2, program_path)
"""
)
STAGE2_LAST = (
    CASCADE + "    return dict(time_us=time_us(program_path), combined_score=10.0 / time_us(program_path))\n"
)
# An early stage may have no score at all: the host averages what it finds.
STAGE3_LAST = (
    CASCADE.replace(
        '"combined_score": 1.0 if passes else 0.1, "compiles": 1.0', '"compiles": 1.0 if passes else 0.1'
    )
    + "    return {'combined_score': 1.0}\n\n\ndef evaluate_stage3(program_path):\n    stage(3, program_path)\n"
    + "    return dict(time_us=time_us(program_path), combined_score=10.0 / time_us(program_path))\n"
)


@pytest.mark.parametrize(
    ("source", "thresholds", "last"),
    [
        (STAGE2_LAST, [0.5, 0.7, 0.9], 2),
        (STAGE3_LAST, [0.5, 0.7, 0.9], 3),
        (STAGE2_LAST + "\n\ndef evaluate_stage3(program_path):\n    stage(3, program_path)\n", [0.5], 2),
    ],
    ids=["two_stages", "three_stages", "third_stage_never_called"],
)
def test_a_cascade_is_one_measurement_per_candidate(
    tmp_path: Path, pool: Path, model: str, source: str, thresholds: list[float], last: int
) -> None:
    settings = {"cascade_evaluation": True, "cascade_thresholds": thresholds}
    task = write_task(tmp_path, pool, model, evaluator=source, budget=BUDGET)
    task.change(evaluator=settings)
    done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert task.charges() == len(task.calls("start")) == BUDGET
    assert len({call["sha"] for call in task.calls()}) == BUDGET
    stages: dict[str, list[int]] = {}
    for call in task.calls("stage"):
        stages.setdefault(call["sha"], []).append(call["number"])
        # Its own module: nothing of another candidate is in its globals.
        assert {path for _, path in call["seen"]} == {call["path"]}
    stopped = {call["sha"] for call in task.calls() if not call["passes"]}
    assert len(stopped) == BUDGET // 3
    for name, numbers in stages.items():
        assert numbers == ([1] if name in stopped else list(range(1, last + 1)))
    rows = task.ledger("select outcome, provisional, gpu_seconds from measurement")
    assert sorted(outcome for outcome, *_ in rows) == ["incorrect"] * len(stopped) + ["ok"] * (
        BUDGET - len(stopped)
    )
    assert_only_measured_programs(task)
    for program in task.programs():
        assert ("time_us" in program["metrics"]) == (sha(program["code"]) not in stopped)


def test_islands_with_their_own_programs(tmp_path: Path, pool: Path, model: str) -> None:
    rows = [json.loads(line) for line in pool.read_text().splitlines()[1:]]
    seeds = []
    for index in (7, 20):
        seeds.append(tmp_path / f"seed_{index}.py")
        seeds[-1].write_text(rows[index]["code"])
    source = EVALUATOR + "\n\ndef evaluate(program_path):\n"
    source += "    return measure(program_path) | {'warps': float('num_warps=2' in Path(program_path).read_text())}\n"
    task = write_task(
        tmp_path,
        pool,
        model,
        evaluator=source,
        budget=14,
        database={
            "num_islands": 3,
            "island_initial_programs": [None, seeds[0].name, str(seeds[1])],
            "feature_dimensions": ["warps", "complexity"],
            "migration_interval": 3,
        },
    )
    done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert_budget_spent(task, 14)
    assert_only_measured_programs(task)
    assert {sha(seed.read_text()) for seed in seeds} <= {call["sha"] for call in task.calls()[:3]}
    assert task.summary()["decisions"]["measure/warm_up"] == 3
    assert {program["metadata"].get("island") for program in task.programs()} >= {0, 1, 2}


def test_a_checkpoint_loads_into_a_run_with_a_larger_budget(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=8)
    assert run(task).code == 0
    known = {program["id"] for program in task.programs()}
    spent = run(task)
    assert spent.code == 2
    assert "the budget of this run is spent already (8 measurements" in spent.stderr
    # As if the run had been killed while it wrote its last checkpoint.
    checkpoints = sorted(
        task.out.glob("checkpoints/*/metadata.json"), key=lambda p: int(p.parent.name.split("_")[1])
    )
    checkpoints[-1].write_text(checkpoints[-1].read_text()[:40])
    task.change(surrogate={"budget": {"measurements": 13}})
    done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert f"resuming from {checkpoints[-2].parent}" in done.stderr and "Loading checkpoint" in done.stderr
    assert_budget_spent(task, 13)
    latest = max(task.out.glob("checkpoints/checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
    assert known & {path.stem for path in (latest / "programs").glob("*.json")}


def test_reaching_the_target_score_ends_the_run(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=40)
    done = run(task, "--target-score", "1.2")
    assert done.code == 0, done.stderr[-3000:]
    assert "Target score 1.2 reached" in done.stderr
    assert "died" not in done.stderr
    assert len(task.calls()) < 40
    assert task.best()["metrics"]["combined_score"] >= 1.2


def test_early_stopping_ends_the_run(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=40)
    task.change(early_stopping_patience=4, convergence_threshold=5.0)
    done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert "Early stopping triggered" in done.stderr
    assert "died" not in done.stderr
    assert len(task.calls()) < 40
    assert_only_measured_programs(task)


@pytest.mark.slow
def test_a_run_ends_when_nothing_new_is_proposed_any_more(tmp_path: Path) -> None:
    small = write_pool(tmp_path / "small.jsonl", blocks=1)  # twelve sources
    graph = ProposalGraph.from_pool(load_pool(small))
    with serve(RecordedProposer(graph)) as server:
        # Proposals enough for the last source to come, and then for nothing new to come for long.
        task = write_task(tmp_path, small, server.base_url, budget=30, surrogate={"max_proposals": 200})
        done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert "the host proposes nothing new any more" in done.stderr
    assert len(task.calls()) == task.summary()["measurements_used"] <= 12
