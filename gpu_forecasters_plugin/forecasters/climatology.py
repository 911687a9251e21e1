"""This run's bin frequencies: the forecast to beat."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["PRIOR", "ClimatologyForecaster"]

PRIOR: tuple[float, ...] = (0.04, 0.08, 0.16, 0.28, 0.24, 0.12, 0.05, 0.03)
"""Before anything is measured: most proposals lie within a factor of two of what they are compared with."""


class ClimatologyForecaster(Forecaster):
    """Frequencies of the bins among this run's measurements, whatever the candidate.

    The frequencies are taken relative to each query's own anchor: measured speed-ups over the reference are
    re-binned against it, so a faster anchor moves them down.

    Args:
        prior: eight probabilities that stand in while there is little data; relative to the anchor.
        prior_rows: how many measurements the prior is worth.
        bins: the bins.
        name: what ledgers and reports call it.
    """

    def __init__(
        self,
        *,
        prior: Sequence[float] = PRIOR,
        prior_rows: float = 4.0,
        bins: BinScheme = BINS,
        name: str = "climatology",
    ) -> None:
        if len(prior) != N_BINS or min(prior) <= 0 or abs(math.fsum(prior) - 1.0) > 1e-6:
            raise ValueError(f"a prior is eight positive probabilities that sum to 1, got {tuple(prior)}")
        if not (math.isfinite(prior_rows) and prior_rows > 0):
            raise ValueError(f"prior_rows is a positive number, got {prior_rows!r}")
        self.name = name
        self._prior = tuple(prior)
        self._prior_rows = prior_rows
        self._bins = bins
        self._speedups: list[float] = []

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take the measured speed-ups over the reference."""
        self._speedups = [observation.speedup for observation in observations]

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The frequencies relative to each query's anchor."""
        known = {anchor: self._relative(anchor) for anchor in {query.anchor_speedup for query in queries}}
        return [known[query.anchor_speedup] for query in queries]

    def _relative(self, anchor_speedup: float) -> Forecast:
        weights = [self._prior_rows * share for share in self._prior]
        for speedup in self._speedups:
            weights[self._bins.index(speedup / anchor_speedup) - 1] += 1.0
        total = math.fsum(weights)
        # Normalised here: the sum of counts is no property of the forecast.
        return Forecast(tuple(weight / total for weight in weights), source=self.name)
