"""Weights of a log-linear pool of experts, from how well each foretold this run's own measurements.

The pool is p(b) proportional to prod_e p_e(b)^a_e with a_e >= 0. The weights maximise

    sum_i w_i log p_i(y_i) - (rows / 2) sum_e (a_e - prior_e)^2,

which is concave, so there is one answer and no starting point to choose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOOR", "fit_weights", "log_pool"]

Array = NDArray[np.float64]

FLOOR = 1e-4
"""Probabilities enter a pool no smaller than this: one expert's zero must not be a veto."""

_SWEEPS = 60
_TOLERANCE = 1e-6
_LARGEST = 3.0


def log_pool(logs: Array, weights: Array) -> Array:
    """Pooled probabilities.

    Args:
        logs: log probabilities, shape (rows, experts, bins).
        weights: one exponent per expert, or one per row and expert.

    Returns:
        Probabilities, shape (rows, bins).
    """
    mixed = (logs * weights[..., :, None]).sum(axis=1)
    mixed = np.exp(mixed - mixed.max(axis=1, keepdims=True))
    pooled: Array = mixed / mixed.sum(axis=1, keepdims=True)
    return pooled


def fit_weights(logs: Array, truth: NDArray[np.intp], rows: Array, prior: Array, prior_rows: float) -> Array:
    """Maximum a posteriori weights by coordinate-wise Newton steps.

    Args:
        logs: log probabilities of forecasts made before measuring, shape (rows, experts, bins); zeros where
            an expert was silent.
        truth: measured bin of each row, from 0.
        rows: importance of each row.
        prior: weights to start from.
        prior_rows: how strongly; about how many measurements it takes to overrule them.

    Returns:
        One weight in [0, 3] per expert.
    """
    weights = prior.copy()
    if not len(truth):
        return weights
    hit = np.take_along_axis(logs, truth[:, None, None], axis=2)[:, :, 0]
    for _ in range(_SWEEPS):
        before = weights.copy()
        for expert in range(len(weights)):
            pooled = log_pool(logs, weights)
            own = logs[:, expert, :]
            mean = (pooled * own).sum(axis=1)
            variance = (pooled * own**2).sum(axis=1) - mean**2
            gradient = float(rows @ (hit[:, expert] - mean)) - prior_rows * (weights[expert] - prior[expert])
            curvature = float(rows @ variance) + prior_rows
            # Half an octave per step at most: far from the optimum the curvature says too little.
            step = min(0.5, max(-0.5, gradient / curvature))
            weights[expert] = min(_LARGEST, max(0.0, weights[expert] + step))
        if float(np.abs(weights - before).max()) < _TOLERANCE:
            break
    return weights
