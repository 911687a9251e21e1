"""Pictures of how good forecasts were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.report.drawing import GRID, INK, MUTED, SERIES, figure, svg
from gpu_forecasters_plugin.report.quality import ForecastQuality

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["confusion_picture", "reliability_picture"]

_DRAWN, _ALL = SERIES[2], SERIES[0]
_DARKEST = 0.55
"""Numbers are to be read on the darkest cell too."""


def reliability_picture(drawn: ForecastQuality | None, everything: ForecastQuality) -> str:
    """Accuracy over confidence, for the random rows and for all."""
    with figure(4.9) as (picture, (axes,)):
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--", label="perfectly calibrated")
        _points(axes, everything, _ALL, "s", "all measured")
        if drawn is not None:
            _points(axes, drawn, _DRAWN, "o", "drawn at random, weighted")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence: probability of the predicted bin")
        axes.set_ylabel("share that was right")
        picture.legend(loc="outside upper left", ncols=1)
        return svg(
            picture,
            "reliability",
            "Points with 95 % intervals: share of forecasts whose predicted bin was measured, by confidence.",
        )


def _points(axes: Axes, quality: ForecastQuality, colour: str, marker: str, label: str) -> None:
    buckets, intervals = quality.reliability, quality.intervals
    # A hair apart, so that the two kinds of rows don't hide each other.
    shift = 0.006 if marker == "o" else -0.006
    accuracy = [b.accuracy for b in buckets]
    below = [max(0.0, b.accuracy - low) for b, (low, _) in zip(buckets, intervals, strict=True)]
    above = [max(0.0, high - b.accuracy) for b, (_, high) in zip(buckets, intervals, strict=True)]
    axes.errorbar(
        [b.confidence + shift for b in buckets],
        accuracy,
        yerr=[below, above],
        fmt=f"{marker}-",
        color=colour,
        markersize=6,
        linewidth=1.2,
        capsize=3,
        label=label,
    )


def confusion_picture(quality: ForecastQuality, name: str, title: str, *, shares: bool) -> str:
    """Measured bin against predicted bin.

    Args:
        quality: of the rows.
        name: of the picture, unique on the page.
        title: which rows these are.
        shares: per cent of the weight instead of counts.
    """
    total = sum(map(sum, quality.confusion))
    largest = max(map(max, quality.confusion))
    with figure(4.6) as (picture, (axes,)):
        axes.grid(visible=False)
        edges = [0.5 + number for number in range(N_BINS + 1)]
        axes.hlines(edges, edges[0], edges[-1], color=GRID, linewidth=0.6)
        axes.vlines(edges, edges[0], edges[-1], color=GRID, linewidth=0.6)
        for truth, row in enumerate(quality.confusion):
            for predicted, value in enumerate(row):
                if value > 0:
                    _fill(axes, predicted, truth, value / largest)
                    text = f"{100 * value / total:.0f}" if shares else f"{value:.0f}"
                    place = (predicted + 1, truth + 1)
                    axes.annotate(text if text != "0" else "<1", place, ha="center", va="center")
            _outline(axes, truth)
        axes.set_xlim(0.44, N_BINS + 0.56)
        axes.set_ylim(0.44, N_BINS + 0.56)
        axes.set_xticks(range(1, N_BINS + 1))
        axes.set_yticks(range(1, N_BINS + 1))
        axes.set_aspect("equal")
        axes.set_xlabel("predicted bin (8 is fastest)")
        axes.set_ylabel("measured bin")
        axes.set_title(title, loc="left")
        return svg(
            picture,
            name,
            "Grid of eight by eight: how often each bin was measured when each was predicted; diagonal outlined.",
        )


def _fill(axes: Axes, predicted: int, truth: int, depth: float) -> None:
    from matplotlib.patches import Rectangle

    corner = (predicted + 0.5, truth + 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=_ALL, alpha=_DARKEST * depth, linewidth=0))


def _outline(axes: Axes, place: int) -> None:
    from matplotlib.patches import Rectangle

    corner = (place + 0.5, place + 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor=INK, linewidth=1.6, zorder=3))
