"""Forecasts beside what was measured: the arrays that every measure is taken on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.forecast import UNIFORM

__all__ = ["Array", "ForecastRows", "exceedance", "truth_bins"]

Array = NDArray[np.float64]

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ForecastRows:
    """Forecasts of n measured kernels. Immutable; refuses what no measure could be taken on.

    Attributes:
        probabilities: from bin 1 (slowest) to bin 8; a row that has no forecast is uniform; shape (n, 8).
        log2_speedups: log2 of the measured speed-up over the kernel that the forecast's bins are relative to; shape
            (n,).
        answered: whether a row has a forecast; shape (n,).
        weights: what each row counts, above 0, such as one over its sampling probability; shape (n,).
        tasks: a number per task: rankings are made within each, intervals resample them; shape (n,).
        truth: probability of each bin given the measurement, in the scheme that is scored by: one 1 per row, or, with
            the spread of repeated measurements, a soft truth; shape (n, 8).
        bins: name of that scheme.

    Raises:
        ValueError: a shape, a NaN, or numbers that are no distribution.
    """

    probabilities: Array
    log2_speedups: Array
    answered: NDArray[np.bool_]
    weights: Array
    tasks: NDArray[np.intp]
    truth: Array
    bins: str = BINS.name

    def __post_init__(self) -> None:
        n = len(self.log2_speedups)
        for name, shape in (("probabilities", (n, N_BINS)), ("truth", (n, N_BINS))):
            values = getattr(self, name)
            if values.shape != shape:
                raise ValueError(f"{name} have shape {shape}, got {values.shape}")
            sums = values.sum(axis=1)
            if not ((values >= 0).all() and (np.abs(sums - 1.0) <= _SUM_TOLERANCE).all()):
                raise ValueError(f"{name} are rows of eight numbers of at least 0 that sum to 1")
        for name in ("answered", "weights", "tasks"):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"{name} have shape {(n,)}, got {getattr(self, name).shape}")
        if not np.isfinite(self.log2_speedups).all():
            raise ValueError("log2 speed-ups are finite numbers")
        if not (np.isfinite(self.weights).all() and (self.weights > 0).all()):
            raise ValueError("weights are finite and above 0")

    @classmethod
    def of(
        cls,
        probabilities: Sequence[Sequence[float] | None] | Array,
        speedups: Sequence[float] | Array,
        *,
        bins: BinScheme = BINS,
        weights: Sequence[float] | Array | None = None,
        tasks: Sequence[str] | None = None,
        answered: NDArray[np.bool_] | None = None,
    ) -> ForecastRows:
        """Rows from forecasts and measured speed-ups.

        Args:
            probabilities: eight numbers, or ``None`` where there is no forecast.
            speedups: measured, over the kernel that the bins are relative to, above 0; as many.
            bins: the scheme that forecasts are scored by.
            weights: what each row counts; all alike when left out.
            tasks: name of each row's task; all the same when left out.
            answered: which rows have a forecast, for an array of probabilities; what stands in the others is ignored.

        Raises:
            ValueError: as the class says, or a speed-up is not a positive finite number.
        """
        values = np.asarray(speedups, dtype=np.float64).reshape(-1)
        truth = np.eye(N_BINS)[truth_bins(values, bins)]
        n = len(values)
        if answered is None:
            answered = np.array([row is not None for row in probabilities], dtype=np.bool_)
            probabilities = [UNIFORM if row is None else row for row in probabilities]
        table = np.array(probabilities, dtype=np.float64).reshape(len(probabilities), -1 if n else N_BINS)
        table[~answered] = UNIFORM
        groups = np.unique(list(tasks), return_inverse=True)[1] if tasks else np.zeros(n)
        return cls(
            table,
            np.log2(values),
            answered,
            np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64),
            groups.astype(np.intp),
            truth,
            bins.name,
        )

    def __len__(self) -> int:
        return len(self.log2_speedups)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> ForecastRows:
        """Some of the rows, by number or by a mask."""
        return ForecastRows(
            self.probabilities[index],
            self.log2_speedups[index],
            self.answered[index],
            self.weights[index],
            self.tasks[index],
            self.truth[index],
            self.bins,
        )

    def weighted(self, weights: Array) -> ForecastRows:
        """The same rows with other weights; shape (n,)."""
        return replace(self, weights=weights)

    @property
    def predicted(self) -> NDArray[np.intp]:
        """The most probable bin, from 0; the slower one of equals; shape (n,)."""
        found: NDArray[np.intp] = self.probabilities.argmax(axis=1)
        return found

    @property
    def confidence(self) -> Array:
        """Probability of the predicted bin; shape (n,)."""
        found: Array = self.probabilities.max(axis=1)
        return found

    @property
    def expected_log2(self) -> Array:
        """Expected log2 speed-up by the midpoints of the bins that forecasters are asked about; shape (n,)."""
        # Not those of the scored scheme: another way to label the truth does not change what was forecast.
        found: Array = self.probabilities @ np.array(BINS.log2_midpoints)
        return found


def truth_bins(speedups: Array, bins: BinScheme = BINS) -> NDArray[np.intp]:
    """The bin of each speed-up, from 0, as :meth:`BinScheme.index` counts from 1; shape (n,).

    Raises:
        ValueError: a speed-up is not a positive finite number.
    """
    if not (np.isfinite(speedups).all() and (speedups > 0).all()):
        raise ValueError("speed-ups are positive finite numbers")
    return np.searchsorted(bins.edges, speedups, side="left" if bins.holds_upper_edge else "right")


def exceedance(probabilities: Array, log2_speedup: float) -> Array:
    """P(log2 S > ``log2_speedup``) of each forecast, as :meth:`Forecast.exceedance` has it; shape (n,)."""
    edges = np.array([BINS.log2_edges[0] - 2.0, *BINS.log2_edges, BINS.log2_edges[-1] + 2.0])
    share = np.clip((edges[1:] - log2_speedup) / np.diff(edges), 0.0, 1.0)
    return np.minimum(1.0, probabilities @ share)
