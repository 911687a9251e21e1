"""File what ``examples/live_gpu/run.py`` found on a GPU: ``python -m benchmarks.live_gpu --run FOLDER``.

Writes ``results/live_gpu.{json,md}``, pictures, and the searches as data into ``results/live_gpu/``. It runs nothing:
the figures are those of the run's summaries, and their curves are compared with what the ledgers say. Needs no GPU.

A run whose arms have different numbers of seeds has a comparison for each number, each with the arms that have so many:
copy a task's ``summary.json`` and ``curves.png`` before the command with more seeds writes them anew, and name the copy
with ``--earlier``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_gpu_comparisons import FORECASTING, Comparison, comparisons_of, document, kept_bytes
from benchmarks.live_gpu_searches import (
    LiveSearch,
    begun_searches,
    chosen_searches,
    forecasts_of,
    together,
    write_data,
)
from benchmarks.live_gpu_text import SCORES, picture_name, text_of
from benchmarks.report import RESULTS, write_result
from gpu_forecasters_plugin.calibration.ceiling import spread_ceiling
from gpu_forecasters_plugin.calibration.measures import measure
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.files import write_atomically

_MADE = ("gpu", "driver", "python", "versions", "workers", "searches_side_by_side", "date")


def _spread(run: Path, task: str) -> float:
    """Relative standard deviation of a measured speed-up, from the programs that were timed again and again."""
    rows = document(run / task / "confirmation.json")
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


def figures(
    run: Path,
    searches: Sequence[LiveSearch],
    comparisons: Mapping[str, Sequence[Comparison]],
    checks: Sequence[Path],
    left_out: Sequence[LiveSearch],
) -> dict[str, Any]:
    """The content of ``live_gpu.json``.

    Args:
        run: the run's folder.
        searches: all that are filed, each ended.
        comparisons: of these, by task.
        checks: folders of timing checks.
        left_out: those that were begun and are not filed.

    Raises:
        SystemExit: something is missing, or contradicts something else.
    """
    timing = {check["task"]: check for check in (document(folder / "summary.json") for folder in checks)}
    tasks: dict[str, dict[str, Any]] = {}
    for task, each in comparisons.items():
        spread = _spread(run, task)
        by_arm: dict[str, list[LiveSearch]] = {}
        for search in searches:
            if search.task == task and search.arm in FORECASTING:
                by_arm.setdefault(search.arm, []).append(search)
        tasks[task] = {
            "comparisons": [one.figures() for one in each],
            "speedup_spread": spread,
            "forecasts": {arm: _forecasts(own, spread) for arm, own in by_arm.items()},
            "timing_check": timing.pop(task, None),
            "left_out": {
                search.name: "ended" if search.ended else "not ended"
                for search in left_out
                if search.task == task
            },
        }
    if timing:
        raise SystemExit(f"a timing check of {', '.join(sorted(timing))}, which is none of the run's tasks")
    first = next(iter(tasks.values()))["comparisons"][0]
    return {"made": {name: first[name] for name in _MADE}, "budget": first["budget"], "tasks": tasks}


def _arms(text: str) -> dict[str, int | None]:
    """``a,b:3`` as all seeds of one arm, and the first three of another."""
    parts = [part.partition(":") for part in text.split(",")]
    try:
        return {arm: int(seeds) if colon else None for arm, colon, seeds in parts}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like baseline,surrogate,random:3") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a run's folder and file it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="--out of examples/live_gpu/run.py")
    parser.add_argument(
        "--arms",
        type=_arms,
        help="these alone, with commas; random:3 is the first three seeds of one (default: all in the folder)",
    )
    parser.add_argument(
        "--earlier",
        type=Path,
        action="append",
        default=[],
        help="copy of a task's summary.json with fewer seeds, its curves.png beside it as .png; once for each",
    )
    parser.add_argument(
        "--check",
        type=Path,
        action="append",
        default=[],
        help="--out of examples/live_gpu/timing_check.py; once for each task that was checked",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args(arguments)
    begun = begun_searches(options.run)
    searches = chosen_searches(begun, options.arms)
    comparisons = comparisons_of(options.run, searches, options.earlier)
    left_out = [search for search in begun if search not in searches]
    found = figures(options.run, searches, comparisons, options.check, left_out)
    journal = kept_bytes(options.run / "measurements.jsonl")
    pictures = {
        picture_name(task, one.summary): kept_bytes(one.picture)
        for task, each in comparisons.items()
        for one in each
    }
    write_data(searches, journal, options.results / "live_gpu")
    for name, picture in pictures.items():
        write_atomically(options.results / name, picture)
    write_result("live_gpu", found, text_of(found), options.results)


if __name__ == "__main__":
    main()
