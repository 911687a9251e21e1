"""What stands for the GPU when a recorded task is replayed through a real host.

:func:`lookup` answers with what was once measured. :func:`write_openevolve_task` writes the three files that
OpenEvolve takes, so that a recorded task runs through the host exactly as a user's own task would.
"""

from __future__ import annotations

from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.candidate import decode_source, source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.recorded.calls import (
    CALL_LOG_VARIABLE,
    EVAL_SECONDS_VARIABLE,
    log_call,
    pretend_to_measure,
)
from gpu_forecasters_plugin.recorded.openevolve_task import OpenEvolveTask, write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool

__all__ = [
    "CALL_LOG_VARIABLE",
    "EVAL_SECONDS_VARIABLE",
    "OpenEvolveTask",
    "evaluate_program_file",
    "lookup",
    "to_host_result",
    "write_openevolve_task",
]

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
    }
    pretend_to_measure()
    log_call(folder, row)
    return to_host_result(metrics)
