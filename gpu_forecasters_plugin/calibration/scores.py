"""Accuracy and proper scores, row by row.

Each is linear in the truth, so a truth that is itself uncertain (see :mod:`ceiling`) needs no formula of its own: the
score is the mean over what the truth may be.
"""

from __future__ import annotations

import numpy as np

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows

__all__ = ["NLL_FLOOR", "brier", "climatology", "crps", "exact", "log2_error", "nll", "within_one"]

NLL_FLOOR = 1e-12
"""Least probability that the logarithmic score knows: certainty in the wrong bin costs 27.6, not infinity."""


def brier(probabilities: Array, truth: Array) -> Array:
    """Half the squared distance of a forecast from the truth, in [0, 1]; 0 is perfect.

    1/2 sum_b (p_b - [b = y])^2 (Brier 1950, halved).

    Args:
        probabilities: shape (n, 8).
        truth: probability of each bin being the true one; shape (n, 8).

    Returns:
        Shape (n,).
    """
    square, hit = (probabilities**2).sum(axis=1), (probabilities * truth).sum(axis=1)
    found: Array = np.maximum(0.0, 0.5 * square - hit + 0.5)  # rounding may leave a hair below
    return found


def crps(probabilities: Array, truth: Array) -> Array:
    """Mean squared distance of the cumulative distributions, in [0, 1]; 0 is perfect, and near misses cost less.

    sum_{k=1..7} (P_k - [y <= k])^2 / 7 (the discrete ranked probability score, Epstein 1969). As :func:`brier`.
    """
    foretold, happened = probabilities.cumsum(axis=1)[:, :-1], truth.cumsum(axis=1)[:, :-1]
    found: Array = (foretold**2 - 2 * foretold * happened + happened).sum(axis=1) / (N_BINS - 1)
    return np.maximum(0.0, found)


def nll(probabilities: Array, truth: Array) -> Array:
    """Negative natural log of the truth's probability, with :data:`NLL_FLOOR`; 0 is perfect. As :func:`brier`."""
    found: Array = -(truth * np.log(np.maximum(probabilities, NLL_FLOOR))).sum(axis=1)
    return np.maximum(0.0, found)


def exact(rows: ForecastRows) -> Array:
    """Probability, 0 or 1 with a hard truth, that the predicted bin is the true one; shape (n,)."""
    return np.take_along_axis(rows.truth, rows.predicted[:, None], axis=1)[:, 0]


def within_one(rows: ForecastRows) -> Array:
    """Probability that the predicted bin is the true one or next to it; shape (n,)."""
    beside = np.abs(np.arange(N_BINS)[None, :] - rows.predicted[:, None]) <= 1
    found: Array = (rows.truth * beside).sum(axis=1)
    return np.minimum(1.0, found)


def log2_error(rows: ForecastRows) -> Array:
    """Distance of the expected log2 speed-up from the measured one, in octaves; shape (n,)."""
    return np.abs(rows.expected_log2 - rows.log2_speedups)


def climatology(rows: ForecastRows) -> Array:
    """The set's own bin frequencies, for every row: the constant forecast that cannot be beaten; shape (n, 8)."""
    frequencies = np.average(rows.truth, axis=0, weights=rows.weights)
    return np.broadcast_to(frequencies, rows.truth.shape)
