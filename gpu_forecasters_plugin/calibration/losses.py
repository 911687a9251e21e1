"""When a forecast counts as wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_forecasters_plugin.bins import BINS, BinScheme
from gpu_forecasters_plugin.forecast import Forecast, RiskKind

__all__ = ["ForecastLoss"]


@dataclass(frozen=True)
class ForecastLoss:
    """The loss that a risk is the mean of: 1 for a wrong forecast, 0 for a right one.

    Attributes:
        kind: ``wrong_bin``: the measured speed-up is not in the predicted bin. ``log2_error``: the expected log2
            speed-up is more than ``bound`` away from the measured one.
        bound: for ``log2_error``, in octaves, above 0: 1 is a factor of two either way.
        bins: the bins.
    """

    kind: RiskKind = "wrong_bin"
    bound: float = 1.0
    bins: BinScheme = BINS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise ValueError(f"the bound of a log2 error is above 0 and finite, got {self.bound!r}")

    def of(self, forecast: Forecast, relative_speedup: float) -> float:
        """Loss of a forecast.

        Args:
            forecast: as it was made before the measurement.
            relative_speedup: measured speed-up over the kernel that the forecast's bins are relative to, above 0.
        """
        if self.kind == "wrong_bin":
            return float(forecast.predicted_bin != self.bins.index(relative_speedup))
        error = abs(forecast.expected_log2(self.bins) - math.log2(relative_speedup))
        return float(error > self.bound)

    def __str__(self) -> str:
        return "wrong bin" if self.kind == "wrong_bin" else f"log2 error above {self.bound:g}"
