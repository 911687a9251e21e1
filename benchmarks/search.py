"""Search at equal budget on every recorded task: does the filter find faster kernels for the same measurements?

``python -m benchmarks.search`` replays each task in process with 40 paired seeds and 128 measurements per search, and
reads the figures at 32 and 64 measurements off the same curves: with the default, with a forecaster as good as a
language model, with a useless and with an inverted one, and with the paper's policy. ``--host puct`` does so in the
paper's own search, ``--host openevolve`` does one task through real OpenEvolve, ``--host shinka`` two through real
ShinkaEvolve. ``--arms`` takes others. With ``--keep DIR`` an interrupted benchmark goes on.

The tests of a budget, all its tasks and arms, are corrected together (Holm).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine, provenance, write_result
from gpu_forecasters_plugin.compare import ARM_NAMES, run_comparison
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.significance import holm
from gpu_forecasters_plugin.compare.statistics import compare_arms, gap_closed
from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config
from gpu_forecasters_plugin.recorded.pool import recorded_task_names

BUDGETS = (32, 64, 128)

_REAL_HOSTS: dict[str, tuple[list[str], int]] = {
    "openevolve": (["cross_entropy"], 64),
    "shinka": (["cross_entropy", "rmsnorm"], 32),
}
"""Tasks and budget where a real host runs: minutes for each search."""

_REPLAYED_ARMS = (*ARM_NAMES, "paper", "imitated_llm", "useless", "inverted")
"""What is compared where a search takes a second."""


def runs_at(summary: dict[str, Any], budget: int) -> dict[str, list[ArmRun]]:
    """The searches of a summary as they stood after ``budget`` measurements."""
    runs: dict[str, list[ArmRun]] = {}
    for name, arm in summary["arms"].items():
        curves = [tuple(curve[:budget]) for curve in arm["curve"]]
        runs[name] = [ArmRun(name, seed, c, 0, 0.0) for seed, c in zip(summary["seeds"], curves, strict=True)]
    return runs


def figures(summary: dict[str, Any], budgets: Sequence[int]) -> list[dict[str, Any]]:
    """One row per budget and arm."""
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        runs = runs_at(summary, budget)
        for name, found in runs.items():
            row = compare_arms(found, runs["baseline"], budget, summary["pool_best_speedup"])
            closed = {"gap_closed": gap_closed(runs, name)}
            rows.append({"task": summary["task"], "budget": budget, "arm": name} | row | closed)
    return rows


def correct_together(rows: Sequence[dict[str, Any]]) -> None:
    """Add ``p_value_holm`` to each row: the arms of all tasks at one budget are a family of tests."""
    for budget in {row["budget"] for row in rows}:
        family = [row for row in rows if row["budget"] == budget and row["arm"] != "baseline"]
        for row, corrected in zip(family, holm([row["p_value"] for row in family]), strict=True):
            row["p_value_holm"] = corrected


def _cell(row: dict[str, Any]) -> str:
    interval = row["ci95"]
    ratio = row["measurements_to_match_ratio"]
    shown = [
        row["task"],
        str(row["budget"]),
        row["arm"],
        f"{row['share_of_pool_best']:.3f}",
        f"{row['mean_ratio']:.3f}",
        "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
        "never" if ratio is None else f"{ratio:.2f}",
        f"{row['worse_than_2pct_share']:.2f}",
        f"{row['p_value_holm']:.4f}" if "p_value_holm" in row else "-",
    ]
    return "| " + " | ".join(shown) + " |"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of :func:`figures`, as people read them."""
    head = (
        "| task | budget | arm | share of the pool's best | best over baseline's (geometric mean) | 95 % interval "
        "| times fewer measurements to match | seeds worse by over 2 % | corrected p |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(_cell(row) for row in rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and write its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="inprocess")
    parser.add_argument("--tasks", nargs="*", default=None, help="default: all; a few with a real host")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--budget", type=int, default=None)
    parser.add_argument("--surrogate", type=Path, default=None)
    parser.add_argument("--arms", default=None, help="as gpu-forecasters compare takes them")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the runs; default: none is kept")
    parser.add_argument("--name", default=None, help="of the files of results; default: search_HOST")
    options = parser.parse_args(arguments)
    real = options.host in _REAL_HOSTS
    usual_tasks, usual_budget = _REAL_HOSTS.get(options.host, (recorded_task_names(), max(BUDGETS)))
    tasks, budget = options.tasks or usual_tasks, options.budget or usual_budget
    seeds = options.seeds or (10 if real else 40)
    usual_arms = ",".join(ARM_NAMES if real else _REPLAYED_ARMS)
    section = SurrogateConfig() if options.surrogate is None else load_surrogate_config(options.surrogate)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        with tempfile.TemporaryDirectory() as folder:
            summary = run_comparison(
                task,
                host=options.host,
                budget=budget,
                seeds=seeds,
                arms=(options.arms or usual_arms).split(","),
                surrogate=section,
                out=Path(folder) if options.keep is None else options.keep / task,
            )
        rows += figures(summary, [b for b in BUDGETS if b <= budget] or [budget])
        print(table(rows[-len(summary["arms"]) :]))
    correct_together(rows)
    text = f"Host {options.host}, {seeds} paired seeds, {budget} measurements per search. {machine()}\n\n"
    numbers = {"host": options.host, "seeds": seeds, "budget": budget, "made": provenance(), "rows": rows}
    write_result(options.name or f"search_{options.host}", numbers, text + table(rows))


if __name__ == "__main__":
    main()
