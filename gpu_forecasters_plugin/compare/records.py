"""What one search of a comparison did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["ArmRun", "CompareHost", "best_so_far", "search_folder"]


@dataclass(frozen=True)
class ArmRun:
    """One search.

    Attributes:
        arm: name of the arm.
        seed: seed of the search; arms with the same seed are paired.
        curve: best speed-up over the reference after each measurement; the first is the reference's own, 1.0.
        candidates_considered: proposals that were decided on.
        gpu_seconds: of the measurements: their kernel times as recorded (repeats times medians), or as priced.
        forecast_gpu_seconds: of the forecasts, as far as their price is configured.
    """

    arm: str
    seed: int
    curve: tuple[float, ...]
    candidates_considered: int
    gpu_seconds: float
    forecast_gpu_seconds: float = 0.0

    @property
    def best_speedup(self) -> float:
        """Best speed-up at the end."""
        return self.curve[-1] if self.curve else 1.0

    @property
    def measurements_used(self) -> int:
        """Measurements that were paid for, the reference's included."""
        return len(self.curve)


def best_so_far(speedups: list[float | None]) -> tuple[float, ...]:
    """Running best of measured speed-ups, failures as ``None``; at least 1, the reference."""
    curve: list[float] = []
    best = 1.0
    for speedup in speedups:
        best = max(best, speedup or 0.0)
        curve.append(best)
    return tuple(curve)


def search_folder(runs: Path, arm: Arm, seed: int) -> Path:
    """A search's own folder below that of all searches of its comparison."""
    return runs / f"{arm.name}-{seed}"


class CompareHost(Protocol):
    """Runs one arm of a comparison with one seed."""

    name: str

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None],
    ) -> ArmRun:
        """Search until the budget is spent.

        Args:
            pool: the recorded task.
            arm: what selects.
            seed: seed of proposals and selection.
            budget: measurements, the reference's included.
            folder: the search's own folder.
            on_measurements: told the number of measurements so far, now and then.
        """
