"""From features of single sources to points in a space whose axes this run's own candidates span."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import SourceFeatures
from gpu_forecasters_plugin.forecasters.learned.profile_features import PROFILE_NAMES

__all__ = ["FeatureSpace", "Points", "squared_distances"]

Array = NDArray[np.float64]

_MAX_NAMES = 192
_PRIOR_ROWS = 2.0
_BINDING_VARIANCE = 1.0
_STRUCTURE_VARIANCE = 0.25
_PROFILE_VARIANCE = 0.25


def squared_distances(left: Array, right: Array) -> Array:
    """Squared Euclidean distances between the rows of two matrices."""
    squares = (left * left).sum(axis=1)[:, None] + (right * right).sum(axis=1)[None, :]
    distances: Array = np.maximum(squares - 2.0 * (left @ right.T), 0.0)
    return distances


@dataclass(frozen=True)
class Points:
    """Sources as rows.

    Attributes:
        live: coordinates that vary among the training sources, group by group; these get a length scale each.
        still: coordinates that are constant there; in a candidate they are news, and news is uncertain.
        shingles: centred, scaled token n-gram counts; they enter through distances alone.
    """

    live: Array
    still: Array
    shingles: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.live)

    @cached_property
    def own_distances(self) -> Array:
        """:meth:`fixed_distances` among themselves, computed once for every process that shares the points."""
        return self.fixed_distances(self)

    def fixed_distances(self, other: Points) -> Array:
        """Squared distance in everything that has no length scale of its own."""
        tokens = squared_distances(self.shingles.astype(np.float64), other.shingles.astype(np.float64))
        return tokens + squared_distances(self.still, other.still)


class _Coordinates:
    """How one group of features is standardised: by its mean and spread over the training sources.

    Args:
        training: raw features, a row per training source; NaN where a source has none, which counts as average.
        prior_variance: of the weak prior for the scales.
    """

    def __init__(self, training: Array, prior_variance: float) -> None:
        known = np.isfinite(training)
        seen = np.maximum(known.sum(axis=0), 1)
        self._mean = np.where(known, training, 0.0).sum(axis=0) / seen
        spread = np.where(known, training - self._mean, 0.0)
        self._scale = _scale(spread, seen.astype(np.float64), prior_variance)
        self.live = np.abs(spread).max(axis=0, initial=0.0) > 1e-9
        self.n_live = int(self.live.sum())

    def standardised(self, raw: Array) -> Array:
        values: Array = np.nan_to_num((raw - self._mean) / self._scale)
        return values


class FeatureSpace:
    """Standardises features by the training sources, with weak prior scales for the first few of them.

    Each of the groups (bindings, structure, the static profile where there is one, shingles) is scaled so that two
    random training sources lie about as far apart in it as in any other, however many coordinates it has.

    Args:
        training: features of the measured sources; at least one. With a profile among them, a source without one
            counts as average in it, and as one that could not be compiled.
    """

    def __init__(self, training: Sequence[SourceFeatures]) -> None:
        counts = Counter(name for features in training for name in features.bindings)
        threshold = max(1.0, 0.02 * len(training))
        frequent = [name for name, count in counts.items() if count >= threshold]
        self._names = sorted(sorted(frequent, key=lambda name: (-counts[name], name))[:_MAX_NAMES])
        rows = len(training)
        self._has_profiles = any(features.profile is not None for features in training)
        self._groups = 4 if self._has_profiles else 3

        self._bindings = _Coordinates(self._raw_bindings(training), _BINDING_VARIANCE)
        self._structure = _Coordinates(_raw_structure(training), _STRUCTURE_VARIANCE)
        self._profile = _Coordinates(self._raw_profiles(training), _PROFILE_VARIANCE)

        shingles = np.array([features.shingles for features in training])
        self._shingle_mean = shingles.mean(axis=0)
        variance = float(((shingles - self._shingle_mean) ** 2).sum(axis=1).mean())
        # Before anything varies, a tenth of a source's own size stands for the usual distance.
        prior = 0.1 * float((shingles**2).sum(axis=1).mean())
        total = (variance * rows + prior * _PRIOR_ROWS) / (rows + _PRIOR_ROWS) + 1e-9
        self._shingle_scale = float(np.sqrt(total * self._groups))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """How many of the live coordinates are bindings, structure and, with profiles, the profile's."""
        sizes = [group.n_live for group in (self._bindings, self._structure, self._profile)]
        return tuple(sizes if self._has_profiles else sizes[:2])

    def _raw_bindings(self, sources: Sequence[SourceFeatures]) -> Array:
        table = [[features.bindings.get(name, np.nan) for name in self._names] for features in sources]
        return np.array(table, dtype=np.float64).reshape(len(sources), len(self._names))

    def _raw_profiles(self, sources: Sequence[SourceFeatures]) -> Array:
        """Profile features and whether there are any; no columns where no training source has a profile."""
        if not self._has_profiles:
            return np.zeros((len(sources), 0))
        nothing = np.append(np.full(len(PROFILE_NAMES), np.nan), 0.0)
        return np.array([nothing if f.profile is None else np.append(f.profile, 1.0) for f in sources])

    def points(self, sources: Sequence[SourceFeatures]) -> Points:
        """Coordinates of any sources; a name that a source does not bind counts as average."""
        groups = (
            (self._bindings, self._raw_bindings(sources)),
            (self._structure, _raw_structure(sources)),
            (self._profile, self._raw_profiles(sources)),
        )
        scaled = [
            group.standardised(raw) / np.sqrt(self._groups * max(1, group.n_live)) for group, raw in groups
        ]
        shingles = np.array([features.shingles for features in sources])
        return Points(
            np.hstack([values[:, group.live] for values, (group, _) in zip(scaled, groups, strict=True)]),
            np.hstack([values[:, ~group.live] for values, (group, _) in zip(scaled, groups, strict=True)]),
            (shingles - self._shingle_mean) / np.float32(self._shingle_scale),
        )


def _raw_structure(sources: Sequence[SourceFeatures]) -> Array:
    return np.array([features.structure for features in sources])


def _scale(spread: Array, rows: Array, prior_variance: float) -> Array:
    """Standard deviations, shrunk towards a prior worth :data:`_PRIOR_ROWS` rows."""
    variance = ((spread**2).sum(axis=0) + _PRIOR_ROWS * prior_variance) / (rows + _PRIOR_ROWS)
    scales: Array = np.sqrt(variance)
    return scales
