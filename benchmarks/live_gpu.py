"""File what ``examples/live_gpu/run.py`` found on a GPU: ``python -m benchmarks.live_gpu --run FOLDER``.

Writes ``results/live_gpu.{json,md}``, a picture per task, and the searches as data into ``results/live_gpu/``. It runs
nothing: every figure is the run's own, and its curves are compared with what the ledgers say. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_gpu_searches import LiveSearch, forecasts_of, searches_of, together, write_data
from benchmarks.live_gpu_text import SCORES, text_of
from benchmarks.report import RESULTS, write_result
from gpu_forecasters_plugin.calibration.ceiling import spread_ceiling
from gpu_forecasters_plugin.calibration.measures import measure
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.files import write_atomically

_WITHOUT_FORECASTS = ("baseline", "random")
_MADE = ("gpu", "driver", "python", "versions", "workers", "searches_side_by_side", "date")


def _kept(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(f"{path} cannot be read ({error.strerror}): let the run end first") from None


def _document(path: Path) -> Any:
    try:
        return json.loads(_kept(path))
    except ValueError as error:
        raise SystemExit(f"{path} is not JSON ({error})") from None


def _summary(run: Path, searches: Sequence[LiveSearch]) -> dict[str, Any]:
    """What the run says of a task.

    Raises:
        SystemExit: it is not about these searches, or a ledger says otherwise; names them.
    """
    path = run / searches[0].task / "summary.json"
    summary: dict[str, Any] = _document(path)
    about = {f"{arm}-{seed}" for arm in summary["arms"] for seed in summary["seeds"]}
    if about != {search.name for search in searches}:
        raise SystemExit(
            f"{path} is about {', '.join(sorted(about))}: let examples/live_gpu/run.py end, or choose with --arms"
        )
    for search in searches:
        told = summary["arms"][search.arm]["curve"][summary["seeds"].index(search.seed)]
        if told != search.curve():
            raise SystemExit(f"{path} does not say of {search.name} what its ledger says")
    for numbers in summary["arms"].values():
        del numbers["best_code"]  # it is in the data, as all other sources
    return summary


def _spread(run: Path, task: str) -> float:
    """Relative standard deviation of a measured speed-up, from the programs that were timed again and again."""
    rows = _document(run / task / "confirmation.json")
    repeats = [rows[0]["initial_us"], *(row["times_us"] for row in rows)]
    variances = [np.var(np.log(times), ddof=1) for times in repeats if None not in times]
    return math.sqrt(2.0 * float(np.mean(variances)))  # two times make a speed-up


def _forecasts(searches: Sequence[LiveSearch], spread: float) -> dict[str, dict[str, Any]]:
    """Scores of an arm's forecasts: of all that was measured, of both halves of the searches, of the random draws."""
    found = forecasts_of(searches)
    halves = [np.arange(len(each.rows)) < len(each.rows) // 2 for each in found]
    sets = {
        "all that was measured": [each.rows for each in found],
        "first half of each search": [each.rows.take(half) for each, half in zip(found, halves, strict=True)],
        "second half": [each.rows.take(~half) for each, half in zip(found, halves, strict=True)],
        "drawn at random": [each.drawn for each in found],
    }
    return {name: _scores(together(parts), spread) for name, parts in sets.items() if any(map(len, parts))}


def _scores(rows: ForecastRows, spread: float) -> dict[str, Any]:
    scores = asdict(measure(rows))
    ceiling = spread_ceiling(rows.log2_speedups, np.full(len(rows), np.log2(1.0 + spread)))
    assert ceiling is not None
    return {name: scores[name] for name in SCORES} | {"ceiling": ceiling.exact}


def figures(run: Path, searches: Sequence[LiveSearch], checks: Sequence[Path]) -> dict[str, Any]:
    """The content of ``live_gpu.json``.

    Args:
        run: the run's folder.
        searches: all that are compared, each ended.
        checks: folders of timing checks.

    Raises:
        SystemExit: something is missing, or contradicts the ledgers.
    """
    timing = {check["task"]: check for check in (_document(folder / "summary.json") for folder in checks)}
    tasks: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(search.task for search in searches):
        own = [search for search in searches if search.task == task]
        tasks[task] = summary = _summary(run, own)
        summary["speedup_spread"] = spread = _spread(run, task)
        summary["forecasts"] = {
            arm: _forecasts([search for search in own if search.arm == arm], spread)
            for arm in summary["arms"]
            if arm not in _WITHOUT_FORECASTS
        }
        summary["timing_check"] = timing.pop(task, None)
    if timing:
        raise SystemExit(f"a timing check of {', '.join(sorted(timing))}, which is none of the run's tasks")
    first = next(iter(tasks.values()))
    return {"made": {name: first[name] for name in _MADE}, "budget": first["budget"], "tasks": tasks}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a run's folder and file it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="--out of examples/live_gpu/run.py")
    parser.add_argument("--arms", help="these alone, with commas (default: all in the folder)")
    parser.add_argument(
        "--check",
        type=Path,
        action="append",
        default=[],
        help="--out of examples/live_gpu/timing_check.py; once for each task that was checked",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args(arguments)
    searches = searches_of(options.run, options.arms.split(",") if options.arms else None)
    found = figures(options.run, searches, options.check)
    journal = _kept(options.run / "measurements.jsonl")
    pictures = {task: _kept(options.run / task / "curves.png") for task in found["tasks"]}
    write_data(searches, journal, options.results / "live_gpu")
    for task, picture in pictures.items():
        write_atomically(options.results / f"live_gpu_{task}.png", picture)
    write_result("live_gpu", found, text_of(found), options.results)


if __name__ == "__main__":
    main()
