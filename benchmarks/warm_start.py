"""Does a start from recorded tasks of other operations help the learned forecaster?

``python -m benchmarks.warm_start`` searches every recorded task in process with the filter as it is by default and with
``warm_start: false``, on the same seeds, and compares the two. What they share, guard and climatology included, is the
same: the difference is what the other tasks taught.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine, write_result
from benchmarks.search import runs_at
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.compare.statistics import compare_arms
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.recorded.pool import recorded_task_names

BUDGETS = (16, 32, 64)
COLD = {"forecaster": {"kind": "learned", "warm_start": False}}


def _searches(task: str, section: SurrogateConfig, seeds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run_comparison(
            task,
            host="inprocess",
            budget=max(BUDGETS),
            seeds=seeds,
            arms=("baseline", "surrogate"),
            surrogate=section,
            out=Path(folder),
        )


def figures(task: str, seeds: int) -> list[dict[str, Any]]:
    """One row per budget: the default over the same without a warm start."""
    warm = _searches(task, SurrogateConfig(), seeds)
    cold = _searches(task, parse_surrogate_config(COLD), seeds)
    rows = []
    for budget in BUDGETS:
        pair = [runs_at(summary, budget)["surrogate"] for summary in (warm, cold)]
        rows.append({"task": task, "budget": budget} | compare_arms(*pair, budget, warm["pool_best_speedup"]))
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| task | budget | best with over best without (geometric mean) | 95 % interval | seeds worse by over 2 % |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ci95"]
        lines.append(
            f"| {row['task']} | {row['budget']} | {row['mean_ratio']:.3f} | {low:.3f} to {high:.3f} "
            f"| {row['worse_than_2pct_share']:.2f} |"
        )
    for budget in BUDGETS:
        ratios = [row["mean_ratio"] for row in rows if row["budget"] == budget]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"| all | {budget} | {mean:.3f} | | |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    options = parser.parse_args(arguments)
    rows = [row for task in recorded_task_names() for row in figures(task, options.seeds)]
    text = f"In process, {options.seeds} paired seeds. {machine()}\n\n"
    write_result("warm_start", rows, text + _table(rows))


if __name__ == "__main__":
    main()
