"""Where forecasts were confident and wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_forecasters_plugin.bins import BinScheme
from gpu_forecasters_plugin.ledger.reading import MeasuredRows
from gpu_forecasters_plugin.report.quality import forecast_rows

__all__ = ["Surprise", "biggest_surprises"]


@dataclass(frozen=True)
class Surprise:
    """A measurement that its forecast held for unlikely.

    Attributes:
        decision: number of the decision.
        faster: whether the kernel was faster than foretold.
        predicted_bin: number of the most probable bin.
        confidence: its probability.
        measured_bin: number of the bin that was measured.
        probability: what the forecast gave that bin.
        expected: speed-up over the reference that the forecast expected.
        speedup: speed-up over the reference that was measured.
        run: the run that it is of, where a page tells of several.
        candidate_key: identity of the kernel.
        code: its source.
    """

    decision: int
    faster: bool
    predicted_bin: int
    confidence: float
    measured_bin: int
    probability: float
    expected: float
    speedup: float
    run: str = ""
    candidate_key: str = ""
    code: str = ""


def biggest_surprises(rows: MeasuredRows, bins: BinScheme, each: int) -> list[Surprise]:
    """The wrong forecasts that gave the measured bin the least probability: faster ones, then slower ones.

    Args:
        rows: measured rows; those without a forecast are passed over.
        bins: the scheme of the run's forecasts.
        each: how many of either direction at most.
    """
    known = np.flatnonzero(~np.isnan(rows.probabilities).any(axis=1))
    scored = forecast_rows(rows, bins, drawn_only=False)
    truth, predicted, expected = scored.truth.argmax(axis=1), scored.predicted, scored.expected_log2
    given = np.take_along_axis(scored.probabilities, truth[:, None], axis=1)[:, 0]
    confidence, error = scored.confidence, np.abs(scored.log2_speedups - expected)
    # The least probable first, of equals the farthest off, then the earliest.
    order = np.lexsort((rows.decision[known], -error, given))
    found: list[Surprise] = []
    for faster in (True, False):
        wrong = truth > predicted if faster else truth < predicted
        for at in order[wrong[order]][:each]:
            values: dict[str, Any] = {
                "decision": int(rows.decision[known[at]]),
                "predicted_bin": int(predicted[at]) + 1,
                "confidence": float(confidence[at]),
                "measured_bin": int(truth[at]) + 1,
                "probability": float(given[at]),
                "expected": float(2 ** expected[at] * rows.anchor_speedup[known[at]]),
                "speedup": float(rows.speedup[known[at]]),
            }
            found.append(Surprise(faster=faster, **values))
    return found
