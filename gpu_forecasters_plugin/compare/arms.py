"""The arms of a comparison: what selects among the proposals.

``baseline`` is the host without the filter; ``random`` the filter with chance in place of forecasts (the floor);
``surrogate`` the filter as configured; ``oracle`` the filter with a forecaster that knows every time (the limit).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_forecasters_plugin.config import (
    BudgetConfig,
    DeferralConfig,
    ForecasterConfig,
    GuardConfig,
    SurrogateConfig,
)
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.oracle import OracleForecaster
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["ARM_NAMES", "Arm", "build_arms", "kernel_seconds"]

_PROPOSALS = 400

ARM_NAMES = ("baseline", "surrogate", "random", "oracle")


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        name: of :data:`ARM_NAMES`.
        config: what filters; ``None`` for the host without the filter.
        gpu_seconds: what measuring and forecasting may take together; ``None``: only measurements are counted.
        measurement_seconds: GPU-seconds that a measurement takes; ``None``: the kernel's own time as recorded.
    """

    name: str
    config: SurrogateConfig | None
    gpu_seconds: float | None = None
    measurement_seconds: float | None = None

    def seeded(self, seed: int, budget: int, pool: RecordedPool) -> SurrogateConfig | None:
        """The arm's configuration for one search."""
        if self.config is None:
            return None
        counted = self.gpu_seconds is not None
        limits = BudgetConfig(measurements=budget, gpu_seconds=self.gpu_seconds, count_forecasting=counted)
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


def _write_oracle(pool: RecordedPool, path: Path) -> None:
    """Forecasts of one who knows every time, in the form that ``replay`` reads."""
    truth = {c.key: pool.speedup(c.id) for c in pool.candidates.values()}
    oracle = OracleForecaster(truth)
    reference = pool.reference.code
    rows = []
    for candidate in pool.candidates.values():
        (outcome,) = oracle.forecast([Query(candidate.key, candidate.code, reference, reference)])
        assert isinstance(outcome, Forecast)
        rows.append({"candidate_key": candidate.key, "probabilities": outcome.probabilities})
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def build_arms(
    names: Sequence[str],
    pool: RecordedPool,
    surrogate: SurrogateConfig,
    folder: Path,
    measurement_seconds: float | None = None,
) -> list[Arm]:
    """The arms of those names.

    Args:
        names: of :data:`ARM_NAMES`; ``baseline`` is added when missing, since everything is compared with it.
        pool: the recorded task.
        surrogate: configuration of the arm ``surrogate``; the others take its pool sizes from it, and its
            ``budget.gpu_seconds`` where that counts forecasting.
        folder: where the oracle's forecasts are written.
        measurement_seconds: GPU-seconds that a measurement takes, where the recorded kernel times are not all.

    Raises:
        ConfigError: an unknown name.
    """
    for name in names:
        if name not in ARM_NAMES:
            raise ConfigError(f"unknown arm {name!r}; there are: {', '.join(ARM_NAMES)}")
    plain = {"guard": GuardConfig(enabled=False), "deferral": DeferralConfig(threshold=None), "warm_up": 0}
    plain |= {"audit_fraction": 0.0, "anchor": "reference"}
    configs: dict[str, SurrogateConfig | None] = {"baseline": None}
    for name in names:
        if name == "surrogate":
            configs[name] = surrogate
        elif name == "random":
            chance = plain | {"forecaster": ForecasterConfig(kind="random"), "ranking": "random"}
            configs[name] = surrogate.model_copy(update=chance)
        elif name == "oracle":
            path = folder / "oracle.jsonl"
            _write_oracle(pool, path)
            replay = ForecasterConfig(kind="replay", path=str(path), hedge=False)
            best = plain | {"forecaster": replay, "ranking": "expected_log2"}
            configs[name] = surrogate.model_copy(update=best)
    limit = surrogate.budget.gpu_seconds if surrogate.budget.count_forecasting else None
    return [Arm(name, config, limit, measurement_seconds) for name, config in configs.items()]
