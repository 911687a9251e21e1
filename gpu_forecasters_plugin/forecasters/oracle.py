"""Forecasters that know the truth, or its mirror image. For benchmarks and tests only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.forecast import (
    Attempt,
    FailureKind,
    Forecast,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["InvertedForecaster", "OracleForecaster"]

_LEAN = 0.98
_FLOOR = 1e-6


class OracleForecaster(Forecaster):
    """The upper bound: what a perfect forecaster would be worth. It reads times that nobody has paid for.

    The true bin gets the mass; what is left leans to the neighbour that the true value is nearer to, so that
    expected log2 speed-up orders candidates rightly within a bin too. A kernel that fails has its mass in
    bin 1: measuring it would be a waste.

    Args:
        truth: speed-up over the reference by candidate key; ``None`` for a kernel that fails.
        sharpness: probability of the true bin, above 0.5 and below 1.
        bins: the bins.
        name: what ledgers and reports call it.
    """

    def __init__(
        self,
        truth: Mapping[str, float | None],
        sharpness: float = 0.9,
        *,
        bins: BinScheme = BINS,
        name: str = "oracle",
    ) -> None:
        if not 0.5 < sharpness < 1.0:
            raise ValueError(f"sharpness lies above 0.5 and below 1, got {sharpness!r}")
        self.name = name
        self._truth = dict(truth)
        self._sharpness = sharpness
        self._bins = bins

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The truth about each query; ``empty`` for a candidate that the truth does not hold."""
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> ForecastOutcome:
        if query.candidate_key not in self._truth:
            detail = f"no truth is known for candidate {query.candidate_key}"
            return ForecastFailure(FailureKind.EMPTY, detail, self.name)
        speedup = self._truth[query.candidate_key]
        if speedup is None:
            return Forecast((1.0, *([0.0] * (N_BINS - 1))), source=self.name)
        return self._peaked(speedup / query.anchor_speedup)

    def _peaked(self, relative: float) -> Forecast:
        index = self._bins.index(relative) - 1
        edges = self._bins.log2_edges
        # The open ends are read two octaves deep; what lies further out is told apart no more.
        low = edges[index - 1] if index else edges[0] - 2.0
        high = edges[index] if index < N_BINS - 1 else edges[-1] + 2.0
        place = min(1.0, max(0.0, (math.log2(relative) - low) / (high - low)))
        rest = 1.0 - self._sharpness
        # At an end bin there is one neighbour only: leaning outwards means staying in the bin.
        weights = [_FLOOR * rest] * N_BINS
        weights[index] += self._sharpness
        weights[max(index - 1, 0)] += rest * (1.0 - _LEAN * place - (1.0 - _LEAN) / 2)
        weights[min(index + 1, N_BINS - 1)] += rest * (_LEAN * place + (1.0 - _LEAN) / 2)
        total = math.fsum(weights)
        return Forecast(tuple(weight / total for weight in weights), source=self.name)


class InvertedForecaster(Forecaster):
    """Another forecaster's distributions, mirrored: what it calls fast becomes slow.

    Proves that a guard and a mixture do their work.

    Args:
        inner: the forecaster to mirror.
        name: what ledgers and reports call it; by default ``inverted-`` and the name of the inner one.
    """

    def __init__(self, inner: Forecaster, *, name: str | None = None) -> None:
        self.name = name or f"inverted-{inner.name}"
        self.model, self.prompt_hash = inner.model, inner.prompt_hash
        self.foresees_failure = inner.foresees_failure
        self._inner = inner

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass everything on."""
        self._inner.observe(observations)

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Pass them on."""
        self._inner.observe_attempts(attempts)

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The mirror image of each forecast; failures stay failures."""
        outcomes = self._inner.forecast(queries)
        return [
            replace(outcome, probabilities=outcome.probabilities[::-1], source=self.name, components={})
            if isinstance(outcome, Forecast)
            else outcome
            for outcome in outcomes
        ]
