"""Whether forecasts put the fast kernels first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows

__all__ = [
    "TOP_PERCENT",
    "RecoveryCurve",
    "best_of_top",
    "ranks",
    "recovery_curve",
    "spearman",
    "spearman_within_tasks",
    "top_k",
]

TOP_PERCENT = (1, 5, 10, 25, 50)
"""Parts of a task's kernels that are measured, in per cent."""

_NEGLIGIBLE = 1e-12

_GRID = np.unique(np.concatenate([np.arange(1, 10) / 100, np.arange(2, 21) / 20]))


def ranks(values: Array) -> Array:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    mean: Array = last - (counts - 1) / 2
    return mean[place]


def spearman(one: Array, other: Array) -> float | None:
    """Spearman's rank correlation, in [-1, 1], ties at their mean rank; shape (n,) each.

    Returns:
        ``None`` with fewer than two values, or where either are all the same.
    """
    if len(one) < 2:
        return None
    a, b = ranks(_settled(one)), ranks(_settled(other))
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return None if scale == 0 else float(np.clip(a @ b / scale, -1.0, 1.0))


def spearman_within_tasks(rows: ForecastRows) -> float | None:
    """Rank correlation of expected with measured log2 speed-up within each task; mean over those that have one."""
    expected = rows.expected_log2
    masks = [rows.tasks == task for task in np.unique(rows.tasks)]
    found = [spearman(expected[mask], rows.log2_speedups[mask]) for mask in masks]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None


def _settled(values: Array) -> Array:
    """Without the last bits, in which equal forecasts may differ."""
    return values.round(12)


def best_of_top(scores: Array, speedups: Array, count: int) -> float:
    """Expected largest speed-up among the ``count`` best by score, ties broken by chance.

    Args:
        scores: what kernels are ranked by, largest first; shape (n,).
        speedups: measured; shape (n,).
        count: how many are measured, 1 to n.
    """
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    surely, tied = speedups[scores > threshold], speedups[scores == threshold]
    floor = float(surely.max(initial=0.0))
    return _expected_best(np.sort(tied)[::-1], count - len(surely), floor)


def _expected_best(descending: Array, drawn: int, floor: float) -> float:
    """Expected maximum of ``floor`` and of values drawn without replacement."""
    n, left, expected = len(descending), 1.0, 0.0
    for place, value in enumerate(descending):
        # The chance that this one is drawn, none of the better ones having been.
        chance = min(1.0, drawn / (n - place))
        expected += left * chance * max(floor, float(value))
        left *= 1.0 - chance
        if left < _NEGLIGIBLE:
            break
    return min(expected, max(floor, float(descending[0])))  # the sum of the chances may be a hair above 1


def _tasks(rows: ForecastRows) -> list[ForecastRows]:
    """The rows of each task that has at least two: among fewer there is nothing to rank."""
    counts = np.bincount(rows.tasks)
    return [rows.take(rows.tasks == task) for task in np.flatnonzero(counts >= 2)]


def _share(scores: Array, speedups: Array, fraction: float) -> float:
    count = max(1, int(np.ceil(round(fraction * len(scores), 9))))
    return best_of_top(scores, speedups, count) / float(speedups.max())


def top_k(rows: ForecastRows, percents: Sequence[int] = TOP_PERCENT) -> dict[str, float | None]:
    """Speed-up of the best kernel among the top k per cent by expected log2 speed-up, over the task's best.

    Returns:
        By k: the mean over tasks, in (0, 1]; ``None`` where no task has two rows.
    """
    tasks = [(_settled(t.expected_log2), np.exp2(t.log2_speedups)) for t in _tasks(rows)]
    return {
        str(percent): float(np.mean([_share(*task, percent / 100) for task in tasks])) if tasks else None
        for percent in percents
    }


@dataclass(frozen=True, eq=False)
class RecoveryCurve:
    """Best speed-up found over the part of the kernels that is measured; means over tasks.

    Attributes:
        measured: part measured, rising to 1; shape (m,).
        forecast: share of the best speed-up found in the forecasts' order; shape (m,).
        random: the same in random order, in expectation; shape (m,).
        tasks: tasks with at least two rows; the curves are empty without any.
    """

    measured: Array
    forecast: Array
    random: Array
    tasks: int


def recovery_curve(rows: ForecastRows) -> RecoveryCurve:
    """The curve between chance and perfection, which finds the best at once."""
    tasks = [(_settled(t.expected_log2), np.exp2(t.log2_speedups)) for t in _tasks(rows)]
    if not tasks:
        return RecoveryCurve(np.empty(0), np.empty(0), np.empty(0), 0)
    found = [[_share(scores, speedups, f) for scores, speedups in tasks] for f in _GRID]
    chance = [[_share(np.zeros(len(speedups)), speedups, f) for _, speedups in tasks] for f in _GRID]
    return RecoveryCurve(_GRID, np.mean(found, axis=1), np.mean(chance, axis=1), len(tasks))
