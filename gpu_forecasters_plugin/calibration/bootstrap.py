"""Percentile intervals by resampling (Efron 1979), paired by row, whole tasks at a time where there are enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.calibration.rows import ForecastRows

__all__ = ["FEWEST_ROWS", "FEWEST_TASKS", "Intervals", "bootstrap"]

FEWEST_ROWS = 10
"""With fewer rows there is no interval: it would be little more than the smallest and the largest row."""

FEWEST_TASKS = 5
"""From here on whole tasks are drawn, since kernels of one task resemble each other; below, single rows."""

Statistic = Callable[[ForecastRows], Mapping[str, float | None]]


@dataclass(frozen=True)
class Intervals:
    """Bootstrap intervals of several numbers at once.

    Attributes:
        bounds: lower and upper end by name; ``None`` where it is undefined.
        unit: what was drawn: ``row`` or ``task``.
        resamples: how often.
        level: share of resamples within.
    """

    bounds: Mapping[str, tuple[float, float] | None]
    unit: str
    resamples: int
    level: float


def bootstrap(
    rows: ForecastRows, statistic: Statistic, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Intervals:
    """Intervals of every number that ``statistic`` returns.

    Args:
        rows: drawn with replacement, forecast and truth together.
        statistic: from rows to numbers by name, ``None`` for an undefined one; such resamples are left out.
        resamples: how often to draw.
        level: share of resamples that an interval holds.
        seed: of the draws; the same rows and seed give the same intervals.
    """
    names = list(statistic(rows))
    members = _members(rows)
    unit = "row" if members is None else "task"
    if len(rows) < FEWEST_ROWS:
        return Intervals(dict.fromkeys(names), unit, 0, level)
    generator = np.random.default_rng(seed)
    found = np.full((resamples, len(names)), np.nan)
    for number in range(resamples):
        values = statistic(_resample(rows, members, generator))
        found[number] = [np.nan if values[name] is None else values[name] for name in names]
    tail = (1.0 - level) / 2
    bounds = {name: _bounds(found[:, place], tail) for place, name in enumerate(names)}
    return Intervals(bounds, unit, resamples, level)


def _members(rows: ForecastRows) -> list[NDArray[np.intp]] | None:
    """Row numbers task by task; ``None`` where rows are drawn singly."""
    tasks = np.unique(rows.tasks)
    if len(tasks) < FEWEST_TASKS:
        return None
    return [np.flatnonzero(rows.tasks == task) for task in tasks]


def _resample(
    rows: ForecastRows, members: list[NDArray[np.intp]] | None, generator: np.random.Generator
) -> ForecastRows:
    if members is None:
        return rows.take(generator.integers(0, len(rows), len(rows)))
    drawn = [members[task] for task in generator.integers(0, len(members), len(members))]
    # A task that is drawn twice is two tasks: rankings are made within each.
    numbers = np.repeat(np.arange(len(drawn)), [len(task) for task in drawn])
    return replace(rows.take(np.concatenate(drawn)), tasks=numbers)


def _bounds(values: NDArray[np.float64], tail: float) -> tuple[float, float] | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [tail, 1.0 - tail])
    return float(low), float(high)
