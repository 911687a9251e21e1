"""Pictures of the training comparison: calibration, error over confidence, and confusion, of the lines that matter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.training_lines import SHIPPED, START
from benchmarks.training_scores import Line

__all__ = ["draw"]

_SHOWN = {
    "GRPO, correctness": "GRPO, correctness\nalone (written)",
    "GRPO, correctness_brier": "GRPO, with Brier\n(written)",
    START: "SFT\n(one token)",
    "proper, nll": "proper, NLL\n(one token)",
    SHIPPED: "learned, as it ships\n(text alone)",
}


def draw(found: Mapping[str, Line], file: Path) -> None:
    """One column for each of a few lines, with the same axes all along a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = [title for title in _SHOWN if title in found]
    figure = Figure(figsize=(2.5 * len(chosen), 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(chosen), squeeze=False, sharey="row")
    for place, title in enumerate(chosen):
        pictures = found[title].pictures()
        top, middle, bottom = axes[:, place]
        top.plot([0, 1], [0, 1], "--", color="#777777", linewidth=1)
        for bucket in pictures["buckets"]:
            # As large as its share of the answers: a point of five answers tells nothing.
            size = 20 + 280 * bucket["weight"]
            top.scatter(
                bucket["confidence"], bucket["accuracy"], s=size, color="#0072B2", alpha=0.75, clip_on=False
            )
        top.set(xlim=(0, 1.05), ylim=(0, 1.05), aspect="equal", xticks=[0, 0.5, 1])
        top.set_title(f"{_SHOWN[title]}\nECE {found[title].measures['ece']:.2f}", fontsize=12)
        errors = [group["mean_abs_log2_error"] for group in pictures["groups"]]
        middle.bar(range(1, len(errors) + 1), errors, color="#0072B2")
        middle.set(xlim=(0.4, 5.6), xticks=range(1, 6))
        bottom.imshow(np.array(pictures["confusion"]), cmap="Blues", origin="lower")
        bottom.set(xticks=range(8), yticks=range(8), xticklabels=range(1, 9), yticklabels=range(1, 9))
    below = ("confidence of the answer", "group, surer to the right", "forecast bin (1 slowest)")
    beside = ("share that is right", "mean |log2 error|", "measured bin")
    for row in range(3):
        axes[row, 0].set_ylabel(beside[row], fontsize=12)
        axes[row, len(chosen) // 2].set_xlabel(below[row], fontsize=12)
    figure.savefig(file, dpi=90)
