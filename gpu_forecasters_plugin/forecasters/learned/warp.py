"""Monotone transforms of log2 speed-up that fold the slow tail in.

Kernels crowd below a ceiling (the memory's bandwidth, say) and straggle far behind it: one program per row in a
Python loop is thirty times slower, and how much slower hardly matters. A symmetric noise model would spend its
variance on the stragglers; folding them in lets the data say, by marginal likelihood, how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["WARPS", "Warp"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Warp:
    """The identity above a knee, a gentler slope below it.

    Attributes:
        knee: in log2 speed-up over the reference; minus infinity for the identity everywhere.
        slope: derivative below the knee, in (0, 1].
    """

    knee: float = -math.inf
    slope: float = 1.0

    def forward(self, values: Array) -> Array:
        """Warped values."""
        if math.isinf(self.knee):
            return values
        warped: Array = np.where(values > self.knee, values, self.knee + self.slope * (values - self.knee))
        return warped

    def log_jacobian(self, values: Array) -> float:
        """What the transform adds to the log likelihood of these values."""
        return float((values <= self.knee).sum()) * math.log(self.slope)


WARPS = (Warp(), Warp(-1.5, 0.35), Warp(-0.5, 0.35))
"""The transforms that the learned forecaster averages over."""
