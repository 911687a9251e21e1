"""Which candidates will fail: logistic regressions on what is known before anything is measured.

Two of them: does a candidate build and run, and, of those that do, is it right. Their inputs are the changes of
structure and static profile to the reference, and the compiler's verdict. What other recorded tasks teach is where the
coefficients start from; the run's own measurements move them, as far as their number justifies. Without any row that
tells candidates apart, the answer is the base rate, smoothed by Laplace's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecast import Attempt, Ending
from gpu_forecasters_plugin.forecasters.learned.features import STRUCTURE_NAMES, SourceFeatures
from gpu_forecasters_plugin.forecasters.learned.known import KnownTask
from gpu_forecasters_plugin.forecasters.learned.profile_features import PROFILE_NAMES
from gpu_forecasters_plugin.forecasters.learned.tables import SourceTable, table_of_attempts

__all__ = ["FailureModel", "Risk"]

Array = NDArray[np.float64]

_RUNS_PENALTY = (10.0, 30.0)
_RIGHT_PENALTY = (100.0, 100.0)
"""Rows that a coefficient's prior is worth when learned elsewhere, and when moved by the run's own rows. Which kernels
give wrong results can hardly be told beforehand."""
_REACH = 2.0
_FLAG_SCALE = 4.0
"""Of flags, which are rare, to the standard deviation of the other inputs."""
_FLAGGED = ("invalid", "undecided")
"""Verdicts of the compiler that have a flag each, beside that of having no profile."""
_LAPLACE_ROWS = 2.0
_ELSEWHERE_ROWS = 4.0
"""Rows that the base rate of other tasks is worth in this run."""
_STEPS = 12
_LONGEST_STEP = 4.0
_MAX_ATTEMPTS = 600


@dataclass(frozen=True)
class Risk:
    """Probabilities that a candidate does not build or run, and that it runs with wrong results."""

    invalid: float
    incorrect: float


@dataclass(frozen=True)
class _Logistic:
    """P(yes) = 1 / (1 + exp(-(level + x . coefficients)))."""

    level: float
    coefficients: Array

    def chance(self, inputs: Array) -> Array:
        chance: Array = 1.0 / (1.0 + np.exp(-np.clip(self.level + inputs @ self.coefficients, -30.0, 30.0)))
        return chance


@dataclass(frozen=True)
class _Heads:
    """Does it run, and is it right if it does."""

    runs: _Logistic
    right: _Logistic

    def risks(self, inputs: Array) -> list[Risk]:
        runs, right = self.runs.chance(inputs), self.right.chance(inputs)
        return [Risk(float(1.0 - a), float(a * (1.0 - b))) for a, b in zip(runs, right, strict=True)]


@dataclass(frozen=True)
class _Rows:
    """Inputs and endings of one task's measurements."""

    inputs: Array
    endings: tuple[Ending, ...]

    @cached_property
    def runs(self) -> tuple[Array, Array]:
        return self.inputs, np.array([float(ending is not Ending.INVALID) for ending in self.endings])

    @cached_property
    def right(self) -> tuple[Array, Array]:
        ran = np.array([ending is not Ending.INVALID for ending in self.endings], dtype=bool)
        truth = np.array([float(ending is Ending.OK) for ending in self.endings])
        return self.inputs[ran], truth[ran]


class FailureModel:
    """Foresees failure.

    Args:
        tasks: recorded tasks of other operations; with none, only the run's own measurements teach.
    """

    def __init__(self, tasks: Sequence[KnownTask]) -> None:
        self._tasks = tuple(task for task in tasks if task.endings)
        self._attempts: list[Attempt] = []
        self._fits: dict[tuple[str, bool], _Heads] = {}

    def observe(self, attempts: Sequence[Attempt]) -> None:
        """Take all measurements of the run that say something; the latest ones, where there are very many."""
        self._attempts = list(attempts)[-_MAX_ATTEMPTS:]
        self._fits.clear()

    def risks(
        self,
        reference_key: str,
        reference: SourceFeatures,
        sources: Sequence[SourceFeatures],
        screened: Sequence[str | None],
    ) -> list[Risk]:
        """The risk of each source.

        Args:
            reference_key: tells references apart.
            reference: features of the reference.
            sources: features of the candidates.
            screened: the compiler's verdict on each.
        """
        anchor = SourceTable.of([reference.structure], [reference.profile], [None])
        fit_key = (reference_key, reference.profile is not None)
        heads = self._fits.get(fit_key)
        if heads is None:
            heads = self._fits[fit_key] = self._learn(anchor)
        candidates = SourceTable.of(
            [source.structure for source in sources], [source.profile for source in sources], screened
        )
        return heads.risks(_inputs(anchor, candidates))

    def _learn(self, reference: SourceTable) -> _Heads:
        start = _start(self._tasks, compiled=bool(reference.compiled[0]))
        tried = table_of_attempts(self._attempts)
        rows = _Rows(_inputs(reference, tried), tuple(attempt.ending for attempt in self._attempts))
        weight = _ELSEWHERE_ROWS if self._tasks else _LAPLACE_ROWS
        return _Heads(
            _moved(start.runs, *rows.runs, weight, _RUNS_PENALTY[1]),
            _moved(start.right, *rows.right, weight, _RIGHT_PENALTY[1]),
        )


