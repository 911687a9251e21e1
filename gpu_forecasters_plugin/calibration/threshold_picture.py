"""Risk and its bound over coverage, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpu_forecasters_plugin.calibration.calibrating import Calibration
from gpu_forecasters_plugin.calibration.thresholds import ThresholdRisk
from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["threshold_figure"]

_NEAR = 0.03

_RISK, _BOUND, _TARGET = "#0072B2", "#D55E00", "#555555"
"""Of Okabe and Ito's palette, which colour-blind people can tell apart."""


def threshold_figure(calibration: Calibration) -> Figure:
    """Observed risk and upper bound of each threshold over the share of forecasts that it trusts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = [
        (coverage, row)
        for coverage, row in zip(calibration.coverage, calibration.table, strict=True)
        if coverage is not None and row.risk is not None
    ]
    covered = np.array([coverage for coverage, _ in points])
    bounds = np.array([row.upper_bound for _, row in points])
    risks = np.array([row.risk for _, row in points])
    axes.axhline(calibration.target_risk, color=_TARGET, linewidth=1, linestyle="--", label="target risk")
    axes.plot(
        covered,
        bounds,
        "s-",
        color=_BOUND,
        label=f"upper bound, {calibration.confidence_level:.0%} for all at once",
    )
    axes.plot(covered, risks, "o-", color=_RISK, label="risk in the audit sample")
    for text, at, height in _labels(points):
        axes.annotate(text, (at, height), ha="center", fontsize=8, xytext=(0, 8), textcoords="offset points")
    chosen = np.array([row.threshold == calibration.threshold for _, row in points], dtype=bool)
    if chosen.any():
        axes.plot(
            covered[chosen],
            bounds[chosen],
            "o",
            markersize=15,
            fillstyle="none",
            color=_BOUND,
            label="chosen",
        )
    axes.set_xlim(-0.02, 1.05)
    axes.set_ylim(-0.02, 1.08)
    axes.set_xlabel(f"share of forecasts trusted (labels: threshold on {calibration.confidence})")
    axes.set_ylabel(f"risk: {calibration.loss}")
    title = f"{printable(calibration.run)}: {calibration.n} rows drawn at random"
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _labels(points: Sequence[tuple[float, ThresholdRisk]]) -> list[tuple[str, float, float]]:
    """Text and place of the thresholds; those that trust almost the same forecasts share a text."""
    found: list[tuple[str, float, float]] = []
    for coverage, row in points:
        text, height = f"{row.threshold:g}", row.upper_bound
        if found and abs(found[-1][1] - coverage) < _NEAR:
            before, coverage, other = found.pop()
            text, height = f"{before}, {text}", max(height, other)
        found.append((text, coverage, height))
    return found
