"""Several experts as one forecaster, each trusted as far as this run's own measurements bear it out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.forecast import (
    Attempt,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.asking import ask_all
from gpu_forecasters_plugin.forecasters.climatology import ClimatologyForecaster
from gpu_forecasters_plugin.forecasters.contained import ContainedForecaster
from gpu_forecasters_plugin.forecasters.stacking import FLOOR, fit_weights, log_pool

__all__ = ["MixtureForecaster"]

_CLIMATOLOGY_WEIGHT = 0.3
_EXPERT_WEIGHT = 0.5
_LEAST_WEIGHT = 0.1
"""Less than this is none: a pool's order follows the sign of a weight, however small it is."""


class MixtureForecaster(Forecaster):
    """A log-linear pool whose weights are fitted on forecasts made before their candidates were measured.

    One expert is always climatology (added when it is not among them): an expert that does worse than this
    run's bin frequencies loses its weight, down to exactly zero, where all candidates look alike and
    selection falls back to chance. An expert that fails for a query, or raises, is left out of its forecast.
    When every expert but climatology fails, so does the mixture, with the first one's failure: bin frequencies
    tell no candidate from another, and an outage must be seen as one. What any expert suspects, the mixture
    suspects; its risk of failure is the mean of those that experts give. Experts that wait for a network are asked at
    the same time.

    Args:
        experts: forecasters with names of their own; the mixture owns them.
        weights: configured weight per expert name, at least 0; by default 0.3 for climatology and 0.5 for
            every other.
        prior_rows: how many measurements the configured weights are worth.
        half_life: measurements after which a row counts half; infinity never forgets.
        bins: the bins.
        name: what ledgers and reports call it.
    """

    def __init__(
        self,
        experts: Sequence[Forecaster],
        *,
        weights: Mapping[str, float] | None = None,
        prior_rows: float = 8.0,
        half_life: float = 128.0,
        bins: BinScheme = BINS,
        name: str = "mixture",
    ) -> None:
        members = list(experts)
        if not members:
            raise ValueError("a mixture needs at least one expert")
        if not any(isinstance(expert, ClimatologyForecaster) for expert in members):
            members.append(ClimatologyForecaster(bins=bins))
        names = [expert.name for expert in members]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"experts of a mixture need names of their own, and two of them are {twice!r}")
        given = dict(weights or {})
        if unknown := sorted(set(given) - set(names)):
            raise ValueError(f"weights are given for unknown experts {unknown}; experts: {names}")
        if any(not (math.isfinite(weight) and weight >= 0) for weight in given.values()):
            raise ValueError(f"weights are finite and at least 0, got {given}")
        if not (prior_rows > 0 and half_life > 0):
            raise ValueError(f"prior_rows and half_life are positive, got {prior_rows!r} and {half_life!r}")
        self.name = name
        self.model = "+".join(filter(None, (expert.model for expert in members)))
        self.prompt_hash = _joined([expert.prompt_hash for expert in members if expert.prompt_hash])
        self.waits = any(expert.waits for expert in members)
        self.foresees_failure = any(expert.foresees_failure for expert in members)
        self._experts = [ContainedForecaster(expert) for expert in members]
        self._names = names
        self._informed = [not isinstance(expert, ClimatologyForecaster) for expert in members]
        self._prior = np.array([given.get(n, self._default(e)) for n, e in zip(names, members, strict=True)])
        self._prior_rows = prior_rows
        self._half_life = half_life
        self._bins = bins
        self._weights = self._prior.copy()

    @staticmethod
    def _default(expert: Forecaster) -> float:
        return _CLIMATOLOGY_WEIGHT if isinstance(expert, ClimatologyForecaster) else _EXPERT_WEIGHT

    @property
    def weights(self) -> dict[str, float]:
        """Current weight of each expert by name."""
        return dict(zip(self._names, (float(weight) for weight in self._weights), strict=True))

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Pass them on to the experts."""
        for expert in self._experts:
            expert.observe_attempts(attempts)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass everything on to the experts, and weigh them by what they had foretold."""
        for expert in self._experts:
            expert.observe(observations)
        scored = [
            (observation.forecast.components, observation.relative_speedup)
            for observation in observations
            if observation.forecast is not None
            and any(name in observation.forecast.components for name in self._names)
        ]
        logs = np.array([self._logs(components) for components, _ in scored])
        truth = np.array([self._bins.index(relative) - 1 for _, relative in scored], dtype=np.intp)
        age = np.arange(len(scored), dtype=np.float64)[::-1]
        importance = np.exp2(-age / self._half_life)
        weights = fit_weights(logs, truth, importance, self._prior, self._prior_rows)
        self._weights = np.where(weights < np.minimum(_LEAST_WEIGHT, self._prior), 0.0, weights)

    def _logs(self, components: Mapping[str, Sequence[float]]) -> list[list[float]]:
        silent = (1.0,) * N_BINS
        return [[math.log(max(p, FLOOR)) for p in components.get(name, silent)] for name in self._names]

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """Ask every expert about the whole batch, then pool per query."""
        answers = ask_all(self._experts, queries)
        return [self._pool([answer[index] for answer in answers]) for index in range(len(queries))]

    def close(self) -> None:
        """Close all experts."""
        for expert in self._experts:
            expert.close()

    def _pool(self, outcomes: Sequence[ForecastOutcome]) -> ForecastOutcome:
        cost = sum((outcome.cost for outcome in outcomes), ForecastCost())
        suspicions = tuple(dict.fromkeys(reason for outcome in outcomes for reason in outcome.suspicions))
        informed = [o for o, useful in zip(outcomes, self._informed, strict=True) if useful]
        if informed and all(isinstance(outcome, ForecastFailure) for outcome in informed):
            first = informed[0]
            assert isinstance(first, ForecastFailure)
            return ForecastFailure(first.kind, first.detail, first.source or self.name, cost, suspicions)
        answered = {n: o for n, o in zip(self._names, outcomes, strict=True) if isinstance(o, Forecast)}
        experts = {name: forecast.probabilities for name, forecast in answered.items()}
        # What an expert was itself combined from is kept: it learns from it when the run goes on.
        inner = {name: p for forecast in answered.values() for name, p in forecast.components.items()}
        covered = [f.covered_mass for f in answered.values() if f.covered_mass is not None]
        present = np.array([name in answered for name in self._names])
        weights = np.where(present, self._weights, 0.0)
        if weights.sum() <= 0.0:
            weights = present / present.sum()
        elif not present.all():
            # The others speak for the silent one, or the pool would be flatter for want of an answer.
            weights = weights * (self._weights.sum() / weights.sum())
        pooled = log_pool(np.array([self._logs(experts)]), weights[None, :])[0]
        total = math.fsum(pooled)
        return Forecast(
            tuple(float(p) / total for p in pooled),
            source=self.name,
            cost=cost,
            components=inner | experts,
            covered_mass=min(covered, default=None),
            suspicions=suspicions,
            disagrees=any(forecast.disagrees for forecast in answered.values()),
            p_invalid=_mean(forecast.p_invalid for forecast in answered.values()),
            p_incorrect=_mean(forecast.p_incorrect for forecast in answered.values()),
        )


def _mean(given: Iterable[float | None]) -> float | None:
    known = [value for value in given if value is not None]
    return math.fsum(known) / len(known) if known else None


def _joined(hashes: Sequence[str]) -> str:
    """One identity for the prompts of several experts; an only one keeps its own."""
    if len(hashes) < 2:
        return "".join(hashes)
    return hashlib.sha256("+".join(hashes).encode()).hexdigest()[:32]
