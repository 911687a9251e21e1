"""What people read of a comparison: a table and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.significance import LEVEL, fewest_pairs
from gpu_forecasters_plugin.compare.statistics import mean_curve
from gpu_forecasters_plugin.pictures import png_bytes
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.terminal import table_console

__all__ = ["curves_image", "print_result", "print_results", "result_table", "results_table"]

_COLOURS = {"baseline": "#555555", "random": "#c0722b", "surrogate": "#1664a5", "oracle": "#3a8a3f"}
_OTHER_COLOURS = ("#884488", "#b5373c", "#0f8b8d", "#8a6d1f", "#d16ba5", "#5b5bd6")
_STYLES = {"oracle": "--", "random": ":"}
_WIDTH = 110
"""Columns that the tables take."""


def _colours(names: Iterable[str]) -> dict[str, str]:
    """The same colour for the usual arms in every picture; the others take turns."""
    others = cycle(_OTHER_COLOURS)
    return {name: _COLOURS.get(name) or next(others) for name in names}


def _match(comparison: Mapping[str, Any], budget: int) -> str:
    ratio = comparison["measurements_to_match_ratio"]
    return "never" if ratio is None else f"{budget / ratio:.0f} of {budget}"


def _used(arm: Mapping[str, Any]) -> str:
    fewest, most = min(arm["measurements_used"]), max(arm["measurements_used"])
    return str(most) if fewest == most else f"{fewest}-{most}"


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def result_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm."""
    seeds = len(summary["seeds"])
    title = (
        f"{printable(summary['task'])} through {summary['host']}, {seeds} seed{'s' if seeds > 1 else ''}; "
        f"fastest kernel of the pool {summary['pool_best_speedup']:.2f}x"
    )
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in ("arm", "measured", "best", "of pool", "vs base", "95 % CI", "p", "to match", "worse"):
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
            cells += ["-"] * 5
        else:
            cells += [
                f"{comparison['mean_ratio']:.3f}",
                "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}",
                _p_value(comparison["p_value_holm"]),
                _match(comparison, summary["budget"]),
                f"{comparison['worse_than_2pct_share']:.0%}",
            ]
        table.add_row(*cells)
    return table


_LEGEND = """measured: GPU measurements paid for; best: mean over seeds; of pool: share of the fastest kernel;
vs base: geometric mean of best / baseline's best over paired seeds; p: paired permutation test of that mean,
corrected for the number of arms (Holm); to match: measurements after which the mean reaches the baseline's
final one; worse: seeds more than 2 % below the baseline."""


def results_table(summary: Mapping[str, Any]) -> Table:
    """One row per arm and task, and one for all tasks."""
    title = f"{len(summary['tasks'])} tasks through {summary['host']}, {summary['budget']} measurements per search"
    table = Table(title=f"{title}, {len(summary['seeds'])} seeds", title_justify="left", pad_edge=False)
    for heading in ("arm", "task", "vs base", "95 % CI", "p", "times fewer", "gap closed", "shown"):
        table.add_column(heading, justify="left" if heading in ("arm", "task") else "right", no_wrap=True)
    for arm, overall in summary["across_tasks"].items():
        for task in summary["tasks"]:
            row = summary["comparison"][task][arm]
            table.add_row(arm, printable(task), *_cells(row, row["p_value_holm"]), row["significant"])
        shown = f"+{len(overall['better'])} -{len(overall['worse'])} of {len(summary['tasks'])}"
        table.add_row(arm, "all", *_cells(overall, overall["p_value"]), shown, end_section=True)
    return table


def _cells(row: Mapping[str, Any], p_value: float) -> list[str]:
    interval, ratio, gap = row["ci95"], row["measurements_to_match_ratio"], row["gap_closed"]
    return [
        f"{row['mean_ratio']:.3f}",
        "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}",
        _p_value(p_value),
        "never" if ratio is None else f"{ratio:.2f}",
        "-" if gap is None else f"{gap:.0%}",
    ]


_LEGEND_OF_ALL = """\
vs base: geometric mean of best / baseline's best over paired seeds; p: paired permutation test of that mean,
corrected for all arms and tasks together (Holm; the rows of all tasks are one test each); times fewer:
measurements than the baseline's to reach its final mean; gap closed: of that to the oracle (all: of the gain in
logarithms); shown: by p at 5 %."""


def print_results(summary: Mapping[str, Any], out: Path) -> None:
    """The table of several tasks, and where the rest is."""
    console = table_console(_WIDTH)
    console.print(results_table(summary))
    console.print(_LEGEND_OF_ALL, highlight=False)
    arms = summary["across_tasks"]
    _note_too_few(console, len(summary["seeds"]), len(arms) * len(summary["tasks"]))
    console.print(
        f"numbers: {printable(str(out / 'summary.json'))}, and a folder for each task beside it",
        highlight=False,
        soft_wrap=True,
    )


def print_result(summary: Mapping[str, Any], out: Path) -> None:
    """The table and the verdict, and where the rest is."""
    console = table_console(_WIDTH)
    console.print(result_table(summary))
    console.print(_LEGEND, highlight=False)
    for name, comparison in summary["comparison"].items():
        if name != "baseline":
            p_value = comparison["p_value_holm"]
            verdict = _with_test(comparison["verdict"], p_value, f"corrected p {_p_value(p_value)}")
            console.print(f"{name} against baseline: {verdict}", highlight=False)
    if "surrogate_against_random" in summary:
        direct = summary["surrogate_against_random"]
        told = f"ratio {direct['mean_ratio']:.3f}, paired test p {_p_value(direct['p_value'])}"
        verdict = _with_test(direct["verdict"], direct["p_value"], told)
        console.print(f"surrogate against random: {verdict}", highlight=False)
    _note_too_few(console, len(summary["seeds"]), len(summary["comparison"]) - 1)
    used = {count for arm in summary["arms"].values() for count in arm["measurements_used"]}
    if summary.get("budget_gpu_seconds") is not None:
        console.print(_seconds(summary), highlight=False)
    elif used != {summary["budget"]}:
        console.print(
            "note: not every search spent its budget; the host ran out of new proposals", highlight=False
        )
    plot, numbers = (printable(str(out / name)) for name in ("curves.png", "summary.json"))
    console.print(f"plot: {plot}   numbers: {numbers}", highlight=False, soft_wrap=True)


def _note_too_few(console: Console, seeds: int, tests: int) -> None:
    """Say where no test can be passed, so that nobody takes it for the arm's fault."""
    if tests and seeds < fewest_pairs(tests):
        tested = "the paired test" if tests == 1 else f"the paired test, corrected for {tests} of them,"
        console.print(
            f"note: with {seeds} seed{'' if seeds == 1 else 's'} {tested} cannot be passed at {LEVEL:.0%}, even if all "
            f"agree; it takes {fewest_pairs(tests)}",
            highlight=False,
        )


def _with_test(verdict: str, p_value: float, told: str) -> str:
    """The interval's verdict, whether the test of that p-value bears it out, and what is told of both."""
    if verdict in ("better", "worse") and p_value > LEVEL:
        return f"{verdict} by its interval, but not by the paired test at {LEVEL:.0%} ({told})"
    return f"{verdict} ({told})"


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
    colours = _colours(runs)
    for name, found in runs.items():
        colour = colours[name]
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
