"""A bet that a risk is below a target: evidence that may be looked at at any time.

For one threshold, one target R in (0, 1) and one bet b in (0, 1], the wealth of a gambler who bets on a risk
below R is ::

    K = product over the rows of  1 + b w (R - loss) / (1 - R)  where the row is trusted, else 1

with weight w = min(1, rate / sampling probability), for a ``rate`` fixed beforehand. Each pool's forecasts
were made before its rows were drawn, so the expectation of a pool's factor is at most exp(b rate / (1 - R)
sum over *all* its trusted candidates of (R - loss)): by Hoeffding's comparison of sampling without
replacement to sampling with it (1963), and since 1 + x <= exp(x). So K is never larger than a non-negative
supermartingale that starts at 1 as long as the mean loss of all candidates trusted so far is at least R, and
by Ville's inequality it then exceeds 1 / delta at *any* time with probability delta at most. A mean over
several bets is as good a gambler. Of m thresholds each gets delta / m (a union bound).

What that guarantees, with probability ``confidence_level``, at all times of a run at once: of all the
forecasts of the pools used so far, measured or not, that the threshold trusts and whose kernels run, at most
the share R is wrong. Nothing is assumed of forecaster or candidates: it may learn, they may change. For
forecasts yet to come it is a guarantee as far as they are like those before (exchangeable); the drift test
watches that.

Candidates whose sampling probability is below ``rate`` count less, by the ratio of both. Without it, one row
of a pool that was hardly sampled would weigh more than all others together.

Sources: Geifman and El-Yaniv 2017 (selective risk, union over thresholds); Angelopoulos et al. 2021 (learn
then test); Waudby-Smith and Ramdas 2024 (betting); Howard et al. 2021 (running means).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BETS", "bet_logs", "needed_log_wealth", "row_weight", "wealth"]

Array = NDArray[np.float64]

BETS = (0.15, 0.35, 0.6, 0.85, 1.0)
"""Shares of the wealth that are bet. The best against a true risk r is 1 - r / R; 1 is lost at the first loss."""


def row_weight(probability: ArrayLike, rate: float) -> Array:
    """What a row counts that was drawn with that probability: min(1, rate / probability)."""
    found: Array = np.minimum(1.0, rate / np.asarray(probability, dtype=np.float64))
    return found


def needed_log_wealth(confidence_level: float, thresholds: int) -> float:
    """Log of the wealth from which on a threshold is certified, when so many are tried: ln(m / delta)."""
    if not 0.0 < confidence_level < 1.0:
        raise ValueError(f"a confidence level lies in (0, 1), got {confidence_level!r}")
    return math.log(thresholds / (1.0 - confidence_level))


def bet_logs(loss: ArrayLike, weight: ArrayLike, target_risk: float) -> Array:
    """Log of each bet's factor for trusted rows.

    Args:
        loss: 0 or 1; any shape.
        weight: in [0, 1], same shape.
        target_risk: R, in (0, 1).

    Returns:
        Shape of ``loss`` with one axis more, of length ``len(BETS)``; minus infinity where all is lost.
    """
    if not 0.0 < target_risk < 1.0:
        raise ValueError(f"a target risk lies in (0, 1), got {target_risk!r}")
    gain = np.asarray(weight) * (target_risk - np.asarray(loss, dtype=np.float64)) / (1.0 - target_risk)
    with np.errstate(divide="ignore"):
        # Rounding may leave the factor of a lost bet just below zero.
        logs: Array = np.log(np.maximum(1.0 + gain[..., None] * np.array(BETS), 0.0))
    return logs


def wealth(logs: ArrayLike) -> Array:
    """Log of the mean wealth over the bets.

    Args:
        logs: summed :func:`bet_logs`; the last axis holds the bets.

    Returns:
        The same without that axis.
    """
    found: Array = np.logaddexp.reduce(np.asarray(logs), axis=-1) - math.log(len(BETS))
    return found
