"""The forecasts that a run itself has recorded, beside what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.bins import BinScheme
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.forecast import Ending
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.reading import (
    MEASURED_REASONS,
    foreseen_risks,
    measured_rows,
    repeated_speedups,
    snapshot,
)
from gpu_forecasters_plugin.ledger.results import ENDINGS
from gpu_forecasters_plugin.ledger.totals import outcome_costs

__all__ = ["RecordedForecasts", "recorded_forecasts"]

_KERNELS_FOR_NOISE = 10_000


@dataclass(frozen=True)
class RecordedForecasts:
    """A run's forecasts of what it measured.

    Attributes:
        task: the run's task.
        forecaster: name of its forecaster.
        rows: every measured kernel that the forecaster was asked about, all alike.
        drawn: of these, the ones drawn at random, weighted by one over their sampling probability: what was measured
            for looking promising says little about all the others.
        failed: measurements that did not end ``ok``.
        repeats: speed-ups of kernels that were measured more than once.
        foreseen: P(ok), and whether it ran right, of every measured kernel with a forecast that says so.
    """

    task: str
    forecaster: str
    rows: ForecastRows
    drawn: ForecastRows
    failed: int
    repeats: Sequence[Sequence[float]]
    foreseen: Sequence[tuple[float, bool]] = ()


def recorded_forecasts(ledger: LedgerReader, bins: BinScheme) -> RecordedForecasts:
    """Read the run that a ledger follows; a run may go on meanwhile.

    Args:
        ledger: follows a run.
        bins: the scheme to score by.
    """
    with snapshot(ledger) as run:
        measured = measured_rows(run)
        failed = sum(
            int(row["count"]) for row in outcome_costs(run) if row["outcome"] not in (None, Outcome.OK.value)
        )
        repeats = repeated_speedups(run, _KERNELS_FOR_NOISE)
        foreseen = [
            (1.0 - invalid - incorrect, ENDINGS[outcome] is Ending.OK)
            for invalid, incorrect, outcome in foreseen_risks(run)
            if outcome in ENDINGS
        ]
        task, forecaster = str(run.run["task"]), str(run.run["forecaster"])
    unknown = np.isnan(measured.probabilities[:, 0])
    # Of programs that the search starts from nobody asks.
    asked = np.flatnonzero(~unknown | (measured.reason != MEASURED_REASONS.index(Reason.WARM_UP)))
    rows = ForecastRows.of(
        measured.probabilities[asked],
        (measured.speedup / measured.anchor_speedup)[asked],
        bins=bins,
        answered=~unknown[asked],
    )
    chance = measured.sampling_probability[asked]
    lots = ~np.isnan(chance)
    drawn = rows.take(lots).weighted(1.0 / chance[lots])
    return RecordedForecasts(task, forecaster, rows, drawn, failed, repeats, foreseen)
