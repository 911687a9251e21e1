"""A forecaster whose probabilities are mended by how its earlier ones turned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, BinScheme
from gpu_forecasters_plugin.forecast import Attempt, Forecast, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.recalibration import VERSIONS, Recalibration, fit_recalibration
from gpu_forecasters_plugin.forecasters.stacking import FLOOR

__all__ = ["RecalibratedForecaster"]

Array = NDArray[np.float64]

Row = tuple[tuple[float, ...], int]
"""A forecast as the inner forecaster made it, and the measured bin, from 0."""

_PRIOR = (0.5, 0.25, 0.25)
"""The identity's half bounds the harm: of rows that come one by one, the log losses rise by ln 2 in sum at most."""


@dataclass(frozen=True, eq=False)
class _State:
    """What the pools up to some one have taught.

    Attributes:
        maps: fitted on all of their rows.
        scores: of each version, its log prior and the log score of what it foretold, pool by pool.
    """

    maps: Recalibration = Recalibration()
    scores: Array = field(default_factory=lambda: np.log(np.array(_PRIOR)))


class RecalibratedForecaster(Forecaster):
    """Temperature and bin map on top of another forecaster, as far as its record bears them out.

    Every pool is replayed as it came: identity, temperature and bin map, fitted on the pools before, each foretell
    its rows. A forecast is their mean, weighted by how well they did at that (prior times likelihood). So a map has
    its say only once it has shown on rows that it was not fitted on that it helps.

    All measured rows count alike, the audit's as well. What is measured is chosen for what was forecast, not for how
    it turns out, so the truth *given a forecast* is the same among the measured as among all (other experts that
    choose too, and know more, tilt it a little: by up to 0.02 in log loss in simulations). Weights of one over the
    sampling probability, known for audit rows only, would throw the other rows away.

    The distribution as it was is kept among the components, under the inner forecaster's name: it is what the maps
    are fitted on, so that a resumed run fits the same ones.

    Args:
        inner: the forecaster to mend; belongs to this one.
        bins: the bins.
        name: what ledgers and reports call it; by default ``recalibrated-`` and the name of the inner one.
    """

    def __init__(self, inner: Forecaster, *, bins: BinScheme = BINS, name: str | None = None) -> None:
        self.name = name or f"recalibrated-{inner.name}"
        self.model, self.prompt_hash, self.waits = inner.model, inner.prompt_hash, inner.waits
        self.foresees_failure = inner.foresees_failure
        self._inner = inner
        self._bins = bins
        self._pools: list[tuple[Row, ...]] = []
        self._states = [_State()]

    @property
    def weights(self) -> dict[str, float]:
        """Current weight of ``identity``, ``temperature`` and ``bin_map``."""
        return dict(zip(VERSIONS, (float(weight) for weight in self._weights()), strict=True))

    def _weights(self) -> Array:
        scores = self._states[-1].scores
        likelihoods = np.exp(scores - scores.max())
        weights: Array = likelihoods / likelihoods.sum()
        return weights

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass everything on to the inner forecaster, and learn from what it had foretold."""
        self._inner.observe(observations)
        pools = self._foretold(observations)
        known = _common(self._pools, pools)
        # What a late result has changed is replayed; the states before it are what they would be again.
        del self._states[known + 1 :]
        for number in range(known, len(pools)):
            self._states.append(_learned(self._states[-1], pools[: number + 1]))
        self._pools = pools

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Pass them on: the risk of failure stays as the inner forecaster sees it."""
        self._inner.observe_attempts(attempts)

    def _foretold(self, observations: Sequence[Observation]) -> list[tuple[Row, ...]]:
        """The rows that the inner forecaster had made a forecast for, pool by pool."""
        pools: dict[int | None, list[Row]] = {}
        for observation in observations:
            forecast = observation.forecast
            raw = None if forecast is None else forecast.components.get(self._inner.name)
            if raw is not None:
                truth = self._bins.index(observation.relative_speedup) - 1
                pools.setdefault(observation.pool_id, []).append((tuple(raw), truth))
        return [tuple(rows) for rows in pools.values()]

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The inner forecaster's distributions, mended; failures stay failures."""
        return [
            self._mended(outcome) if isinstance(outcome, Forecast) else outcome
            for outcome in self._inner.forecast(queries)
        ]

    def close(self) -> None:
        """Close the inner forecaster."""
        self._inner.close()

    def _mended(self, raw: Forecast) -> Forecast:
        components = {**raw.components, self._inner.name: raw.probabilities}
        if not self._pools:
            return replace(raw, source=self.name, components=components)
        versions = self._states[-1].maps.versions(np.array([raw.probabilities]))[:, 0]
        mended = [float(p) for p in self._weights() @ versions]
        total = math.fsum(mended)
        return replace(
            raw,
            probabilities=tuple(p / total for p in mended),
            source=self.name,
            components=components,
        )


def _common(one: Sequence[tuple[Row, ...]], other: Sequence[tuple[Row, ...]]) -> int:
    """How many pools are the same from the first on."""
    differing = (number for number, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def _arrays(rows: Sequence[Row]) -> tuple[Array, NDArray[np.intp]]:
    return np.array([raw for raw, _ in rows]), np.array([truth for _, truth in rows], dtype=np.intp)


def _learned(before: _State, pools: Sequence[tuple[Row, ...]]) -> _State:
    """The state after one more pool, the last: first its rows are foretold, then they are fitted on."""
    probabilities, truth = _arrays(pools[-1])
    foretold = before.maps.versions(probabilities)[:, np.arange(len(truth)), truth]
    scores = before.scores + np.log(np.maximum(foretold, FLOOR)).sum(axis=1)
    return _State(fit_recalibration(*_arrays([row for pool in pools for row in pool])), scores)
