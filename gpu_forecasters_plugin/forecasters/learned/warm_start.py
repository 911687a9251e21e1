"""What other recorded tasks say about a change of structure, before this run has measured anything.

A ridge on the difference in structure features to the reference, pooled over operations. It sees no source
of the operation in question, and the run decides by its own measurements how much of it to believe: the
prior enters the Gaussian process as one more coordinate with a weight to be learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import (
    STRUCTURE_NAMES,
    SourceFeatures,
    extract_features,
)
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names

__all__ = ["WarmStart", "WarmStartTask", "warm_start_tasks"]

Array = NDArray[np.float64]

_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
_REACH = 2.0
"""Differences are squashed to this many standard deviations and the prior to as many octaves: both would
otherwise extrapolate without bound."""

_LEAST_ROWS = 8


@dataclass(frozen=True)
class WarmStartTask:
    """Measured kernels of another operation.

    Attributes:
        operation: what they compute.
        reference_code: source that their speed-ups are relative to.
        codes: sources with outcome ``ok``.
        log2_speedups: log2 of each one's measured speed-up over the reference.
    """

    operation: str
    reference_code: str
    codes: tuple[str, ...]
    log2_speedups: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.codes) != len(self.log2_speedups):
            raise ValueError(
                f"warm-start task {self.operation!r} has {len(self.codes)} sources"
                f" but {len(self.log2_speedups)} speed-ups"
            )


@lru_cache(maxsize=16)
def _recorded(name: str) -> WarmStartTask:
    pool = load_task(name)
    codes: list[str] = []
    values: list[float] = []
    for identifier, candidate in pool.candidates.items():
        speedup = pool.speedup(identifier)
        if speedup is not None:
            codes.append(candidate.code)
            values.append(math.log2(speedup))
    return WarmStartTask(pool.operation, pool.reference.code, tuple(codes), tuple(values))


def warm_start_tasks(exclude_operation: str) -> list[WarmStartTask]:
    """The recorded tasks of every other operation, by name.

    Args:
        exclude_operation: the operation that the run optimises, so that nothing measured for it leaks in.
    """
    unwanted = exclude_operation.strip().lower()
    tasks = [_recorded(name) for name in sorted(recorded_task_names()) if name.lower() != unwanted]
    return [task for task in tasks if task.operation.lower() != unwanted]


class WarmStart:
    """Expected log2 speed-up from the change in structure, learned on other operations.

    Args:
        tasks: recorded tasks of other operations; with none, or too little in them, nothing is expected.

    Attributes:
        slope: how much of the expectation to believe at first: what it would have been worth on each of the
            tasks when learned on the others only, between 0 and 1.
    """

    def __init__(self, tasks: Sequence[WarmStartTask]) -> None:
        self.slope = 0.0
        self._coefficients = np.zeros(len(STRUCTURE_NAMES))
        self._scale: Array = np.ones(len(STRUCTURE_NAMES))
        usable = [task for task in tasks if len(task.codes) >= _LEAST_ROWS]
        if not usable:
            return
        deltas = [_differences(task) for task in usable]
        squares = np.array([(delta**2).mean(axis=0) for delta in deltas])
        self._scale = np.sqrt(squares.mean(axis=0) + 0.05)
        blocks = [
            (self._squash(delta), np.clip(np.array(task.log2_speedups, dtype=np.float64), -4.0, 4.0))
            for delta, task in zip(deltas, usable, strict=True)
        ]
        ridge = _RIDGES[-1]
        if len(blocks) > 1:
            ridge, self.slope = _leave_one_task_out(blocks)
        self._coefficients = _ridge_fit(blocks, ridge)

    def expect(self, reference: SourceFeatures, sources: Sequence[SourceFeatures]) -> Array:
        """Expected log2 speed-up of each source over the reference; zero for the reference itself.

        Nothing is expected of what is no program of the kind that was learned from: of a list of tuning
        parameters, say, whose few structure features mean something else.
        """
        if not self._coefficients.any() or not _is_program(reference):
            return np.zeros(len(sources))
        structure = np.array([features.structure for features in sources])
        delta = self._squash(structure - reference.structure)
        expected: Array = _REACH * np.tanh(delta @ self._coefficients / _REACH)
        return expected

    def _squash(self, delta: Array) -> Array:
        squashed: Array = _REACH * np.tanh(delta / self._scale / _REACH)
        return squashed


def _is_program(features: SourceFeatures) -> bool:
    """Whether a source defines a kernel, loads memory or calls PyTorch."""
    return any(features.structure[STRUCTURE_NAMES.index(name)] > 0 for name in ("kernel", "load", "torch"))


def _differences(task: WarmStartTask) -> Array:
    reference = extract_features(task.reference_code).structure
    return np.array([extract_features(code).structure for code in task.codes]) - reference


def _ridge_fit(blocks: Sequence[tuple[Array, Array]], ridge: float) -> Array:
    """Ridge with one free level per task: a poor reference makes everything of a task fast."""
    width = blocks[0][0].shape[1]
    gram: Array = np.zeros((width, width))
    right: Array = np.zeros(width)
    for features, targets in blocks:
        centred = features - features.mean(axis=0)
        # Every task counts the same, however many kernels it has.
        gram = gram + centred.T @ centred / len(targets)
        right = right + centred.T @ (targets - float(targets.mean())) / len(targets)
    gram /= len(blocks)
    right /= len(blocks)
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(width), right), dtype=np.float64)


def _leave_one_task_out(blocks: Sequence[tuple[Array, Array]]) -> tuple[float, float]:
    """Ridge that carries over best to a task that it has not seen, and the slope to believe it with."""
    best = (math.inf, _RIDGES[-1], 0.0)
    for ridge in _RIDGES:
        products, squares, power = [], [], []
        for index, (features, targets) in enumerate(blocks):
            others = [block for place, block in enumerate(blocks) if place != index]
            expected = (features - features.mean(axis=0)) @ _ridge_fit(others, ridge)
            truth = targets - targets.mean()
            products.append(float(expected @ truth) / len(truth))
            squares.append(float(expected @ expected) / len(truth))
            power.append(float(truth @ truth) / len(truth))
        # Shrunk by one imaginary task on which the expectation was worth nothing.
        slope = sum(products) / (sum(squares) + sum(squares) / len(squares) + 1e-9)
        slope = min(1.0, max(0.0, slope))
        loss = sum(p - 2 * slope * m + slope**2 * s for p, m, s in zip(power, products, squares, strict=True))
        if loss < best[0]:
            best = (loss, ridge, slope)
    return best[1], best[2]
