"""Pictures of how good forecasts are: data in, a matplotlib figure out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import N_BINS, SCHEMES
from gpu_forecasters_plugin.calibration.discovery import Discovery, discoveries
from gpu_forecasters_plugin.calibration.measures import confusion
from gpu_forecasters_plugin.calibration.ranking import RecoveryCurve, recovery_curve
from gpu_forecasters_plugin.calibration.reliability import (
    ConfidenceGroup,
    ReliabilityBucket,
    confidence_groups,
    reliability_buckets,
)
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import exact
from gpu_forecasters_plugin.calibration.selective import RiskCoverage, risk_coverage
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PICTURES",
    "confidence_figure",
    "confusion_figure",
    "discovery_figure",
    "recovery_figure",
    "reliability_figure",
    "risk_coverage_figure",
    "write_pictures",
]

_BLUE, _ORANGE, _GREEN, _RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
"""Of Okabe and Ito's palette, which colour-blind people can tell apart."""

_GREY = "#777777"
_MARKERS = "osD^"
_MOST_POINTS = 2000

PICTURES = (
    "reliability.png",
    "confusion.png",
    "error_by_confidence.png",
    "risk_coverage.png",
    "recovery.png",
    "discovery.png",
)


@contextmanager
def _drawing(title: str, rows: int = 1, **more: Any) -> Iterator[tuple[Figure, Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, **more)
    figure.suptitle(printable(title), fontsize=11, parse_math=False)
    yield figure, axes
    for each in np.atleast_1d(axes):
        each.spines[["top", "right"]].set_visible(False)


def _unit_square(axes: Axes, x: str, y: str) -> None:
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.04)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _thinned(points: int) -> NDArray[np.intp]:
    """Numbers of as many points of a curve as can be seen."""
    return np.unique(np.linspace(0, points - 1, min(points, _MOST_POINTS)).astype(np.intp))


def reliability_figure(buckets: Sequence[ReliabilityBucket], title: str) -> Figure:
    """Accuracy over confidence, with the number of forecasts in each bucket below."""
    heights = {"height_ratios": (3, 1)}
    with _drawing(title, 2, sharex=True, gridspec_kw=heights) as (figure, (top, bottom)):
        top.plot([0, 1], [0, 1], "--", color=_GREY, linewidth=1, label="perfectly calibrated")
        confidence, accuracy = [b.confidence for b in buckets], [b.accuracy for b in buckets]
        top.vlines(
            confidence, accuracy, confidence, color=_RED, linewidth=2, alpha=0.6, label="miscalibration"
        )
        top.plot(confidence, accuracy, "o-", color=_BLUE, label="forecasts")
        _unit_square(top, "", "share with the right bin")
        top.legend(frameon=False, loc="upper left", fontsize=9)
        widths = [b.high - b.low for b in buckets]
        bottom.bar(
            [b.low for b in buckets], [b.n for b in buckets], widths, align="edge", color=_BLUE, alpha=0.5
        )
        for bucket in buckets:
            middle = (bucket.low + bucket.high) / 2
            bottom.annotate(
                str(bucket.n), (middle, bucket.n), (0, 2), ha="center", fontsize=8, textcoords="offset points"
            )
        bottom.margins(y=0.25)
        bottom.set_xlabel("confidence: probability of the predicted bin")
        bottom.set_ylabel("forecasts")
    return figure


def confusion_figure(table: Array, bins: str, title: str) -> Figure:
    """Measured bin against predicted bin, the diagonal marked.

    Args:
        table: rows by measured bin, columns by predicted bin; shape (8, 8).
        bins: name of the scheme.
        title: of the picture.
    """
    from matplotlib.patches import Rectangle

    numbers = np.arange(1, N_BINS + 1)
    with _drawing(title) as (figure, axes):
        totals = np.maximum(table.sum(axis=1, keepdims=True), 1e-300)
        image = axes.imshow(
            table / totals, cmap="Blues", vmin=0, vmax=1, origin="lower", extent=(0.5, 8.5) * 2
        )
        for (truth, predicted), value in np.ndenumerate(table):
            if value >= 0.005:
                text = f"{value:.0f}" if value >= 9.95 or abs(value - round(value)) < 1e-6 else f"{value:.1f}"
                colour = "white" if value / totals[truth, 0] > 0.6 else "black"
                axes.annotate(
                    text, (predicted + 1, truth + 1), ha="center", va="center", color=colour, fontsize=9
                )
        for number in numbers:
            axes.add_patch(
                Rectangle((number - 0.5, number - 0.5), 1, 1, fill=False, edgecolor=_RED, linewidth=1.5)
            )
        axes.set_xticks(numbers)
        axes.set_yticks(numbers, [f"{n}  {SCHEMES[bins].describe(int(n))}" for n in numbers], fontsize=8)
        axes.set_xlabel("predicted bin (framed: right)")
        axes.set_ylabel(f"measured bin ({bins})")
        figure.colorbar(image, label="share of the measured bin", shrink=0.8)
    return figure


