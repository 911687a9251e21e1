"""A forecaster that is not told of a run's measurements: it forecasts as it would before the first."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_forecasters_plugin.forecast import Attempt, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["FrozenForecaster"]


class FrozenForecaster(Forecaster):
    """Another forecaster, kept from learning in the run.

    Args:
        inner: whom to ask; belongs to this one from now on.
    """

    def __init__(self, inner: Forecaster) -> None:
        self._inner = inner
        self.name = f"frozen-{inner.name}"
        self.model = inner.model
        self.prompt_hash = inner.prompt_hash
        self.waits = inner.waits
        self.foresees_failure = inner.foresees_failure

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        return self._inner.forecast(queries)

    def observe(self, observations: Sequence[Observation]) -> None:
        """What was measured stays unknown."""

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """What failed stays unknown."""

    def close(self) -> None:
        self._inner.close()
