"""Forecasts without knowledge: the arm that any forecaster must beat."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["RandomForecaster"]


class RandomForecaster(Forecaster):
    """A random distribution per candidate: flat Dirichlet, fixed by seed and candidate key.

    The same candidate gets the same forecast in any pool and any order.

    Args:
        seed: of the run.
        name: what ledgers and reports call it.
    """

    def __init__(self, seed: int = 0, *, name: str = "random") -> None:
        self.name = name
        self._seed = seed

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """One random distribution per query."""
        return [self._draw(query.candidate_key) for query in queries]

    def _draw(self, key: str) -> Forecast:
        # Seeding with a string hashes it the same way in every process; the global generator stays untouched.
        generator = random.Random(f"{self._seed}:{key}")
        weights = [generator.expovariate(1.0) + 1e-12 for _ in range(N_BINS)]
        total = sum(weights)
        return Forecast(tuple(weight / total for weight in weights), source=self.name)
