"""What a call of a recorded evaluator leaves behind, and how long it seems to take. Light: evaluators start often."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["CALL_LOG_VARIABLE", "EVAL_SECONDS_VARIABLE", "log_call", "pretend_to_measure"]

CALL_LOG_VARIABLE = "GPU_FORECASTERS_CALL_LOG"
"""When set, each real evaluator call adds a line to ``measurements.jsonl`` beside the evaluator (value ``1``)
or to the file that the value names."""

EVAL_SECONDS_VARIABLE = "GPU_FORECASTERS_EVAL_SECONDS"
"""Simulated duration of a measurement, in seconds; default 0."""


def pretend_to_measure() -> None:
    """Take as long as a measurement is to seem."""
    text = os.environ.get(EVAL_SECONDS_VARIABLE, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{EVAL_SECONDS_VARIABLE} must be a number of seconds, got {text!r}")
    time.sleep(seconds)


def log_call(folder: Path, row: dict[str, Any]) -> None:
    """Add a line to the call log, if there is one; the process and the time are added."""
    target = os.environ.get(CALL_LOG_VARIABLE, "").strip()
    if not target:
        return
    path = folder / "measurements.jsonl" if target == "1" else Path(target)
    # One write on an appending descriptor: lines of concurrent workers never mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(row | {"pid": os.getpid(), "time": time.time()}) + "\n").encode())
    finally:
        os.close(descriptor)
