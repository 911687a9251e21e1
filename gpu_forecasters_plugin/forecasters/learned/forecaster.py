"""The embedded default: learns from this run's measurements, on source text alone, in milliseconds."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.forecast import (
    Attempt,
    Forecast,
    ForecastCost,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters._mass import student_bin_masses
from gpu_forecasters_plugin.forecasters.learned.failing import FailureModel, Risk
from gpu_forecasters_plugin.forecasters.learned.features import SourceFeatures, extract_features
from gpu_forecasters_plugin.forecasters.learned.known import KnownTask
from gpu_forecasters_plugin.forecasters.learned.process import GaussianProcess
from gpu_forecasters_plugin.forecasters.learned.profile_features import profile_features
from gpu_forecasters_plugin.forecasters.learned.rewrites import RewriteModel
from gpu_forecasters_plugin.forecasters.learned.space import FeatureSpace, Points
from gpu_forecasters_plugin.forecasters.learned.warm_start import learned_from
from gpu_forecasters_plugin.forecasters.learned.warp import WARPS, Warp
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["LearnedForecaster"]

_MAX_ROWS = 600
_KEPT_FASTEST = 200
_HYPER_ROWS = 128
_FLOOR = 0.02
_NEGLIGIBLE = 0.01
_CACHED_SOURCES = 4096
_LARGEST_LOG2 = 12.0


@dataclass(frozen=True)
class _Row:
    """A measured source: identity, text, log2 speed-up over the reference, and what the compiler made of it."""

    key: str
    code: str
    target: float
    profile: SourceProfile | None = None

    @property
    def lot(self) -> int:
        """A number that is random over sources and the same in every process."""
        return zlib.crc32(self.key.encode())


@dataclass(frozen=True)
class _Fit:
    """What the measurements say, relative to one reference: an average of processes, one per warp."""

    space: FeatureSpace
    points: Points
    members: tuple[tuple[float, Warp, GaussianProcess], ...]


class LearnedForecaster(Forecaster):
    """A Gaussian process on features of the source text (see the modules beside this one).

    Knows the text of candidates, what the compiler made of them where it was asked, their measured speed-ups in this
    run, and tasks recorded for other operations; nothing else. The reference is taken as one more measurement, of
    speed-up 1. Without any static profile, forecasts are the same as if there were none to be had.

    Args:
        warm_start: recorded tasks of *other* operations; ``None`` or empty starts from nothing.
        rewrites: what rewrites of PyTorch modules bring, for runs whose reference is one.
        use_profiles: whether to look at static profiles, where there are any.
        bins: the bins.
        name: what ledgers and reports call it.
    """

    foresees_failure = True

    def __init__(
        self,
        *,
        warm_start: Sequence[KnownTask] | None = None,
        rewrites: RewriteModel | None = None,
        use_profiles: bool = True,
        bins: BinScheme = BINS,
        name: str = "learned",
    ) -> None:
        self.name = name
        self._bins = bins
        self._use_profiles = use_profiles
        self._warm_start = learned_from(tuple(warm_start or ()), rewrites)
        self._failing = FailureModel(warm_start or ())
        self._rows: list[_Row] = []
        self._features: dict[tuple[str, bool], SourceFeatures] = {}
        self._fits: dict[tuple[str, bool], _Fit] = {}

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take all measurements of the run; the model is fitted when it is next asked."""
        rows = [
            _Row(
                observation.candidate_key,
                observation.candidate_code,
                min(_LARGEST_LOG2, max(-_LARGEST_LOG2, observation.log2_speedup)),
                observation.profile,
            )
            for observation in observations
        ]
        # In an order of their own: the same measurements give the same bits, whichever came first.
        rows.sort(key=lambda row: (row.lot, row.key, row.code, row.target))
        self._rows = _subsample(rows)
        self._fits.clear()

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Take all measurements that say which candidates run right."""
        self._failing.observe(attempts)

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """One forecast per query; this forecaster has no failures."""
        started = time.perf_counter()
        by_reference: dict[str, list[int]] = {}
        for index, query in enumerate(queries):
            by_reference.setdefault(query.reference_code, []).append(index)
        found: dict[int, tuple[NDArray[np.float64], Risk]] = {}
        for reference_code, indices in by_reference.items():
            asked = [queries[index] for index in indices]
            answers = zip(
                self._masses(reference_code, asked), self._risks(reference_code, asked), strict=True
            )
            found.update(zip(indices, answers, strict=True))
        cost = ForecastCost(seconds=(time.perf_counter() - started) / max(1, len(queries)))
        return [self._finish(*found[index], cost) for index in range(len(queries))]

    def _finish(self, masses: NDArray[np.float64], risk: Risk, cost: ForecastCost) -> Forecast:
        total = math.fsum(masses)
        return Forecast(
            tuple(float(mass) / total for mass in masses),
            source=self.name,
            cost=cost,
            p_invalid=risk.invalid,
            p_incorrect=risk.incorrect,
        )

    def _risks(self, reference_code: str, queries: Sequence[Query]) -> list[Risk]:
        reference = self._extract(reference_code, queries[0].reference_profile)
        features = [self._extract(query.candidate_code, query.profile) for query in queries]
        screened = [query.screened for query in queries]
        return self._failing.risks(reference_code, reference, features, screened)

    def _masses(self, reference_code: str, queries: Sequence[Query]) -> NDArray[np.float64]:
        reference_profile = queries[0].reference_profile
        reference = self._extract(reference_code, reference_profile)
        fit_key = (reference_code, reference.profile is not None)
        fit = self._fits.get(fit_key)
        if fit is None:
            fit = self._fits[fit_key] = self._learn(_Row("", reference_code, 0.0, reference_profile))
        features = [self._extract(query.candidate_code, query.profile) for query in queries]
        prior = self._warm_start.expect(reference, features)
        points = fit.space.points(features)
        fixed = points.fixed_distances(fit.points)
        anchors = np.array([math.log2(query.anchor_speedup) for query in queries])
        edges = np.array(self._bins.log2_edges)[None, :] + anchors[:, None]
        total = np.zeros((len(queries), N_BINS))
        for weight, warp, process in fit.members:
            belief = process.predict(points, fixed, prior)
            total += weight * student_bin_masses(
                belief.mean, belief.scale, belief.freedom, warp.forward(edges), _FLOOR
            )
        return total

    def _learn(self, reference: _Row) -> _Fit:
        rows = self._rows
        if all(row.code != reference.code for row in rows):
            rows = [reference, *rows]
        features = [self._extract(row.code, row.profile) for row in rows]
        space = FeatureSpace(features)
        of_reference = self._extract(reference.code, reference.profile)
        prior = self._warm_start.expect(of_reference, features)
        targets = np.array([row.target for row in rows])
        chosen = np.arange(min(len(rows), _HYPER_ROWS))
        points, slope = space.points(features), self._warm_start.slope(of_reference)
        processes: list[GaussianProcess] = []
        for warp in WARPS:
            warped, start = warp.forward(targets), processes[0] if processes else None
            processes.append(GaussianProcess(points, space.group_sizes, warped, prior, slope, chosen, start))
        evidence = np.array(
            [
                process.evidence + warp.log_jacobian(targets[chosen])
                for process, warp in zip(processes, WARPS, strict=True)
            ]
        )
        weights = np.exp(evidence - evidence.max())
        weights /= weights.sum()
        members = [(float(w), warp, p) for w, warp, p in zip(weights, WARPS, processes, strict=True)]
        return _Fit(space, points, tuple(member for member in members if member[0] > _NEGLIGIBLE))

    def _extract(self, code: str, profile: SourceProfile | None) -> SourceFeatures:
        seen = profile if self._use_profiles else None
        features = self._features.get((code, seen is not None))
        if features is None:
            if len(self._features) >= _CACHED_SOURCES:
                self._features.clear()
            features = replace(extract_features(code), profile=profile_features(seen))
            self._features[code, seen is not None] = features
        return features


def _subsample(rows: list[_Row]) -> list[_Row]:
    """At most :data:`_MAX_ROWS` rows: the fastest, about which the search asks, and a random rest."""
    if len(rows) <= _MAX_ROWS:
        return rows
    fastest = sorted(range(len(rows)), key=lambda index: (-rows[index].target, index))[:_KEPT_FASTEST]
    kept = set(fastest)
    rest = [index for index in range(len(rows)) if index not in kept]
    kept.update(rest[: _MAX_ROWS - len(kept)])
    return [rows[index] for index in sorted(kept)]
