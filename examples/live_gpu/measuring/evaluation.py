"""OpenEvolve's evaluator for a task: asks the service, where there is one; else a process of its own measures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from measuring.service import SERVICE_VARIABLE, ask
from measuring.workers import MeasuringError, TimeLimits, WarmWorkers

__all__ = ["DEVICE_VARIABLE", "evaluator_of", "host_result"]

DEVICE_VARIABLE = "LIVE_GPU_DEVICE"
"""Environment variable that chooses the device: ``cuda`` unless set, or ``cpu`` for Triton's interpreter."""


def evaluator_of(task: Path) -> Callable[[str], Any]:
    """The function ``evaluate(program_path)`` of a task.

    Args:
        task: its ``task.py``.
    """
    service = os.environ.get(SERVICE_VARIABLE)
    if service is None:
        _own_workers(task)  # now, so that the first program finds it warm

    def evaluate(program_path: str) -> Any:
        """Compile, check and time the program in this file."""
        code = Path(program_path).read_text(encoding="utf-8", errors="replace")
        try:
            return host_result(
                _own_workers(task).measure(task, code) if service is None else ask(service, task, code)
            )
        except (MeasuringError, OSError, EOFError) as error:
            return host_result({"outcome": "infrastructure", "error": str(error)})

    return evaluate


@lru_cache
def _own_workers(task: Path) -> WarmWorkers:
    device = os.environ.get(DEVICE_VARIABLE, "cuda")
    log = Path(tempfile.gettempdir(), f"live_gpu.{os.getpid()}.log")
    return WarmWorkers(device, [task], 1, limits=TimeLimits(), log=log)


def host_result(found: dict[str, Any]) -> Any:
    """A measurement as OpenEvolve takes it: numbers as metrics, the rest as artifacts for the language model."""
    from openevolve.evaluation_result import EvaluationResult

    if found["outcome"] != "ok":
        artifacts = {"outcome": found["outcome"], "error": found["error"]}
        return EvaluationResult(metrics={"combined_score": 0.0, "correct": 0.0}, artifacts=artifacts)
    metrics = {
        "combined_score": 1000.0 / found["time_us"],
        "correct": 1.0,
        "time_us": found["time_us"],
        "spread": found["spread"],
    }
    times = ", ".join(f"{row['median_us']:.1f} us" for row in found["shapes"])
    return EvaluationResult(metrics=metrics, artifacts={"times": times})
