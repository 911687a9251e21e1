"""What rewriting a module of PyTorch brings, before this run has measured anything.

Where the reference is a program of PyTorch calls without a kernel of its own, candidates differ from it in other ways
than one kernel from another: in precision, in what is captured or compiled, in fused tails. Kernel ridge regression on
the change in structure features says what comparable rewrites of other modules have brought; with nothing like it
among them, it says their mean. What was measured ships with the package: ``pytorch_rewrites.npz`` beside this module,
which ``python -m benchmarks.recorded_kernels`` writes.
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import STRUCTURE_NAMES, SourceFeatures
from gpu_forecasters_plugin.forecasters.learned.space import squared_distances

__all__ = ["RewriteModel", "RewriteTable", "pack_rewrites", "shipped_rewrites", "unpack_rewrites"]

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

_FILE = "pytorch_rewrites.npz"
_SQUASHED_TO = 2.0
"""Changes are squashed to this many standard deviations: no single feature may carry a rewrite away from all others."""
_LENGTH_SCALE = 0.3
"""Of root mean squared distance over the features, in their standard deviations. Short: far from all rewrites that
were measured, their mean is the better guess."""
_LARGEST_LOG2 = 4.0
_NOISE = 1.0
"""Variance of what a rewrite brings that its change does not tell, over the variance that it tells."""


@dataclass(frozen=True)
class RewriteTable:
    """Measured rewrites.

    Attributes:
        modules: of which module each is a rewrite.
        changes: their structure features less those of their module, a row each.
        log2_speedups: over their module.
    """

    modules: tuple[str, ...]
    changes: Array
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
        changes = np.array([source.structure for source in sources]) - reference.structure
        expected = self._learned.expect(changes)
        expected[[_same(source, reference) for source in sources]] = 0.0
        return expected

    @cached_property
    def _learned(self) -> _Regression:
        return _Regression(self._table)


class _Regression:
    """Kernel ridge regression of log2 speed-ups on changes, around their mean."""

    def __init__(self, table: RewriteTable) -> None:
        speedups = np.clip(table.log2_speedups, -_LARGEST_LOG2, _LARGEST_LOG2)
        self._scale: Array = np.asarray(np.sqrt((table.changes**2).mean(axis=0) + 0.05), dtype=np.float64)
        self._known = self._squashed(table.changes)
        self._mean = float(speedups.mean())
        truth: Array = speedups - self._mean
        similar = _similarity(self._known, self._known)
        inverse: Array = np.asarray(np.linalg.inv(similar + _NOISE * np.eye(len(similar))), dtype=np.float64)
        self._coefficients: Array = inverse @ truth
        expected = truth - _left_out_residuals(inverse, self._coefficients, np.array(table.modules))
        slope = float(expected @ truth) / (float(expected @ expected) + 1e-9)
        self.slope = min(1.0, max(0.0, slope))

    def expect(self, changes: Array) -> Array:
        """Of each row of changes."""
        expected: Array = self._mean + _similarity(self._squashed(changes), self._known) @ self._coefficients
        return expected

    def _squashed(self, changes: Array) -> Array:
        share = _SQUASHED_TO / math.sqrt(changes.shape[1])
        squashed: Array = share * np.tanh(changes / self._scale / _SQUASHED_TO)
        return squashed


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
    """The bytes of a file of rewrites."""
    head = {"modules": table.modules, "structure": STRUCTURE_NAMES}
    packed = io.BytesIO()
    np.savez_compressed(
        packed, head=np.array(json.dumps(head)), changes=table.changes, log2_speedups=table.log2_speedups
    )
    return packed.getvalue()


def unpack_rewrites(data: bytes) -> RewriteTable:
    """Inverse of :func:`pack_rewrites`.

    Raises:
        ValueError: The features in it are not those that this version extracts.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        head = json.loads(str(arrays["head"]))
        if tuple(head["structure"]) != STRUCTURE_NAMES:
            raise ValueError(f"{_FILE} holds other features: write it anew")
        return RewriteTable(tuple(head["modules"]), arrays["changes"], arrays["log2_speedups"])


@lru_cache(maxsize=1)
def shipped_rewrites() -> RewriteModel | None:
    """The model of all rewrites that ship with the package; ``None`` where their file is missing."""
    file = resources.files("gpu_forecasters_plugin.forecasters.learned").joinpath(_FILE)
    if not file.is_file():
        logger.warning(
            "%s is missing: nothing is known of rewrites of PyTorch; install the package anew", file
        )
        return None
    return RewriteModel(unpack_rewrites(file.read_bytes()))


def _similarity(left: Array, right: Array) -> Array:
    similar: Array = np.exp(-0.5 * squared_distances(left, right) / _LENGTH_SCALE**2)
    return similar


def _same(source: SourceFeatures, reference: SourceFeatures) -> bool:
    """Whether two sources are the same but for names and layout."""
    return np.array_equal(source.structure, reference.structure) and np.array_equal(
        source.shingles, reference.shingles
    )
