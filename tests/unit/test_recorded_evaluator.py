from __future__ import annotations

import importlib.util
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_forecasters_plugin.config import BudgetConfig, load_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError, PoolFileError
from gpu_forecasters_plugin.recorded.evaluator import lookup, to_host_result, write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import load_pool, load_task, open_pool

ROWS: list[dict[str, Any]] = [
    {"pool": {"task": "toy", "device": "H100", "reference_id": "a"}},
    {"id": "a", "code": "x = 1\n", "language": "triton", "outcome": "ok", "time_us": 10.0},
    {"id": "b", "code": "x = 2\n", "language": "triton", "outcome": "ok", "time_us": 4.0},
    {"id": "c", "code": "x = 3\n", "language": "triton", "outcome": "incorrect", "error": "off by 3"},
    {"id": "d", "code": "x = 4\n", "language": "triton", "outcome": "timeout"},
]


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def load_evaluate(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("evaluation_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.evaluate


def test_lookup_answers_with_what_was_measured(pool_file: Path) -> None:
    pool = load_pool(pool_file)
    assert lookup(pool, "x = 2  # faster") == {"combined_score": 2.5, "time_us": 4.0, "correct": 1.0}
    assert lookup(pool, "x = 3") == {
        "combined_score": 0.0,
        "correct": 0.0,
        "outcome": "incorrect",
        "error": "off by 3",
    }
    assert lookup(pool, "x = 4")["error"] == "recorded outcome: timeout"
    unknown = lookup(pool, "x = 99")
    assert (unknown["outcome"], unknown["combined_score"]) == ("runtime_error", 0.0)
    assert "not in the recorded task" in unknown["error"]


def test_metrics_stay_numeric(pool_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openevolve")
    result = to_host_result(lookup(load_pool(pool_file), "x = 3"))
    assert result.metrics == {"combined_score": 0.0, "correct": 0.0}
    assert result.artifacts == {"outcome": "incorrect", "error": "off by 3"}

    monkeypatch.setitem(sys.modules, "openevolve.evaluation_result", None)
    assert to_host_result({"combined_score": 0.0, "error": "x"}) == {"combined_score": 0.0}


def test_a_written_task_evaluates_and_logs_its_calls(
    pool_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = write_openevolve_task(pool_file, tmp_path / "run", api_base="http://127.0.0.1:1/v1", seed=7)
    assert task.initial_program.name == "initial_program.py"
    assert task.initial_program.read_text() == "x = 1\n"
    evaluate = load_evaluate(task.evaluator)
    child = tmp_path / "child.py"
    child.write_text("x = 2\n")

    result = evaluate(str(child))
    metrics = getattr(result, "metrics", result)
    assert metrics["combined_score"] == 2.5
    log = tmp_path / "run" / "measurements.jsonl"
    assert not log.exists()

    monkeypatch.setenv("GPU_FORECASTERS_CALL_LOG", "1")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(evaluate, [str(child)] * 40))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(rows) == 40
    assert {(row["id"], row["outcome"], row["combined_score"]) for row in rows} == {("b", "ok", 2.5)}

    monkeypatch.setenv("GPU_FORECASTERS_CALL_LOG", str(tmp_path / "elsewhere.jsonl"))
    child.write_text("x = 99\n")
    evaluate(str(child))
    row = json.loads((tmp_path / "elsewhere.jsonl").read_text())
    assert (row["id"], row["outcome"]) == (None, "runtime_error")


def test_the_config_tells_the_filter_what_the_task_knows_of_itself(pool_file: Path, tmp_path: Path) -> None:
    task = write_openevolve_task("rmsnorm", tmp_path / "recorded", api_base="x")
    section, pool = load_surrogate_config(task.config, required=True), load_task("rmsnorm")
    assert (section.task, section.device, section.shapes) == (pool.operation, pool.device, pool.shapes)
    assert "H100" in str(section.device) and section.shapes
    without = load_surrogate_config(write_openevolve_task(pool_file, tmp_path / "own", api_base="x").config)
    assert without.shapes is None and without.budget == BudgetConfig()


def test_names_that_a_ledger_does_not_take_are_refused_with_the_pool(tmp_path: Path) -> None:
    head = {"task": "t" * 401, "device": "d", "reference_id": "a"}
    row = {"id": "a", "code": "x = 1", "language": "triton", "outcome": "ok", "time_us": 1.0}
    path = tmp_path / "pool.jsonl"
    for header, says in (
        (head, "'task' must be at most 400"),
        (head | {"task": "t", "device": "d" * 201}, "200"),
    ):
        path.write_text(json.dumps({"pool": header}) + "\n" + json.dumps(row) + "\n")
        with pytest.raises(PoolFileError, match=says):
            open_pool(path)


def test_a_measurement_may_take_time(
    pool_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = load_evaluate(write_openevolve_task(pool_file, tmp_path / "run", api_base="x").evaluator)
    program = tmp_path / "p.py"
    program.write_text("x = 1\n")
    monkeypatch.setenv("GPU_FORECASTERS_EVAL_SECONDS", "0.2")
    started = time.monotonic()
    evaluate(str(program))
    assert time.monotonic() - started >= 0.2
    for bad in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("GPU_FORECASTERS_EVAL_SECONDS", bad)
        with pytest.raises(ConfigError, match=f"must be a number of seconds, got '{bad}'"):
            evaluate(str(program))


@pytest.mark.parametrize("diff", [True, False])
def test_openevolve_reads_the_config(pool_file: Path, tmp_path: Path, diff: bool) -> None:
    config_module = pytest.importorskip("openevolve.config")
    task = write_openevolve_task(
        pool_file, tmp_path, api_base="http://127.0.0.1:9/v1", seed=11, iterations=33, diff=diff, workers=3
    )
    config = config_module.load_config(task.config)
    assert (config.max_iterations, config.random_seed, config.diff_based_evolution) == (33, 11, diff)
    assert [(model.name, model.api_base) for model in config.llm.models] == [
        ("recorded-proposer", "http://127.0.0.1:9/v1")
    ]
    assert (config.evaluator.parallel_evaluations, config.evaluator.cascade_evaluation) == (3, False)
    assert config.checkpoint_interval == 33
    assert config.evaluator.max_retries == 0
    assert config.language == "python"


def test_a_pool_of_c_sources_is_written_as_such(tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[1]["code"] = "#define BLOCK 64\n#define TILE 2\n"
    pool_file = tmp_path / "p.jsonl"
    pool_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = write_openevolve_task(pool_file, tmp_path / "run", api_base="x")
    assert task.initial_program.name == "initial_program.cu"
    assert "language: cuda" in task.config.read_text()


def test_an_unknown_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(PoolFileError, match="no recorded task 'nothing-like-it'"):
        write_openevolve_task("nothing-like-it", tmp_path, api_base="x")
