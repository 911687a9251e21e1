"""From a belief about log2 speed-up to eight probabilities."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import N_BINS

__all__ = ["student_bin_masses"]

Array = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def student_bin_masses(mean: Array, scale: Array, freedom: float, edges: Array, floor: float) -> Array:
    """Bin masses of Student-t beliefs.

    The t distribution function is Wallace's normal approximation, good to about 0.001 from five degrees of
    freedom on, which is far below what a forecast can know.

    Args:
        mean: centres, in the units of the edges.
        scale: scales, positive.
        freedom: degrees of freedom.
        edges: the seven inner edges of the bins, ascending, one row per belief.
        floor: share of the mass that is spread evenly, so that no surprise is infinite.

    Returns:
        One row of eight probabilities per belief.
    """
    t = (edges - mean[:, None]) / np.maximum(scale, 1e-6)[:, None]
    factor = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0)
    z = np.sign(t) * factor * np.sqrt(freedom * np.log1p(np.minimum(t * t, 1e12) / freedom))
    below = 0.5 * (1.0 + _erf(z / math.sqrt(2.0)))
    rows = len(mean)
    cumulative = np.hstack([np.zeros((rows, 1)), below, np.ones((rows, 1))])
    masses: Array = (1.0 - floor) * np.clip(np.diff(cumulative, axis=1), 0.0, 1.0) + floor / N_BINS
    return masses
