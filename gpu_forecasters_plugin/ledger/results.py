"""Finished measurements as a run follows them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gpu_forecasters_plugin.decision import Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecast import Attempt, Ending, Forecast, Observation
from gpu_forecasters_plugin.ledger.records import forecast_from_row, measurement_from_row, unescape_text
from gpu_forecasters_plugin.ledger.soundness import sound_rows

__all__ = ["ENDINGS", "Result"]

ENDINGS = {
    Outcome.OK: Ending.OK,
    Outcome.COMPILE_ERROR: Ending.INVALID,
    Outcome.RUNTIME_ERROR: Ending.INVALID,
    Outcome.TIMEOUT: Ending.INVALID,
    Outcome.INCORRECT: Ending.INCORRECT,
    Outcome.IMPLAUSIBLE: Ending.INCORRECT,
}
"""What an outcome says about the kernel; the others say something about the machine alone."""


class Result:
    """A finished measurement with the decision that led to it, as :meth:`LedgerReader.results_since` returns it."""

    def __init__(self, row: Any) -> None:
        self.revision: int = row["revision"]
        self.decision_id: int = row["decision_id"]
        self.candidate_key: str = row["candidate_key"]
        self.pool_number: int = row["number"]
        self.provisional: bool = row["provisional"]
        with sound_rows(f"the result of decision {self.decision_id}"):
            self.reason = Reason(row["reason"])
            self.measurement: Measurement = measurement_from_row(row)
        self._observed = (row["code"], row["anchor_speedup"], row["sampling_probability"])
        self._forecast = forecast_from_row(row)

    @cached_property
    def observation(self) -> Observation | None:
        """What a forecaster may learn from it; ``None`` unless the outcome is ``ok``."""
        if self.measurement.outcome is not Outcome.OK or self.measurement.speedup is None:
            return None
        code, anchor_speedup, probability = self._observed
        forecast = self._forecast if isinstance(self._forecast, Forecast) else None
        if forecast is not None and forecast.suspicions:
            forecast = None  # it was not followed, and says nothing about those that are
        return Observation(
            self.candidate_key,
            unescape_text(code),
            self.measurement.speedup,
            self.pool_number,
            forecast,
            anchor_speedup,
            probability,
        )

    @cached_property
    def attempt(self) -> Attempt | None:
        """What it says about whether the candidate runs right; ``None`` where it says nothing."""
        ending = ENDINGS.get(self.measurement.outcome)
        if ending is None or self.provisional:
            return None
        return Attempt(self.candidate_key, unescape_text(self._observed[0]), ending)
