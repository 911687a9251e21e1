"""What people read of a comparison: a table and a plot."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.statistics import mean_curve

__all__ = ["draw_curves", "print_result", "result_table"]

_COLOURS = {"baseline": "#555555", "random": "#c0722b", "surrogate": "#1664a5", "oracle": "#3a8a3f"}
_STYLES = {"oracle": "--", "random": ":"}


def _number(value: float | None, form: str, absent: str = "-") -> str:
    return absent if value is None else format(value, form)


def result_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm."""
    title = (
        f"{summary['task']} through {summary['host']}: {summary['budget']} measurements each, "
        f"{len(summary['seeds'])} seed(s); fastest kernel of the pool {summary['pool_best_speedup']:.2f}x"
    )
    table = Table(title=title, title_justify="left")
    for heading in (
        "arm",
        "best",
        "of pool's best",
        "against baseline",
        "95 % interval",
        "to match",
        "worse",
    ):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, comparison in summary["comparison"].items():
        interval = comparison["ci95"]
        is_baseline = name == "baseline"
        table.add_row(
            name,
            f"{np.mean(summary['arms'][name]['best_speedup']):.2f}x",
            f"{comparison['share_of_pool_best']:.0%}",
            "-" if is_baseline else f"{comparison['mean_ratio']:.3f}",
            "-" if is_baseline or interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
            "-"
            if is_baseline
            else _number(comparison["measurements_to_match_ratio"], ".1f") + "x fewer"
            if comparison["measurements_to_match_ratio"] is not None
            else "never",
            "-" if is_baseline else f"{comparison['worse_than_2pct_share']:.0%}",
        )
    table.caption = (
        "best: mean over seeds; against baseline: geometric mean over paired seeds; to match: how many times fewer "
        "measurements reach the baseline's mean final best; worse: seeds more than 2 % below the baseline's"
    )
    table.caption_justify = "left"
    return table


def print_result(summary: Mapping[str, Any], out: Path) -> None:
    """The table and the verdict, and where the rest is."""
    # A pipe has no width: wide enough that no cell is folded.
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(result_table(summary))
    for name, comparison in summary["comparison"].items():
        if name != "baseline":
            console.print(f"{name} against baseline: {comparison['verdict']}", highlight=False)
    console.print(
        f"plot: {out / 'curves.png'}   numbers: {out / 'summary.json'}", highlight=False, soft_wrap=True
    )


def draw_curves(runs: Mapping[str, Sequence[ArmRun]], summary: Mapping[str, Any], path: Path) -> None:
    """Best speed-up over measurements: the mean of each arm, and the single searches behind it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    budget = summary["budget"]
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axhline(summary["pool_best_speedup"], color="#bbbbbb", linewidth=1)
    axes.annotate(
        "fastest in the pool", (budget, summary["pool_best_speedup"]), ha="right", va="bottom", fontsize=8
    )
    steps = np.arange(1, budget + 1)
    for name, found in runs.items():
        colour = _COLOURS.get(name, "#884488")
        for run in found:
            axes.step(
                range(1, len(run.curve) + 1), run.curve, where="post", color=colour, alpha=0.18, linewidth=0.8
            )
        axes.step(
            steps,
            mean_curve(found, budget),
            where="post",
            color=colour,
            linestyle=_STYLES.get(name, "-"),
            linewidth=2.2,
            label=name,
        )
    axes.set_xlabel("GPU measurements")
    axes.set_ylabel("best speed-up over the reference")
    axes.set_title(f"{summary['task']}, host {summary['host']}, {len(summary['seeds'])} seed(s)", fontsize=10)
    axes.set_xlim(1, budget)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
