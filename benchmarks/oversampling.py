"""How far does it pay to propose more than is measured?

``python -m benchmarks.oversampling`` replays each recorded task in process with 2, 4, 8 and 16 proposals per
measurement, at the same number of measurements, with the forecaster as it is by default, with one as good as a language
model, with chance and with one that knows every time. All are compared with the baseline of the same seeds, which
measures what it proposes. ``--keep DIR`` keeps the searches, and the same command goes on there.

A recorded task is finite, and proposals cost nothing here: what was passed over is proposed again, and who asks often
is led farther from the parent. How much that alone brings, chance shows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.leaderboard import standing
from benchmarks.report import machine, provenance, write_result
from benchmarks.search import figures
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.recorded.pool import recorded_task_names

FACTORS = (2, 4, 8, 16)
ARMS = ("baseline", "surrogate", "imitated_llm", "random", "oracle")
BUDGETS = (32, 64)

Row = Mapping[str, Any]


def section(factor: int) -> SurrogateConfig:
    """The defaults with that many proposals per measurement; as many of a step's are measured with each."""
    return parse_surrogate_config({"oversample": factor, "keep_fraction": 1.0 / factor})


def task_rows(task: str, factor: int, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """One row per budget and arm."""
    summary = run_comparison(
        task,
        host="inprocess",
        budget=max(BUDGETS),
        seeds=seeds,
        arms=ARMS,
        surrogate=section(factor),
        out=folder,
    )
    considered = {
        name: sum(arm["candidates_considered"]) / seeds / max(BUDGETS)
        for name, arm in summary["arms"].items()
    }
    return [
        {"factor": factor} | row | {"proposed_per_measurement": considered[row["arm"]]}
        for row in figures(summary, BUDGETS)
    ]


def _means(rows: Sequence[Row], budget: int, arm: str, factor: int) -> dict[str, Any]:
    at = [row for row in rows if (row["budget"], row["factor"]) == (budget, factor)]
    chosen = [row for row in at if row["arm"] == arm]
    proposed = sum(row["proposed_per_measurement"] for row in chosen) / len(chosen)
    oracle = [row for row in at if row["arm"] == "oracle"]
    return standing(chosen, oracle) | {"proposed_per_measurement": proposed}


def _cells(factor: int, budget: int, found: Row) -> str:
    ratio, gap = found["measurements_to_match_ratio"], found["gap_closed"]
    cells = [
        str(budget),
        found["arm"],
        f"{factor}x",
        f"{found['proposed_per_measurement']:.1f}",
        f"{found['mean_ratio']:.3f}",
        f"{found['smallest_mean_ratio']:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if gap is None else f"{gap:.0%}",
        f"{found['share_of_pool_best']:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def table(rows: Sequence[Row]) -> str:
    """Means over tasks, by arm and factor."""
    lines = [
        "| budget | arm | asked for | proposals per measurement | best over baseline's | on the worst task "
        "| times fewer measurements to match | gap closed | share of the pool's best |",
        "|---" * 9 + "|",
    ]
    for budget in BUDGETS:
        for arm in ARMS[1:]:
            lines += [_cells(factor, budget, _means(rows, budget, arm, factor)) for factor in FACTORS]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches and write their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", default=recorded_task_names())
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--keep", type=Path, default=None, help="folder for the runs; default: none is kept")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for factor in FACTORS:
        for task in options.tasks:
            with tempfile.TemporaryDirectory() as fresh:
                kept = Path(fresh) if options.keep is None else options.keep / f"{task}-{factor}"
                rows += task_rows(task, factor, options.seeds, kept)
    text = (
        f"In process, {options.seeds} paired seeds, means over {', '.join(options.tasks)}. {machine()}\n\n"
        "At every step the same number is measured. Gap closed is of the oracle's gain at the same factor, in "
        "logarithms. Proposals cost nothing here, and a task has a few hundred kernels: what was passed over is "
        "proposed again, and who asks often is led farther from the parent. `random` shows how much that alone "
        "brings.\n\n"
    )
    numbers = {"seeds": options.seeds, "made": provenance(), "rows": rows}
    write_result("oversampling", numbers, text + table(rows))


if __name__ == "__main__":
    main()
