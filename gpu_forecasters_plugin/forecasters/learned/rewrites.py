"""What rewriting a module of PyTorch brings, before this run has measured anything.

Where the reference is a program of PyTorch calls without a kernel of its own, candidates differ from it in other ways
than one kernel from another: in precision, in what is captured or compiled, in fused tails. Kernel ridge regression on
the change of structure features and of token n-grams says what comparable rewrites of other modules have brought; with
nothing like it among them, it says their mean. What was measured ships with the package, in ``pytorch_rewrites.npz``
beside this module, which ``python -m benchmarks.recorded_kernels`` writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import SourceFeatures
from gpu_forecasters_plugin.forecasters.learned.shipped_file import pack, read_shipped, unpack
from gpu_forecasters_plugin.forecasters.learned.space import squared_distances

__all__ = [
    "Changes",
    "RewriteModel",
    "RewriteTable",
    "changes_from",
    "pack_rewrites",
    "shipped_rewrites",
    "unpack_rewrites",
]

Array = NDArray[np.float64]

_FILE = "pytorch_rewrites.npz"
_SQUASHED_TO = 2.0
"""Changes of structure are squashed to this many standard deviations: no single feature may carry a rewrite away from
all others."""
_STRUCTURE_SCALE = 0.45
_SHINGLE_SCALE = 1.0
"""Length scales, of root mean squared distance in the units of a usual change. Short: far from all rewrites that were
measured, their mean is the better guess."""
_LARGEST_LOG2 = 4.0
_NOISE = 0.5
"""Variance of what a rewrite brings that its change does not tell, over the variance that it tells."""
_SHINGLE_STEP = 1.0 / 16.0
"""To which changes of shingles are rounded in a file."""


@dataclass(frozen=True)
class Changes:
    """What n rewrites have that their module has not, and the other way round, a row each.

    Attributes:
        structure: differences of :attr:`~.features.SourceFeatures.structure`.
        shingles: differences of :attr:`~.features.SourceFeatures.shingles`.
    """

    structure: Array
    shingles: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.structure)

    @property
    def none(self) -> NDArray[np.bool_]:
        """Which of them are the same as their module, but for names and layout."""
        changed: NDArray[np.bool_] = np.logical_or(self.structure.any(axis=1), self.shingles.any(axis=1))
        return ~changed


def changes_from(reference: SourceFeatures, sources: Sequence[SourceFeatures]) -> Changes:
    """The change from a module to each of its rewrites."""
    return Changes(
        np.array([source.structure for source in sources]) - reference.structure,
        np.array([source.shingles for source in sources]) - reference.shingles,
    )


@dataclass(frozen=True)
class RewriteTable:
    """Measured rewrites.

    Attributes:
        modules: of which module each is a rewrite.
        changes: from their module.
        log2_speedups: over their module.
    """

    modules: tuple[str, ...]
    changes: Changes
    log2_speedups: Array


class RewriteModel:
    """Expected log2 speed-up of a rewrite over its module. Learns when it is first asked: most runs never ask.

    Args:
        table: rewrites of at least two modules.
    """

    def __init__(self, table: RewriteTable) -> None:
        self._table = table

    @property
    def slope(self) -> float:
        """How much of the expectation to believe, between 0 and 1.

        What it would have been worth on the rewrites of each module when learned on those of the others only.
        """
        return self._learned.slope

    def expect(self, reference: SourceFeatures, sources: Sequence[SourceFeatures]) -> Array:
        """Expected log2 speed-up of each source over the reference; zero for the reference itself."""
        changes = changes_from(reference, sources)
        expected = self._learned.expect(changes)
        expected[changes.none] = 0.0
        return expected

    @cached_property
    def _learned(self) -> _Regression:
        return _Regression(self._table)


class _Regression:
    """Kernel ridge regression of log2 speed-ups on changes, around their mean."""

    def __init__(self, table: RewriteTable) -> None:
        changes, speedups = table.changes, np.clip(table.log2_speedups, -_LARGEST_LOG2, _LARGEST_LOG2)
        self._scale: Array = np.sqrt((changes.structure**2).mean(axis=0) + 0.05)
        self._shingle_scale = math.sqrt(float((changes.shingles**2).sum(axis=1).mean()) + 1e-9)
        self._known = self._points(changes)
        self._mean = float(speedups.mean())
        truth: Array = speedups - self._mean
        similar = self._similarity(self._known)
        inverse: Array = np.asarray(np.linalg.inv(similar + _NOISE * np.eye(len(similar))), dtype=np.float64)
        self._coefficients: Array = inverse @ truth
        expected = truth - _left_out_residuals(inverse, self._coefficients, np.array(table.modules))
        slope = float(expected @ truth) / (float(expected @ expected) + 1e-9)
        self.slope = min(1.0, max(0.0, slope))

    def expect(self, changes: Changes) -> Array:
        """Of each change."""
        expected: Array = self._mean + self._similarity(self._points(changes)) @ self._coefficients
        return expected

    def _points(self, changes: Changes) -> tuple[Array, Array]:
        """Changes in units of their length scales, once by structure and once by shingles."""
        width = _STRUCTURE_SCALE * math.sqrt(changes.structure.shape[1])
        squashed: Array = _SQUASHED_TO / width * np.tanh(changes.structure / self._scale / _SQUASHED_TO)
        return squashed, changes.shingles.astype(np.float64) / (_SHINGLE_SCALE * self._shingle_scale)

    def _similarity(self, points: tuple[Array, Array]) -> Array:
        """To what is known, between 0 and 1: half of it by structure, half by shingles."""
        kernels = [
            np.exp(-0.5 * squared_distances(mine, known))
            for mine, known in zip(points, self._known, strict=True)
        ]
        similar: Array = np.mean(kernels, axis=0)
        return similar


def _left_out_residuals(inverse: Array, coefficients: Array, groups: NDArray[np.str_]) -> Array:
    """What each row's truth is above its expectation from the rows of all other groups.

    From the inverse of the whole: see Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section
    5.4.2, for groups of one.
    """
    residuals = np.empty_like(coefficients)
    for name in np.unique(groups):
        group = np.flatnonzero(groups == name)
        residuals[group] = np.linalg.solve(inverse[np.ix_(group, group)], coefficients[group])
    return residuals


def pack_rewrites(table: RewriteTable) -> bytes:
    """The bytes of a file of rewrites. Changes of shingles are rounded."""
    steps = np.clip(np.rint(table.changes.shingles / _SHINGLE_STEP), -127, 127).astype(np.int8)
    arrays = {
        "structure": table.changes.structure,
        "shingles": steps,
        "log2_speedups": table.log2_speedups,
    }
    return pack({"modules": table.modules}, arrays)


def unpack_rewrites(data: bytes) -> RewriteTable:
    """Inverse of :func:`pack_rewrites`.

    Raises:
        ValueError: The features in it are not those that this version extracts.
    """
    head, arrays = unpack(data)
    shingles = arrays["shingles"].astype(np.float32) * np.float32(_SHINGLE_STEP)
    return RewriteTable(
        tuple(head["modules"]), Changes(arrays["structure"], shingles), arrays["log2_speedups"]
    )


@lru_cache(maxsize=1)
def shipped_rewrites() -> RewriteModel | None:
    """The model of all rewrites that ship with the package; ``None`` where their file is missing."""
    data = read_shipped(_FILE, lost="rewrites of PyTorch")
    return None if data is None else RewriteModel(unpack_rewrites(data))
