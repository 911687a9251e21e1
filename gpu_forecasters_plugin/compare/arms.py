"""The arms of a comparison: what selects among the proposals, and what each may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_forecasters_plugin.compare.presets import ArmSetting, check_arm_names, presets_for
from gpu_forecasters_plugin.config import BudgetConfig, SurrogateConfig
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["Arm", "build_arms", "kernel_seconds"]

_PROPOSALS = 400


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        name: of :func:`~gpu_forecasters_plugin.compare.presets.presets_for`.
        config: what filters; ``None`` for the host without the filter.
        gpu_seconds: what measurements may take in sum; ``None``: only their number is counted.
        measurement_seconds: GPU-seconds that a measurement takes; ``None``: the kernel's own time as recorded.
        count_forecasting: ``gpu_seconds`` pays for forecasts too.
    """

    name: str
    config: SurrogateConfig | None
    gpu_seconds: float | None = None
    measurement_seconds: float | None = None
    count_forecasting: bool = False

    def seeded(self, seed: int, budget: int, pool: RecordedPool) -> SurrogateConfig | None:
        """The arm's configuration for one search."""
        if self.config is None:
            return None
        limits = BudgetConfig(
            measurements=budget, gpu_seconds=self.gpu_seconds, count_forecasting=self.count_forecasting
        )
        update = {"seed": seed, "budget": limits, "task": pool.operation}
        # The recorded proposer costs nothing, and a small graph makes it repeat itself.
        update["max_proposals"] = max(self.config.max_proposals, _PROPOSALS)
        update["shapes"] = self.config.shapes or pool.shapes or None
        update["device"] = pool.device if self.config.device == "auto" else self.config.device
        return self.config.model_copy(update=update)

    def price(self, pool: RecordedPool, name: str) -> float:
        """GPU-seconds of measuring a candidate."""
        if self.measurement_seconds is not None:
            return self.measurement_seconds
        return kernel_seconds(pool, name)


def kernel_seconds(pool: RecordedPool, name: str) -> float:
    """Kernel time that measuring a candidate took, in seconds: repeats times median; 0 for failures."""
    time_us = pool.candidates[name].time_us
    return 0.0 if time_us is None else time_us * 1e-6 * pool.repeats


def build_arms(
    names: Sequence[str],
    pool: RecordedPool,
    surrogate: SurrogateConfig,
    folder: Path,
    measurement_seconds: float | None = None,
    forecasts: Path | None = None,
) -> list[Arm]:
    """The arms of those names.

    Args:
        names: of :func:`~gpu_forecasters_plugin.compare.presets.presets_for`; ``baseline`` is added when missing, since
            everything is compared with it.
        pool: the recorded task.
        surrogate: the section that is compared; every arm gets its ``budget.gpu_seconds``, which pays for forecasts
            too where it counts them.
        folder: where the oracle's forecasts are written.
        measurement_seconds: GPU-seconds that a measurement takes, where the recorded kernel times are not all.
        forecasts: file of recorded forecasts, for the arm ``replay``.

    Raises:
        ConfigError: an unknown name, or ``replay`` without forecasts of this pool.
        ForecasterError: the forecasts cannot be read.
    """
    check_arm_names(names, surrogate)
    presets = presets_for(surrogate)
    setting = ArmSetting(surrogate, pool, folder, forecasts)
    limits = surrogate.budget
    return [
        Arm(
            name,
            presets[name].section(setting),
            limits.gpu_seconds,
            measurement_seconds,
            limits.count_forecasting,
        )
        for name in dict.fromkeys(("baseline", *names))
    ]
