"""Forecasts of the comparison beside what was measured: measures of each line of its tables, with intervals.

A line is one way to train or to ask, over its seeds. Written answers are drawn several times for each kernel: proper
scores and calibration are those of all draws together, rankings the mean over draws, each ranked by itself. Intervals
resample kernels, the same ones for every line, so that lines can be compared in pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_forecasters_plugin.calibration.measures import confusion, measure
from gpu_forecasters_plugin.calibration.ranking import spearman_within_tasks, top_k
from gpu_forecasters_plugin.calibration.reliability import (
    confidence_groups,
    ece,
    monotonicity,
    reliability_buckets,
)
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import brier, crps, exact, nll, within_one
from gpu_forecasters_plugin.training.rows import TrainingRow

__all__ = ["INTERVALS", "Answers", "Line", "Numbers"]

Numbers = dict[str, Any]
_MEANS = ("exact", "within_one", "brier", "crps", "nll")
INTERVALS = (*_MEANS, "ece", "spearman_within_tasks", "top_k_10")
_RANKINGS = ("spearman_within_tasks", "top_k_1", "top_k_10", "top_k_25")


@dataclass(frozen=True)
class Answers:
    """What one training's model answered about each kernel.

    Attributes:
        probabilities: by draw and kernel; ``None`` where an answer could not be read.
        unread: how many could not.
        tokens: of an answer, mean; ``None`` for what writes none.
    """

    probabilities: Sequence[Sequence[Sequence[float] | None]]
    unread: int = 0
    tokens: float | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any], rows: Sequence[TrainingRow]) -> Answers:
        """From a training's result: one answer for each row, or a list of draws."""
        found = [kept[row.id] if isinstance(kept[row.id], list) else [kept[row.id]] for row in rows]
        every = [answer for draws in found for answer in draws]
        return cls(
            [[draws[number]["p"] for draws in found] for number in range(len(found[0]))],
            sum(answer["failure"] is not None for answer in every),
            statistics.fmean(answer["tokens"] for answer in every),
        )


class Line:
    """One line of a table: the answers of one or several seeds about the same kernels.

    Args:
        rows: the kernels.
        seeds: answers of each seed.
    """

    def __init__(self, rows: Sequence[TrainingRow], seeds: Sequence[Answers]) -> None:
        self.seeds = seeds
        self._count = len(rows)
        speedups, tasks = [row.speedup for row in rows], [row.operation for row in rows]
        self._draws = [
            [ForecastRows.of(list(draw), speedups, tasks=tasks) for draw in seed.probabilities]
            for seed in seeds
        ]
        self._together = [
            ForecastRows.of(
                [p for draw in seed.probabilities for p in draw],
                speedups * len(seed.probabilities),
                tasks=tasks * len(seed.probabilities),
            )
            for seed in seeds
        ]

    @cached_property
    def measures(self) -> Numbers:
        """Every measure, the mean over seeds; ``None`` where it is undefined."""
        every = [self._of_seed(number) for number in range(len(self.seeds))]
        return {name: _mean([found[name] for found in every]) for name in every[0]}

    def pictures(self) -> Numbers:
        """Groups by confidence, buckets and confusion, of all seeds together."""
        rows = self._all
        return {
            "groups": [asdict(group) for group in confidence_groups(rows)],
            "buckets": [asdict(bucket) for bucket in reliability_buckets(rows)],
            "confusion": np.round(confusion(rows), 3).tolist(),
        }

    def monotone(self) -> bool | None:
        """Whether the error falls from each group to the surer one, over all seeds together."""
        found = monotonicity(confidence_groups(self._all))
        return None if found is None else found == 1.0

    def equally_sure(self) -> float:
        """Share of all answers that have the commonest confidence: near 1, nothing can be ordered by it."""
        counts = np.unique(self._all.confidence.round(6), return_counts=True)[1]
        return float(counts.max() / counts.sum())

    def resampled(self, resamples: int, seed: int = 0) -> dict[str, Array]:
        """The measures that have intervals, of kernels drawn with replacement; shape (resamples,) each."""
        generator = np.random.default_rng(seed)
        drawn = generator.integers(0, self._count, size=(resamples, self._count))
        found = [self._of_sample(index) for index in drawn]
        return {name: np.array([each[name] for each in found], dtype=np.float64) for name in INTERVALS}

    @property
    def _all(self) -> ForecastRows:
        first, *others = self._together
        return ForecastRows(
            *(
                np.concatenate([getattr(rows, name) for rows in (first, *others)])
                for name in ("probabilities", "log2_speedups", "answered", "weights", "tasks", "truth")
            )
        )

    def _of_seed(self, number: int) -> Numbers:
        found = _flat(self._together[number])
        draws = [_flat(rows) for rows in self._draws[number]]
        return found | {name: _mean([draw[name] for draw in draws]) for name in _RANKINGS}

    @cached_property
    def _by_kernel(self) -> list[dict[str, Array]]:
        """Of each seed, the measures that are means over kernels, one number each: the mean over its draws."""
        found = []
        for rows in self._together:
            of_rows = {
                "exact": exact(rows),
                "within_one": within_one(rows),
                "brier": brier(rows.probabilities, rows.truth),
                "crps": crps(rows.probabilities, rows.truth),
                "nll": nll(rows.probabilities, rows.truth),
            }
            found.append({name: of_rows[name].reshape(-1, self._count).mean(axis=0) for name in _MEANS})
        return found

    def _of_sample(self, index: Any) -> Numbers:
        every = []
        seeds = zip(self._by_kernel, self._together, self._draws, strict=True)
        for by_kernel, together, draws in seeds:
            found: Numbers = {name: float(by_kernel[name][index].mean()) for name in _MEANS}
            repeated = np.concatenate([index + self._count * number for number in range(len(draws))])
            found["ece"] = ece(together.take(repeated))
            drawn = [rows.take(index) for rows in draws]
            found["spearman_within_tasks"] = _mean([spearman_within_tasks(rows) for rows in drawn])
            found["top_k_10"] = _mean([top_k(rows, (10,))["10"] for rows in drawn])
            every.append(found)
        return {name: _mean([found[name] for found in every]) for name in INTERVALS}


def _flat(rows: ForecastRows) -> Numbers:
    found = asdict(measure(rows)) | {"ece": ece(rows), "confidence": float(rows.confidence.mean())}
    return found | {f"top_k_{k}": value for k, value in found.pop("top_k").items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
