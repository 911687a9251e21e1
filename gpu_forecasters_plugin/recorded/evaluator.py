"""What stands for the GPU when a recorded task is replayed through a real host.

:func:`lookup` answers with what was once measured. :func:`write_openevolve_task` writes the three files that
OpenEvolve takes, so that a recorded task runs through the host exactly as a user's own task would.
"""

from __future__ import annotations

import ast
import json
import os
import time
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from gpu_forecasters_plugin.candidate import decode_source, source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.recorded.pool import RecordedPool, is_pool_path, open_pool
from gpu_forecasters_plugin.recorded.server import MODEL_NAME

__all__ = [
    "CALL_LOG_VARIABLE",
    "EVAL_SECONDS_VARIABLE",
    "OpenEvolveTask",
    "evaluate_program_file",
    "lookup",
    "to_host_result",
    "write_openevolve_task",
]

CALL_LOG_VARIABLE = "GPU_FORECASTERS_CALL_LOG"
"""When set, each real evaluator call adds a line to ``measurements.jsonl`` beside the evaluator (value ``1``)
or to the file that the value names."""

EVAL_SECONDS_VARIABLE = "GPU_FORECASTERS_EVAL_SECONDS"
"""Simulated duration of a measurement, in seconds; default 0."""

UNKNOWN_SOURCE = "this source is not in the recorded task, so nobody has measured it"


def lookup(pool: RecordedPool, code: str) -> dict[str, Any]:
    """What was measured for a source, as a host's metrics.

    Returns:
        ``combined_score`` (speed-up against the pool's reference; 0 for a failure), ``correct`` (1 or 0) and
        ``time_us``, or for a failure ``outcome`` and ``error``. A source that is not in the pool is a
        ``runtime_error``.
    """
    candidate = pool.find(code)
    if candidate is None:
        return {
            "combined_score": 0.0,
            "correct": 0.0,
            "outcome": str(Outcome.RUNTIME_ERROR),
            "error": UNKNOWN_SOURCE,
        }
    speedup = pool.speedup(candidate.id)
    if speedup is None:
        error = candidate.error or f"recorded outcome: {candidate.outcome}"
        return {"combined_score": 0.0, "correct": 0.0, "outcome": str(candidate.outcome), "error": error}
    return {"combined_score": speedup, "time_us": candidate.time_us, "correct": 1.0}


def to_host_result(metrics: dict[str, Any]) -> Any:
    """OpenEvolve's ``EvaluationResult``: numbers as metrics, texts as artifacts.

    Without OpenEvolve, the numbers alone: a text among the metrics would spoil a host's averages.
    """
    numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    texts: dict[str, str | bytes] = {name: value for name, value in metrics.items() if isinstance(value, str)}
    try:
        from openevolve.evaluation_result import EvaluationResult
    except ImportError:
        return numbers
    return EvaluationResult(metrics=numbers, artifacts=texts)


@lru_cache(maxsize=8)
def _pool(source: str) -> RecordedPool:
    # Here and not in the evaluator file, which some hosts execute anew for every candidate.
    return open_pool(source)


