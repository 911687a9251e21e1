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
from gpu_forecasters_plugin.pictures import png_bytes
from gpu_forecasters_plugin.printable import printable

__all__ = ["curves_image", "print_result", "result_table"]

_COLOURS = {"baseline": "#555555", "random": "#c0722b", "surrogate": "#1664a5", "oracle": "#3a8a3f"}
_STYLES = {"oracle": "--", "random": ":"}


def _match(comparison: Mapping[str, Any], budget: int) -> str:
    ratio = comparison["measurements_to_match_ratio"]
    return "never" if ratio is None else f"{budget / ratio:.0f} of {budget}"


def _used(arm: Mapping[str, Any]) -> str:
    fewest, most = min(arm["measurements_used"]), max(arm["measurements_used"])
    return str(most) if fewest == most else f"{fewest}-{most}"


def result_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm."""
    seeds = len(summary["seeds"])
    title = (
        f"{printable(summary['task'])} through {summary['host']}, {seeds} seed{'s' if seeds > 1 else ''}; "
        f"fastest kernel of the pool {summary['pool_best_speedup']:.2f}x"
    )
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in ("arm", "measured", "best", "of pool", "vs base", "95 % CI", "to match", "worse"):
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=True)
    for name, comparison in summary["comparison"].items():
        arm, interval = summary["arms"][name], comparison["ci95"]
        cells = [
            name,
            _used(arm),
            f"{np.mean(arm['best_speedup']):.2f}x",
            f"{comparison['share_of_pool_best']:.0%}",
        ]
        if name == "baseline":
            cells += ["-"] * 4
        else:
            cells += [
                f"{comparison['mean_ratio']:.3f}",
                "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}",
                _match(comparison, summary["budget"]),
                f"{comparison['worse_than_2pct_share']:.0%}",
            ]
        table.add_row(*cells)
    return table


_LEGEND = """measured: GPU measurements paid for; best: mean over seeds; of pool: share of the fastest kernel;
vs base: geometric mean of best / baseline's best over paired seeds; to match: measurements after which the
mean reaches the baseline's final one; worse: seeds more than 2 % below the baseline."""


def print_result(summary: Mapping[str, Any], out: Path) -> None:
    """The table and the verdict, and where the rest is."""
    # A pipe has no width: wide enough that no cell is folded.
    # A task may be named anything: nothing in it is markup.
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)
    console.print(result_table(summary))
    console.print(_LEGEND, highlight=False)
    for name, comparison in summary["comparison"].items():
        if name != "baseline":
            console.print(f"{name} against baseline: {comparison['verdict']}", highlight=False)
    if "surrogate_against_random" in summary:
        direct = summary["surrogate_against_random"]
        console.print(
            f"surrogate against random: {direct['verdict']} (ratio {direct['mean_ratio']:.3f})",
            highlight=False,
        )
    used = {count for arm in summary["arms"].values() for count in arm["measurements_used"]}
    if summary.get("budget_gpu_seconds") is not None:
        console.print(_seconds(summary), highlight=False)
    elif used != {summary["budget"]}:
        console.print(
            "note: not every search spent its budget; the host ran out of new proposals", highlight=False
        )
    plot, numbers = (printable(str(out / name)) for name in ("curves.png", "summary.json"))
    console.print(f"plot: {plot}   numbers: {numbers}", highlight=False, soft_wrap=True)


def _seconds(summary: Mapping[str, Any]) -> str:
    """What every arm spent of a budget that forecasts count in."""
    spent = ", ".join(
        f"{name} {np.mean(arm['gpu_seconds']):.3g} + {np.mean(arm['forecast_gpu_seconds']):.3g}"
        for name, arm in summary["arms"].items()
    )
    return f"GPU-seconds of {summary['budget_gpu_seconds']:g}, measuring + forecasting, means: {spent}"


def curves_image(runs: Mapping[str, Sequence[ArmRun]], summary: Mapping[str, Any]) -> bytes:
    """Best speed-up over measurements as PNG: the mean of each arm, and the single searches behind it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    budget = summary["budget"]
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axhline(summary["pool_best_speedup"], color="#bbbbbb", linewidth=1)
    axes.annotate(
        "fastest in the pool",
        (budget, summary["pool_best_speedup"]),
        ha="right",
        va="bottom",
        fontsize=8,
        xytext=(-4, 2),
        textcoords="offset points",
    )
    steps = np.arange(1, budget + 1)
    for name, found in runs.items():
        colour = _COLOURS.get(name, "#884488")
        for run in found:
            axes.step(
                range(1, len(run.curve) + 1), run.curve, where="post", color=colour, alpha=0.35, linewidth=0.8
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
    title = f"{printable(summary['task'])}, host {summary['host']}, seeds: {len(summary['seeds'])}"
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_xlim(1, budget)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return png_bytes(figure)
