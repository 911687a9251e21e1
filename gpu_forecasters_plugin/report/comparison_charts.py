"""What the pictures of a comparison's page show."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from gpu_forecasters_plugin.report.comparison import Comparison
from gpu_forecasters_plugin.report.drawing import INK, MUTED, SERIES, figure, svg

__all__ = ["BAND", "arm_curves", "curves_picture", "pairs_picture"]

BAND = (0.25, 0.75)
"""Quantiles over seeds between which the bands lie."""

_COLOURS = {"baseline": SERIES[6], "surrogate": SERIES[0], "random": SERIES[3], "oracle": SERIES[2]}
_OTHER_COLOURS = (SERIES[4], SERIES[1], SERIES[5], SERIES[7])
_STYLES = {"baseline": "--", "random": ":", "oracle": "-."}


def arm_curves(comparison: Comparison, arm: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Best speed-up after each measurement; shape (seeds, budget); a search that ended early keeps its last."""
    budget = comparison.budget
    rows = [(curve + [curve[-1]] * budget)[:budget] for curve in comparison.arms[arm].curve]
    return np.array(rows)


def _colours(comparison: Comparison) -> dict[str, str]:
    """The usual arms look the same in every comparison; the others take turns."""
    others = cycle(_OTHER_COLOURS)
    return {name: _COLOURS.get(name) or next(others) for name in comparison.arms}


def curves_picture(comparison: Comparison) -> str:
    """Best speed-up over measurements, arm by arm: mean and middle half of the seeds."""
    steps = np.arange(1, comparison.budget + 1)
    colours = _colours(comparison)
    with figure(3.6) as (picture, (axes,)):
        axes.axhline(comparison.pool_best_speedup, color=MUTED, linewidth=1)
        axes.annotate(
            "fastest in the pool",
            (1, comparison.pool_best_speedup),
            ha="left",
            va="bottom",
            fontsize=10,
            color=INK,
        )
        for name in comparison.arms:
            curves, colour = arm_curves(comparison, name), colours[name]
            low, high = np.quantile(curves, BAND, axis=0)
            axes.fill_between(steps, low, high, step="post", color=colour, alpha=0.2, linewidth=0)
            style = _STYLES.get(name, "-")
            axes.step(
                steps, curves.mean(axis=0), where="post", color=colour, linestyle=style, lw=2.2, label=name
            )
        axes.set_xlim(1, comparison.budget)
        axes.set_ylim(0, comparison.pool_best_speedup * 1.12)
        axes.set_xlabel("GPU measurements")
        axes.set_ylabel("best speed-up")
        axes.legend(loc="lower right")
        return svg(
            picture,
            "curves",
            "Lines with bands: best speed-up over the reference by GPU measurements, mean and middle half of seeds, "
            "arm by arm.",
        )


def pairs_picture(comparison: Comparison) -> str:
    """Best over the baseline's best, seed by seed, with the mean and its interval."""
    names = [name for name in comparison.arms if name != "baseline"]
    baseline = np.array(comparison.arms["baseline"].best_speedup)
    colours = _colours(comparison)
    with figure(1.1 + 0.55 * len(names)) as (picture, (axes,)):
        axes.axvline(1.0, color=MUTED, linewidth=1, linestyle="--")
        for place, name in enumerate(names):
            colour, verdict = colours[name], comparison.comparison[name]
            ratios = np.array(comparison.arms[name].best_speedup) / baseline
            axes.plot(ratios, np.full(len(ratios), place), "o", color=colour, alpha=0.5, markersize=6)
            if verdict.ci95 is not None:
                axes.plot(verdict.ci95, [place + 0.26] * 2, color=colour, linewidth=3)
            axes.plot([verdict.mean_ratio], [place + 0.26], "D", color=colour, markersize=7)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("best speed-up / baseline's with the same seed")
        axes.grid(axis="y", visible=False)
        return svg(
            picture,
            "pairs",
            "Dots: best speed-up over the baseline's, seed by seed; diamonds and lines: mean and 95 % interval.",
        )