def confidence_figure(groups: Sequence[ConfidenceGroup], title: str) -> Figure:
    """Mean error of each confidence group; it should fall."""
    with _drawing(title) as (figure, axes):
        errors = [group.mean_abs_log2_error for group in groups]
        axes.bar(range(len(groups)), errors, color=_BLUE, width=0.6)
        for place, error in enumerate(errors):
            axes.annotate(
                f"{error:.2f}", (place, error), (0, 3), ha="center", fontsize=9, textcoords="offset points"
            )
        labels = [f"{g.low:.2f} to {g.high:.2f}\nn = {g.n}" for g in groups]
        axes.set_xticks(range(len(groups)), labels, fontsize=9)
        axes.margins(y=0.12)
        axes.set_xlabel("confidence of the group (least sure to surest)")
        axes.set_ylabel("mean |log2 error| [octaves]")
    return figure


def risk_coverage_figure(curve: RiskCoverage, risk: float, title: str) -> Figure:
    """Share of wrong bins among the surest forecasts.

    Args:
        curve: of the forecasts.
        risk: share of wrong bins among all.
        title: of the picture.
    """
    with _drawing(title) as (figure, axes):
        # With an order that knew which are wrong, all the right ones come first.
        covered = np.linspace(0.001, 1, 200)
        perfect = np.maximum(0.0, 1.0 - (1.0 - risk) / covered)
        axes.axhline(risk, color=_GREY, linestyle="--", linewidth=1, label="confidence that says nothing")
        axes.plot(covered, perfect, ":", color=_GREEN, label="perfect confidence")
        shown = _thinned(len(curve.coverage))
        axes.plot(curve.coverage[shown], curve.risk[shown], color=_BLUE, label="forecasts")
        _unit_square(
            axes, "coverage: share of forecasts trusted, the surest first", "risk: share with a wrong bin"
        )
        axes.legend(frameon=False, fontsize=9)
    return figure


def recovery_figure(curve: RecoveryCurve, title: str) -> Figure:
    """Speed-up found over the part of the kernels measured, between chance and perfection."""
    with _drawing(title) as (figure, axes):
        axes.axhline(1.0, color=_GREEN, linestyle=":", label="perfect order")
        axes.plot(
            curve.measured, curve.forecast, "o-", markersize=4, color=_BLUE, label="order of the forecasts"
        )
        axes.plot(curve.measured, curve.random, "--", color=_GREY, label="random order, in expectation")
        _unit_square(axes, "share of kernels measured", "speed-up found / best speed-up")
        axes.legend(
            frameon=False,
            loc="lower right",
            fontsize=9,
            title=None if curve.tasks == 1 else f"mean over {curve.tasks} tasks",
        )
    return figure


def discovery_figure(found: Sequence[Discovery], title: str) -> Figure:
    """Precision over recall of each discovery threshold; chance has the share of discoveries as its precision."""
    with _drawing(title) as (figure, axes):
        colours = (_BLUE, _ORANGE, _GREEN, _RED)
        for each, colour, marker in zip(found, colours, _MARKERS, strict=False):
            if each.average_precision is None:
                axes.plot([], [], color=colour, marker=marker, label=f"{each.threshold:g}x: none measured")
                continue
            base = each.found / each.n
            label = f"at least {each.threshold:g}x: area {each.average_precision:.2f}, chance {base:.2f} ({each.found})"
            shown = _thinned(len(each.curve_recall))
            axes.step(
                each.curve_recall[shown], each.curve_precision[shown], where="pre", color=colour, alpha=0.9
            )
            axes.plot([], [], color=colour, marker=marker, label=label)
            if each.precision is not None and each.recall is not None:
                axes.plot(each.recall, each.precision, marker, color=colour, markersize=8)
        _unit_square(axes, "recall (markers: called at a probability of 0.5)", "precision")
        figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def write_pictures(rows: ForecastRows, folder: Path, title: str) -> list[Path]:
    """Draw and write :data:`PICTURES`.

    Args:
        rows: forecasts beside what was measured; at least one.
        folder: exists.
        title: what the forecasts are, in a few words.
    """
    risk = 1.0 - float(np.average(exact(rows), weights=rows.weights))
    draw: Mapping[str, Callable[[], Figure]] = {
        "reliability.png": lambda: reliability_figure(reliability_buckets(rows), f"Reliability: {title}"),
        "confusion.png": lambda: confusion_figure(
            confusion(rows), rows.bins, f"Measured and predicted: {title}"
        ),
        "error_by_confidence.png": lambda: confidence_figure(
            confidence_groups(rows), f"Error by confidence: {title}"
        ),
        "risk_coverage.png": lambda: risk_coverage_figure(
            risk_coverage(rows), risk, f"Risk over coverage: {title}"
        ),
        "recovery.png": lambda: recovery_figure(recovery_curve(rows), f"Speed-up recovered: {title}"),
        "discovery.png": lambda: discovery_figure(discoveries(rows), f"Discoveries: {title}"),
    }
    for name in PICTURES:
        image = io.BytesIO()
        draw[name]().savefig(image, dpi=140, format="png")
        write_atomically(folder / name, image.getvalue())
    return [folder / name for name in PICTURES]
