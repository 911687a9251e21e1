"""What the pictures of a run's page show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.ledger.totals import PoolSegment
from gpu_forecasters_plugin.report.drawing import MUTED, SERIES, figure, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["REASON_COLOURS", "course_picture", "reasons_picture", "seconds_picture"]

Row = Mapping[str, Any]

REASON_COLOURS = {
    Reason.TOP_FRACTION: SERIES[0],
    Reason.UNCERTAIN: SERIES[1],
    Reason.AUDIT: SERIES[2],
    Reason.FALLBACK: SERIES[3],
    Reason.NO_FORECAST: SERIES[4],
    Reason.WARM_UP: SERIES[5],
    Reason.NOT_SELECTED: SERIES[6],
    Reason.DUPLICATE: SERIES[5],
    Reason.INVALID_SOURCE: SERIES[3],
    Reason.BUDGET_SPENT: SERIES[1],
}
_PANELS = {Action.MEASURE: "measured", Action.SKIP: "not measured"}


def course_picture(course: Sequence[Row], measurements: int) -> str:
    """Best speed-up over measurements."""
    with figure(3.0) as (picture, (axes,)):
        numbers = [row["number"] for row in course] + [measurements]
        speedups = [row["speedup"] for row in course] + [course[-1]["speedup"]]
        axes.axhline(1.0, color=MUTED, linewidth=1, linestyle="--")
        axes.step(numbers, speedups, where="post", color=SERIES[0], linewidth=2)
        axes.plot(numbers[:-1], speedups[:-1], "o", color=SERIES[0], markersize=4)
        axes.annotate(
            "reference", (1.0, 1.0), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=10
        )
        axes.set_xlabel("GPU measurements that have ended")
        axes.set_ylabel("best speed-up")
        axes.set_xlim(0, max(measurements, 1) * 1.02)
        axes.set_ylim(0, max(1.0, *speedups) * 1.08)
        return svg(
            picture, "course", "Line: best speed-up over the reference, by GPU measurements that have ended."
        )


def reasons_picture(segments: Sequence[PoolSegment], parts: int) -> str:
    """Decisions by reason over the course of the run: what was measured above, what was not below."""
    height = 4.6
    with figure(height, panels=2, sharex=True) as (picture, panels):
        for axes, (action, title) in zip(panels, _PANELS.items(), strict=True):
            _stack(axes, [s for s in segments if s.action == action], parts)
            axes.set_title(title, loc="left")
            axes.set_ylabel("candidates")
        panels[1].set_xlabel("course of the run, in parts with as many pools each")
        panels[1].set_xticks([0, parts], ["start", "end"])
        return svg(
            picture,
            "reasons",
            "Stacked bars: candidates measured and not measured, by reason, over the course of the run.",
        )


def _stack(axes: Axes, segments: Sequence[PoolSegment], parts: int) -> None:
    bottom = np.zeros(parts)
    present = {s.reason for s in segments}
    for reason in (r for r in REASON_COLOURS if r in present):
        counts = np.zeros(parts)
        for s in segments:
            if s.reason == reason:
                counts[s.segment] += s.count
        axes.bar(
            np.arange(parts) + 0.5,
            counts,
            0.9,
            bottom=bottom,
            color=REASON_COLOURS[reason],
            label=reason.value,
        )
        bottom += counts
    axes.set_xlim(0, parts)
    axes.grid(axis="x", visible=False)
    axes.locator_params(axis="y", integer=True)
    if present:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.0)
    else:
        axes.annotate("none", (0.5, 0.5), xycoords="axes fraction", ha="center")


def seconds_picture(rows: Sequence[tuple[str, float]]) -> str:
    """Seconds by what they were spent on."""
    with figure(0.9 + 0.32 * len(rows)) as (picture, (axes,)):
        names, seconds = [name for name, _ in rows], [value for _, value in rows]
        places = np.arange(len(rows))
        axes.barh(places, seconds, 0.7, color=SERIES[0])
        for place, value in zip(places, seconds, strict=True):
            axes.annotate(
                f"{value:,.4g}",
                (value, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=10.5,
            )
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlim(0, (max(seconds) or 1.0) * 1.22)
        axes.set_xlabel("seconds")
        axes.grid(axis="y", visible=False)
        return svg(picture, "seconds", "Bars: GPU-seconds by outcome, and seconds of forecasting.")
