"""The best program of each search timed again, with nothing else running: the best of many times is a lucky one too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring.workers import MeasuringError, WarmWorkers

from comparing.kept import kept_document
from comparing.search import ROOT, Found
from gpu_forecasters_plugin.files import write_json

__all__ = ["confirmed_speedups"]

ROUNDS = 3
_FIELDS = ("code", "initial_us", "times_us")


def confirmed_speedups(
    workers: WarmWorkers, task: str, runs: Mapping[str, Sequence[Found]], out: Path
) -> dict[str, list[float]]:
    """Speed-up of each search's best program over the initial program, timed in the same rounds.

    Args:
        workers: nobody else uses them meanwhile.
        task: the task's name.
        runs: what each arm found.
        out: the task's folder; times are kept there, and not taken a second time.

    Returns:
        By arm, one for each search: the ratio of the medians over the rounds; 0 for a program that failed this time.

    Raises:
        MeasuringError: the initial program failed.
    """
    kept = out / "confirmation.json"
    rows: list[dict[str, Any]] = kept_document(kept, list, *_FIELDS) or []
    known = {row["code"] for row in rows}
    wanted = dict.fromkeys(found.best_code for each in runs.values() for found in each)
    missing = [code for code in wanted if code not in known]
    if missing:
        rows += _timed(workers, ROOT / "tasks" / task, missing)
        write_json(kept, rows)
    speedups = {row["code"]: _speedup(row) for row in rows}
    return {arm: [speedups[found.best_code] for found in each] for arm, each in runs.items()}


def _timed(workers: WarmWorkers, folder: Path, codes: Sequence[str]) -> list[dict[str, Any]]:
    initial = (folder / "initial_program.py").read_text()
    rounds = [
        [workers.measure(folder / "task.py", code) for code in (initial, *codes)] for _ in range(ROUNDS)
    ]
    if any(found["outcome"] != "ok" for found, *_ in rounds):
        raise MeasuringError(f"{folder.name}: the initial program failed when it was timed again")
    initial_us = [found["time_us"] for found, *_ in rounds]
    times = zip(*([found.get("time_us") for found in others] for _, *others in rounds), strict=True)
    return [
        {"code": code, "initial_us": initial_us, "times_us": list(each)}
        for code, each in zip(codes, times, strict=True)
    ]


def _speedup(row: Mapping[str, Any]) -> float:
    times = [time for time in row["times_us"] if time is not None]
    return statistics.median(row["initial_us"]) / statistics.median(times) if times else 0.0
