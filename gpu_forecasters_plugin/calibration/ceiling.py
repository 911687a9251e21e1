"""What repeated measurements allow: no forecast can be more accurate than a second measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_forecasters_plugin.bins import BINS, SCHEMES, BinScheme
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows, truth_bins

__all__ = ["NoiseCeiling", "noise_ceiling", "soft_truth", "softened", "spread_ceiling"]

_MAD_TO_SD = 1.4826
_LEAST_SD = 1e-9


@dataclass(frozen=True)
class NoiseCeiling:
    """How well measurements foretell measurements.

    Attributes:
        n: kernels measured more than once, or whose spread is known.
        exact: share of pairs of measurements of a kernel in the same bin: the accuracy of a forecaster that had
            measured once. From a spread: of one that knows the true time.
        within_one: share in the same bin or the next.
        median_abs_log2_difference: between two measurements of a kernel, in octaves; ``None`` from a spread.
        log2_sd: standard deviation of one measurement's log2 speed-up, from the median absolute difference (times
            1.4826 / sqrt 2), so that single outliers don't widen it.
        source: ``repeats`` or ``spread``.
    """

    n: int
    exact: float
    within_one: float
    median_abs_log2_difference: float | None
    log2_sd: float
    source: str


def noise_ceiling(repeats: Sequence[Sequence[float]], bins: BinScheme = BINS) -> NoiseCeiling | None:
    """The ceiling from kernels that were measured more than once.

    Args:
        repeats: measured speed-ups, kernel by kernel; those with fewer than two say nothing.
        bins: the scheme that is scored by.

    Returns:
        Means over kernels of all pairs of their measurements; ``None`` when no kernel has two.
    """
    same, near, differences = [], [], []
    for speedups in repeats:
        if len(speedups) < 2:
            continue
        values = np.array(speedups, dtype=np.float64)
        one, other = np.triu_indices(len(values), 1)
        places, log2 = truth_bins(values, bins), np.log2(values)
        apart = np.abs(places[one] - places[other])
        same.append(float((apart == 0).mean()))
        near.append(float((apart <= 1).mean()))
        differences.append(float(np.abs(log2[one] - log2[other]).mean()))
    if not same:
        return None
    middle = float(np.median(differences))
    sd = middle * _MAD_TO_SD / math.sqrt(2.0)
    return NoiseCeiling(len(same), float(np.mean(same)), float(np.mean(near)), middle, sd, "repeats")


def spread_ceiling(log2_speedups: Array, log2_sd: Array, bins: BinScheme = BINS) -> NoiseCeiling | None:
    """The ceiling from the measured spread of each time: the mean probability of each kernel's likeliest bin.

    Args:
        log2_speedups: shape (n,).
        log2_sd: standard deviation of each, in octaves; shape (n,).
        bins: the scheme that is scored by.
    """
    if not len(log2_speedups):
        return None
    truth = soft_truth(log2_speedups, log2_sd, bins)
    likeliest = truth.argmax(axis=1)
    beside = np.abs(np.arange(truth.shape[1])[None, :] - likeliest[:, None]) <= 1
    exact, near = float(truth.max(axis=1).mean()), float((truth * beside).sum(axis=1).mean())
    return NoiseCeiling(len(truth), exact, min(1.0, near), None, float(np.median(log2_sd)), "spread")


def soft_truth(log2_speedups: Array, log2_sd: Array | float, bins: BinScheme = BINS) -> Array:
    """Probability of each bin when a measured log2 speed-up is normal about the true one.

    Args:
        log2_speedups: measured; shape (n,).
        log2_sd: standard deviation of a measurement, at least 0; shape (n,) or one for all.
        bins: the scheme that is scored by.

    Returns:
        Shape (n, 8). Only near an edge does it differ from the hard truth.
    """
    sd = np.broadcast_to(np.maximum(log2_sd, _LEAST_SD), log2_speedups.shape)
    z = (np.array(bins.log2_edges)[None, :] - log2_speedups[:, None]) / sd[:, None]
    below = 0.5 * (1.0 + _erf(z / math.sqrt(2.0)))
    n = len(log2_speedups)
    cumulative = np.hstack([np.zeros((n, 1)), below, np.ones((n, 1))])
    found: Array = np.diff(cumulative, axis=1)
    return found


_erf = np.vectorize(math.erf, otypes=[np.float64])


def softened(rows: ForecastRows, log2_sd: Array | float) -> ForecastRows:
    """The same rows with a soft truth."""
    return replace(rows, truth=soft_truth(rows.log2_speedups, log2_sd, SCHEMES[rows.bins]))