def _seconds() -> float:
    text = os.environ.get(EVAL_SECONDS_VARIABLE, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{EVAL_SECONDS_VARIABLE} must be a number of seconds, got {text!r}")
    return seconds


def _log_call(folder: Path, row: dict[str, Any]) -> None:
    target = os.environ.get(CALL_LOG_VARIABLE, "").strip()
    if not target:
        return
    path = folder / "measurements.jsonl" if target == "1" else Path(target)
    # One write on an appending descriptor: lines of concurrent workers never mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(row) + "\n").encode())
    finally:
        os.close(descriptor)


def evaluate_program_file(program_path: str | PathLike[str], source: str, *, folder: Path) -> Any:
    """One call of the real evaluator for a candidate file: look it up, log it, take its time.

    Args:
        program_path: the candidate, as the host wrote it.
        source: name of a recorded task or path of a pool file; loaded once per process.
        folder: where the call log goes.
    """
    code = decode_source(Path(program_path).read_bytes())
    pool = _pool(source)
    metrics = lookup(pool, code)
    candidate = pool.find(code)
    row = {
        "id": candidate.id if candidate else None,
        "key": candidate.key if candidate else source_key(code),
        "outcome": metrics.get("outcome", "ok"),
        "combined_score": metrics["combined_score"],
        "pid": os.getpid(),
        "time": time.time(),
    }
    time.sleep(_seconds())
    _log_call(folder, row)
    return to_host_result(metrics)


class OpenEvolveTask(NamedTuple):
    """The files of a task as ``openevolve-run`` takes them."""

    initial_program: Path
    evaluator: Path
    config: Path


_EVALUATOR = '''"""Stands for the GPU: answers with what was once measured on {device}."""

from pathlib import Path

from gpu_forecasters_plugin.recorded.evaluator import evaluate_program_file

POOL = {source!r}


def evaluate(program_path):
    """Recorded measurement of the program in this file."""
    return evaluate_program_file(program_path, POOL, folder=Path(__file__).resolve().parent)
'''

_CONFIG = """# Recorded task {task!r}, replayed through OpenEvolve.
max_iterations: {iterations}
checkpoint_interval: {checkpoint_interval}
log_level: {log_level}
random_seed: {seed}
language: {language}
diff_based_evolution: {diff}
max_code_length: 200000
llm:
  api_base: {api_base}
  api_key: no-key-needed
  models:
    - {{name: {model}, weight: 1.0}}
  timeout: 60
  retries: 2
  retry_delay: 1
prompt:
  num_top_programs: 1
  num_diverse_programs: 1
  include_artifacts: true
  use_template_stochasticity: false
database:
  log_prompts: false                 # else every prompt travels to every worker
  population_size: {population_size}
  archive_size: {archive_size}
  num_islands: {num_islands}
  feature_dimensions: [score, complexity]
  feature_bins: 10
  elite_selection_ratio: 0.2
  exploration_ratio: 0.2
  exploitation_ratio: 0.6
evaluator:
  timeout: {timeout}
  max_retries: 0                     # a recorded answer does not change
  cascade_evaluation: false
  parallel_evaluations: {workers}
"""


def _is_python(code: str) -> bool:
    try:
        # A file of preprocessor lines parses as well: as comments.
        return bool(ast.parse(code).body)
    except (SyntaxError, ValueError):
        return False


def write_openevolve_task(
    pool_source: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    api_base: str,
    seed: int = 0,
    iterations: int = 100,
    diff: bool = True,
    workers: int = 4,
    population_size: int = 60,
    num_islands: int = 1,
    timeout: int = 60,
    checkpoint_interval: int | None = None,
    log_level: str = "INFO",
) -> OpenEvolveTask:
    """Write ``initial_program``, ``evaluator.py`` and ``config.yaml`` for OpenEvolve 0.4.1.

    Args:
        pool_source: name of a recorded task, or path of a pool file (which stays where it is).
        folder: created if missing; files of the same names are replaced.
        api_base: endpoint of the model; :attr:`ProposerServer.base_url` for the recorded proposer.
        seed: OpenEvolve's ``random_seed``.
        iterations: number of proposals.
        diff: ask for SEARCH/REPLACE blocks; otherwise for whole programs.
        workers: OpenEvolve's ``parallel_evaluations``, its number of worker processes.
        population_size: programs that the host keeps; all of them travel to a worker with each iteration.
        num_islands: separate populations.
        timeout: seconds that one evaluation may take.
        checkpoint_interval: iterations between checkpoints; default: one, at the end.
        log_level: OpenEvolve's log level.

    Raises:
        PoolFileError: the pool cannot be read.
    """
    pool = open_pool(pool_source)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    source = str(Path(pool_source).resolve()) if is_pool_path(pool_source) else str(pool_source)
    python = _is_python(pool.reference.code)
    task = OpenEvolveTask(
        target / ("initial_program.py" if python else "initial_program.cu"),
        target / "evaluator.py",
        target / "config.yaml",
    )
    task.initial_program.write_text(pool.reference.code, encoding="utf-8")
    task.evaluator.write_text(_EVALUATOR.format(device=pool.device, source=source), encoding="utf-8")
    task.config.write_text(
        _CONFIG.format(
            task=pool.task,
            iterations=iterations,
            checkpoint_interval=checkpoint_interval or max(1, iterations),
            log_level=log_level,
            seed=seed,
            language="python" if python else "cuda",
            diff=str(diff).lower(),
            api_base=json.dumps(api_base),
            model=MODEL_NAME,
            population_size=population_size,
            archive_size=max(1, population_size // 4),
            num_islands=num_islands,
            timeout=timeout,
            workers=workers,
        ),
        encoding="utf-8",
    )
    return task
