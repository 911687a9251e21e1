"""What the compiler foretells: the estimated time of a candidate's static profile against the reference's.

The estimate (:mod:`gpu_forecasters_plugin.screen.estimate`) counts bytes, instructions, launches, waves and occupancy;
it knows nothing of caches, conflicts or divergence. How far it is off is learned from the run's own measurements: a
line through log2 speed-up over log2 of the estimated speed-up, with a conjugate prior, whose predictions are Student-t.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, BinScheme
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters._mass import student_bin_masses
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["RooflineForecaster"]

Array = NDArray[np.float64]

_LINE = np.array([0.0, 0.8])
"""Level and slope that are expected before anything is measured: part of an estimated change does not come true."""
_LINE_ROWS = np.array([1.0, 4.0])
"""How many rows that is worth, for the level and, at changes of one octave, for the slope."""
_SHAPE = 2.5
_VARIANCE = 1.0
"""Inverse-gamma prior of the error's variance, in octaves squared: the estimate alone is off by about one octave."""
_FLOOR = 0.02
_LARGEST_LOG2 = 12.0


class RooflineForecaster(Forecaster):
    """Estimated speed-up, calibrated on this run's measurements.

    A candidate or a reference without an estimate has no forecast but the failure ``empty``: nobody asked the
    compiler (``screen: {policy: off}``), the candidate could not be run dry, or CUDA host code launches kernels out of
    sight.

    Args:
        bins: the bins.
        name: what ledgers and reports call it.
    """

    def __init__(self, *, bins: BinScheme = BINS, name: str = "roofline") -> None:
        self.name = name
        self._bins = bins
        self._measured: list[tuple[SourceProfile | None, float]] = []

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take all measurements of the run."""
        self._measured = [(seen.profile, seen.log2_speedup) for seen in observations]

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """One forecast per query that has an estimate."""
        started = time.perf_counter()
        outcomes = [self._answer(query) for query in queries]
        cost = ForecastCost(seconds=(time.perf_counter() - started) / max(1, len(queries)))
        return [
            Forecast(outcome, source=self.name, cost=cost)
            if isinstance(outcome, tuple)
            else ForecastFailure(FailureKind.EMPTY, outcome, self.name, cost)
            for outcome in outcomes
        ]

    def _answer(self, query: Query) -> tuple[float, ...] | str:
        """The probabilities, or why there are none."""
        change = _estimated_change(query.reference_profile, query.profile)
        if change is None:
            return _why(query)
        mean, scale, freedom = self._predict(query.reference_profile, change)
        edges = np.array([self._bins.log2_edges]) + math.log2(query.anchor_speedup)
        (masses,) = student_bin_masses(np.array([mean]), np.array([scale]), freedom, edges, _FLOOR)
        total = math.fsum(masses)
        return tuple(float(mass) / total for mass in masses)

    def _predict(self, reference: SourceProfile | None, change: float) -> tuple[float, float, float]:
        """Centre, scale and degrees of freedom of the log2 speed-up (Bayesian linear regression)."""
        rows = [
            (estimated, max(-_LARGEST_LOG2, min(_LARGEST_LOG2, measured)))
            for profile, measured in self._measured
            if (estimated := _estimated_change(reference, profile)) is not None
        ]
        inputs = np.array([(1.0, estimated) for estimated, _ in rows]).reshape(len(rows), 2)
        truth = np.array([measured for _, measured in rows])
        precision = np.diag(_LINE_ROWS) + inputs.T @ inputs
        line = np.linalg.solve(precision, _LINE_ROWS * _LINE + inputs.T @ truth)
        misfit = float(truth @ truth + _LINE @ (_LINE_ROWS * _LINE) - line @ precision @ line)
        shape = _SHAPE + len(rows) / 2.0
        variance = (_SHAPE * _VARIANCE + max(misfit, 0.0) / 2.0) / shape
        at = np.array([1.0, change])
        scale = math.sqrt(variance * (1.0 + float(at @ np.linalg.solve(precision, at))))
        return float(at @ line), scale, 2.0 * shape


def _estimated_change(reference: SourceProfile | None, profile: SourceProfile | None) -> float | None:
    """log2 of the estimated speed-up over the reference."""
    if reference is None or profile is None:
        return None
    if not reference.estimated_us or not profile.estimated_us:
        return None
    return math.log2(reference.estimated_us / profile.estimated_us)


def _missing(screened: str | None) -> str:
    """Why there is no profile, by the compiler's verdict on the candidate."""
    if screened is None:
        return "set surrogate.screen.policy to skip or defer, and surrogate.screen.task_file outside a run"
    return f"the compiler's verdict on the candidate is {screened}"


def _why(query: Query) -> str:
    for what, profile in (("reference", query.reference_profile), ("candidate", query.profile)):
        if profile is None:
            return f"the {what} has no static profile: {_missing(query.screened)}"
        if not profile.estimated_us:
            return f"part of what the {what} does is out of the compiler's sight"
    raise AssertionError("there is an estimate")
