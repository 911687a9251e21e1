"""What a run may still cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_forecasters_plugin.ledger import BudgetUse

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """Limits of a run; ``None`` is no limit.

    Attributes:
        measurements: calls of the real evaluator, at least 1.
        gpu_seconds: seconds that those calls may take in sum. A call is let start while any are left, so the
            last calls may run past the limit by their own length.
        count_forecasting: whether the GPU-seconds of forecasts count among these.
    """

    measurements: int | None = None
    gpu_seconds: float | None = None
    count_forecasting: bool = False

    def __post_init__(self) -> None:
        if self.measurements is not None and self.measurements < 1:
            raise ValueError(f"budget.measurements is at least 1, got {self.measurements!r}")
        if self.gpu_seconds is not None and not self.gpu_seconds > 0:
            raise ValueError(f"budget.gpu_seconds is above 0, got {self.gpu_seconds!r}")

    def remaining(
        self, use: BudgetUse, reserved: int = 0, *, forecast_gpu_seconds: float = 0.0
    ) -> int | None:
        """Measurements that may still be decided on; ``None`` without a limit.

        Args:
            use: what was charged so far; with ``count_forecasting``, forecasts included.
            reserved: decisions to measure that were not charged yet.
            forecast_gpu_seconds: of forecasts that are not in the ledger yet.
        """
        left: list[int] = []
        if self.measurements is not None:
            left.append(self.measurements - use.measurements - reserved)
        if self.gpu_seconds is not None:
            spent = use.gpu_seconds
            if self.count_forecasting:
                spent += (use.forecast_gpu_seconds or 0.0) + forecast_gpu_seconds
            left.append(self._by_seconds(self.gpu_seconds - spent, use, reserved))
        return max(0, min(left)) if left else None

    @staticmethod
    def _by_seconds(seconds_left: float, use: BudgetUse, reserved: int) -> int:
        if seconds_left <= 0:
            return 0
        finished = use.measurements - use.open
        if finished == 0 or use.gpu_seconds <= 0:
            # The price of a call is not known yet: one at a time.
            return 1 - use.open - reserved
        expected = math.ceil(seconds_left / (use.gpu_seconds / finished))
        return expected - use.open - reserved
