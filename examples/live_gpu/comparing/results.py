"""From the searches of a task to a table, a picture and numbers."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from comparing.search import Found
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.significance import holm
from gpu_forecasters_plugin.compare.statistics import compare_arms, mean_curve
from gpu_forecasters_plugin.pictures import png_bytes

__all__ = ["curves_image", "print_summary", "reached_at", "summarise"]

Runs = Mapping[str, Sequence[Found]]
_COLOURS = {"baseline": "#555555", "surrogate": "#1664a5", "screened": "#0f8b8d", "random": "#c0722b"}


def reached_at(curve: Sequence[float], target: float) -> int | None:
    """After how many measurements a curve first is at a speed-up, or beyond; ``None`` if it never is."""
    return next((number for number, best in enumerate(curve, start=1) if best >= target), None)


def summarise(
    runs: Runs, confirmed: Mapping[str, Sequence[float]], *, task: str, budget: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a task's ``summary.json``.

    Args:
        runs: what each arm found, a search per seed.
        confirmed: speed-up of each search's best program, when it was timed again after all searches.
        task: the task's name.
        budget: measurements of each search, the initial program's included.
        about: device, versions and the like, taken over as they are.

    Returns:
        Beside the searches' numbers, for each arm: ``comparison``, as ``gpu-forecasters compare`` has it, and
        ``stop_early``: after how many measurements it had reached the baseline's final best, seed by seed
        (``reached_at``; ``None``: never), the median (never counts as more than the budget), and the share of the
        budget that this is.
    """
    records = {
        arm: [_record(arm, seed, found) for seed, found in enumerate(each)] for arm, each in runs.items()
    }
    fastest = max(record.best_speedup for each in records.values() for record in each)
    comparison = {
        arm: compare_arms(each, records["baseline"], budget, fastest) for arm, each in records.items()
    }
    others = [arm for arm in comparison if arm != "baseline"]
    for arm, corrected in zip(others, holm([comparison[arm]["p_value"] for arm in others]), strict=True):
        comparison[arm]["p_value_holm"] = corrected
    return {
        "task": task,
        "budget": budget,
        "seeds": list(range(len(runs["baseline"]))),
        **about,
        "fastest_speedup": fastest,
        "arms": {arm: _numbers(each, confirmed[arm]) for arm, each in runs.items()},
        "comparison": comparison,
        "stop_early": {arm: _stop_early(records[arm], records["baseline"], budget) for arm in others},
    }


def _record(arm: str, seed: int, found: Found) -> ArmRun:
    return ArmRun(arm, seed, found.curve, found.candidates_considered, 0.0)


def _numbers(runs: Sequence[Found], confirmed: Sequence[float]) -> dict[str, Any]:
    return {
        "best_speedup": [found.curve[-1] for found in runs],
        "confirmed_speedup": list(confirmed),
        "best_time_us": [found.best_time_us for found in runs],
        "measurements_used": [len(found.curve) for found in runs],
        "candidates_considered": [found.candidates_considered for found in runs],
        "outcomes": [found.outcomes for found in runs],
        "seconds": [found.seconds for found in runs],
        "curve": [list(found.curve) for found in runs],
        "best_code": [found.best_code for found in runs],
    }


def _stop_early(arm: Sequence[ArmRun], baseline: Sequence[ArmRun], budget: int) -> dict[str, Any]:
    reached = [
        reached_at(ours.curve, theirs.best_speedup) for ours, theirs in zip(arm, baseline, strict=True)
    ]
    median = statistics.median(budget + 1 if number is None else number for number in reached)
    return {
        "reached_at": reached,
        "median": None if median > budget else median,
        "share_of_budget": None if median > budget else median / budget,
    }


def print_summary(summary: Mapping[str, Any]) -> None:
    """The table of a task."""
    seeds = len(summary["seeds"])
    title = f"{summary['task']} on {summary['gpu']}, {seeds} seed{'s' if seeds > 1 else ''}, "
    title += f"{summary['budget']} measurements per search; fastest of all searches {summary['fastest_speedup']:.2f}x"
    table = Table(title=title, title_justify="left", pad_edge=False)
    headings = ("arm", "proposed", "best", "timed again", "vs base", "95 % CI", "p", "to match", "by seed")
    for heading in headings:
        # Many seeds take several lines, and no other figure is cut short for them.
        one_line = heading != "by seed"
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=one_line)
    for arm, numbers in summary["arms"].items():
        cells = [
            f"{np.mean(numbers['candidates_considered']):.0f}",
            f"{np.mean(numbers['best_speedup']):.2f}x",
        ]
        cells.append(f"{np.mean(numbers['confirmed_speedup']):.2f}x")
        table.add_row(arm, *cells, *(["-"] * 5 if arm == "baseline" else _compared(summary, arm)))
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)
    console.print(table)
    console.print(
        "proposed: kernels that were decided on; best: mean over seeds; timed again: the same kernels after all "
        "searches, with nothing else running; vs base: geometric mean of best / baseline's best; p: paired "
        "permutation test; to match: measurements after which the mean is at the baseline's final one; by seed: "
        "measurements after which each search was at the best of the baseline with the same seed.",
        highlight=False,
    )


def _compared(summary: Mapping[str, Any], arm: str) -> list[str]:
    row, budget = summary["comparison"][arm], summary["budget"]
    interval, ratio = row["ci95"], row["measurements_to_match_ratio"]
    reached = summary["stop_early"][arm]["reached_at"]
    return [
        f"{row['mean_ratio']:.3f}",
        "-" if interval is None else f"{interval[0]:.3f}-{interval[1]:.3f}",
        f"{row['p_value_holm']:.3f}",
        "never" if ratio is None else f"{budget / ratio:.0f} of {budget}",
        ", ".join("never" if number is None else str(number) for number in reached),
    ]


def curves_image(runs: Runs, summary: Mapping[str, Any]) -> bytes:
    """Best speed-up over measurements as PNG: the mean of each arm, and the single searches behind it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    budget = summary["budget"]
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for arm, each in runs.items():
        for found in each:
            steps = range(1, len(found.curve) + 1)
            axes.step(steps, found.curve, where="post", color=_COLOURS[arm], alpha=0.35, linewidth=0.8)
        mean = mean_curve([_record(arm, 0, found) for found in each], budget)
        axes.step(range(1, budget + 1), mean, where="post", color=_COLOURS[arm], linewidth=2.2, label=arm)
    axes.set_xlabel("measurements on the GPU")
    axes.set_ylabel("best speed-up over the initial program")
    axes.set_title(f"{summary['task']}, {summary['gpu']}, seeds: {len(summary['seeds'])}", fontsize=10)
    axes.set_xlim(1, budget)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return png_bytes(figure)