@lru_cache(maxsize=16)
def _start(tasks: tuple[KnownTask, ...], *, compiled: bool) -> _Heads:
    """What other tasks teach, with profiles or without; once in a process however many searches start from them."""
    known = [task for task in tasks if task.reference.compiled[0] or not compiled]
    blocks = [_Rows(_inputs(task.reference, task.tried, compiled), task.endings) for task in known]
    width = _width(compiled)
    return _Heads(
        _elsewhere([block.runs for block in blocks], width, _RUNS_PENALTY[0]),
        _elsewhere([block.right for block in blocks], width, _RIGHT_PENALTY[0]),
    )


def _width(compiled: bool) -> int:
    return len(STRUCTURE_NAMES) + (len(PROFILE_NAMES) + 1 + len(_FLAGGED) if compiled else 0)


def _inputs(reference: SourceTable, sources: SourceTable, compiled: bool = True) -> Array:
    """A row per source: changes to the reference, bounded, and what the compiler said, if it was asked about both.

    Args:
        reference: one row.
        sources: any number of rows.
        compiled: whether to look at what the compiler said.
    """
    changes = [sources.structure - reference.structure[0]]
    flags: Array = np.zeros((len(sources), 0))
    if compiled and reference.compiled[0]:
        changes.append(np.nan_to_num(sources.profiles - reference.profiles[0]))
        said = [~sources.compiled, *([v == verdict for v in sources.screened] for verdict in _FLAGGED)]
        flags = np.array(said, dtype=np.float64).T
    return np.hstack([_REACH * np.tanh(np.hstack(changes) / _REACH), _FLAG_SCALE * flags])


def _elsewhere(blocks: Sequence[tuple[Array, Array]], width: int, prior: float) -> _Logistic:
    """Coefficients that other tasks share, each with a level of its own, and the mean of these levels."""
    blocks = [(inputs, truth) for inputs, truth in blocks if len(truth)]
    if not blocks:
        return _Logistic(0.0, np.zeros(width))
    # A column per task stands for its level, almost free.
    levels = [np.full((len(truth), 1), 1.0) for _, truth in blocks]
    count = len(blocks)
    stacked = np.zeros((sum(map(len, levels)), width + count))
    stacked[:, :width] = np.vstack([inputs for inputs, _ in blocks])
    start = 0
    for index, level in enumerate(levels):
        stacked[start : start + len(level), width + index] = 1.0
        start += len(level)
    truth = np.concatenate([truth for _, truth in blocks])
    penalty = np.append(np.full(width, prior), np.full(count, 0.1))
    found = _fit(stacked, truth, np.ones(len(truth)), np.zeros(width + count), penalty)
    return _Logistic(float(found[width:].mean()), found[:width])


def _moved(start: _Logistic, inputs: Array, truth: Array, prior_rows: float, prior: float) -> _Logistic:
    """A regression moved by rows; its level has a beta prior worth ``prior_rows`` rows like the reference."""
    width = len(start.coefficients)
    base = 1.0 / (1.0 + np.exp(-start.level))
    rows = np.vstack([inputs, np.zeros((2, width))])
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    given = np.append(truth, [1.0, 0.0])
    weights = np.append(np.ones(len(truth)), [prior_rows * base, prior_rows * (1.0 - base)])
    centre = np.append(start.coefficients, start.level)
    penalty = np.append(np.full(width, prior), 1e-3)
    found = _fit(rows, given, weights, centre, penalty)
    return _Logistic(float(found[-1]), found[:-1])


def _fit(inputs: Array, truth: Array, weights: Array, centre: Array, penalty: Array) -> Array:
    """Maximum a posteriori by Newton's method, each step bounded."""
    theta = centre.copy()
    for _ in range(_STEPS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ theta, -30.0, 30.0)))
        gradient = inputs.T @ (weights * (truth - chance)) - penalty * (theta - centre)
        curvature = (inputs * (weights * chance * (1.0 - chance))[:, None]).T @ inputs
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        length = float(np.abs(step).max(initial=0.0))
        theta = theta + step * min(1.0, _LONGEST_STEP / max(length, 1e-12))
        if length < 1e-6:
            break
    return theta
