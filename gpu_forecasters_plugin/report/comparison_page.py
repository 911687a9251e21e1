"""The page of a comparison: the arms against each other, and the surrogate's searches taken together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_forecasters_plugin.report.comparison import Comparison
from gpu_forecasters_plugin.report.comparison_charts import BAND, arm_curves, curves_picture, pairs_picture
from gpu_forecasters_plugin.report.facts import RunFacts, together
from gpu_forecasters_plugin.report.page import Page
from gpu_forecasters_plugin.report.parts import Picture, Section, Table
from gpu_forecasters_plugin.report.run_page import shared_sections
from gpu_forecasters_plugin.report.run_story import gain_sentence, run_data
from gpu_forecasters_plugin.report.selection_gain import selection_gain

__all__ = ["comparison_page"]

_POINTS = 16
"""Rows of the table behind the curves at most."""


def comparison_page(comparison: Comparison, searches: Sequence[RunFacts]) -> Page:
    """What a comparison's page says.

    Args:
        comparison: its summary.
        searches: the surrogate arm's searches, as far as there are ledgers of them.
    """
    sections = [_curves(comparison), _arms(comparison), *_pairs(comparison)]
    data: dict[str, Any] = {"kind": "comparison", "comparison": comparison.model_dump(mode="json")}
    notes = _notes(comparison)
    if searches:
        facts = together(searches)
        gain = selection_gain(facts.measured)
        of = (
            "" if len(searches) == len(comparison.seeds) else f" ({len(searches)} of them have a ledger here)"
        )
        notes.append(f"In the surrogate's searches{of} {gain_sentence(gain)}.")
        sections += shared_sections(facts)
        data["surrogate"] = run_data(facts, gain)
    else:
        notes.append(
            "There are no ledgers of the surrogate's searches here, so there is nothing to tell of its forecasts and "
            "decisions."
        )
    seeds = len(comparison.seeds)
    return Page(
        title=f"Comparison at {comparison.budget:,} measurements",
        about=f"{comparison.task}, through the host {comparison.host}, {seeds} paired seed{'s' if seeds > 1 else ''}"
        + (f", measured on {comparison.device}." if comparison.device else "."),
        verdict=comparison.sentence,
        notes=notes,
        figures=_figures(comparison),
        sections=sections,
        data=data,
    )


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    direct = comparison.surrogate_against_random
    if direct is not None:
        notes.append(
            f"Against chance in place of forecasts, which chooses from as large pools: {direct.mean_ratio:.3f} times "
            f"as fast ({direct.interval}), {direct.verdict}. That is the part of the gain that forecasts have earned."
        )
    return notes


def _figures(comparison: Comparison) -> list[tuple[str, str]]:
    figures = []
    for name, arm in comparison.arms.items():
        figures.append((f"{name}: mean best", f"{np.mean(arm.best_speedup):.2f}x"))
    return [*figures, ("fastest in the pool", f"{comparison.pool_best_speedup:.2f}x")]


def _curves(comparison: Comparison) -> Section:
    budget = comparison.budget
    steps = np.unique(np.linspace(1, budget, min(budget, _POINTS)).round().astype(int))
    headings: list[tuple[str, bool]] = [("after", True)]
    columns = []
    for name in comparison.arms:
        curves = arm_curves(comparison, name)
        low, high = np.quantile(curves, BAND, axis=0)
        headings += [(f"{name}, mean", True), ("middle half of seeds", True)]
        columns.append((curves.mean(axis=0), low, high))
    rows = [
        [
            str(step),
            *(
                cell
                for mean, low, high in columns
                for cell in (f"{mean[step - 1]:.2f}x", f"{low[step - 1]:.2f} to {high[step - 1]:.2f}")
            ),
        ]
        for step in steps
    ]
    picture = Picture(
        curves_picture(comparison),
        "Mean of the best speed-up over the seeds of each arm; the bands hold the middle half of the seeds.",
        Table("Best speed-up after so many measurements", headings, rows),
    )
    text = (
        "Every arm is the same host with the same number of GPU measurements, that of the reference included."
    )
    return Section("curves", "Best speed-up over GPU measurements", [text], [picture])


def _p_value(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _arms(comparison: Comparison) -> Section:
    headings = [
        ("arm", False),
        ("mean best", True),
        ("of the pool's best", True),
        ("against baseline", True),
        ("95 % interval", True),
        ("corrected p", True),
        ("to match baseline", True),
        ("seeds over 2 % worse", True),
        ("candidates", True),
        ("GPU-seconds", True),
    ]
    rows = []
    for name, arm in comparison.arms.items():
        verdict = comparison.comparison[name]
        share, ratio, worse = (
            verdict.share_of_pool_best,
            verdict.measurements_to_match_ratio,
            verdict.worse_than_2pct_share,
        )
        is_baseline = name == "baseline"
        interval = verdict.ci95
        rows.append(
            [
                name,
                f"{np.mean(arm.best_speedup):.3f}x",
                "-" if share is None else f"{share:.0%}",
                "-" if is_baseline else f"{verdict.mean_ratio:.3f}",
                "-" if is_baseline or interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
                _p_value(verdict.p_value_holm),
                "-" if is_baseline else "never" if ratio is None else f"{comparison.budget / ratio:.0f}",
                "-" if is_baseline or worse is None else f"{worse:.0%}",
                f"{np.mean(arm.candidates_considered):.0f}",
                f"{np.mean(arm.gpu_seconds) + np.mean(arm.forecast_gpu_seconds or [0.0]):.3g}",
            ]
        )
    text = (
        "Against baseline: geometric mean of best / baseline's best over paired seeds. Corrected p: paired permutation "
        "test of that mean, corrected for the number of arms (Holm). To match baseline: measurements after which the "
        "arm's mean reaches the baseline's final one. Candidates and GPU-seconds (measuring and priced forecasting) "
        "are means per search."
    )
    return Section("arms", "The arms", [text], tables=[Table("Arms at equal budget", headings, rows)])


def _pairs(comparison: Comparison) -> list[Section]:
    names = [name for name in comparison.arms if name != "baseline"]
    if "baseline" not in comparison.arms or not names:
        return []
    headings = [("seed", True), *((name, True) for name in comparison.arms)]
    rows = [
        [str(seed), *(f"{arm.best_speedup[place]:.3f}x" for arm in comparison.arms.values())]
        for place, seed in enumerate(comparison.seeds)
    ]
    picture = Picture(
        pairs_picture(comparison),
        "Each dot is a seed; the diamond is the geometric mean, with its 95 % interval as a line.",
        Table("Best speed-up by seed", headings, rows),
    )
    text = "Single searches differ much, also without any filter: only the mean over paired seeds says something."
    return [Section("pairs", "Seed by seed", [text], [picture])]
