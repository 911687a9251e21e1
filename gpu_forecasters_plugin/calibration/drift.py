"""Has a forecaster become miscalibrated? A sequential test within a run.

While forecasts are calibrated, the measured bin of a candidate is drawn from the forecast p itself. Then for
any other forecast q that was fixed before the measurement, the product of q(bin) / p(bin) is a non-negative
martingale of mean 1. The test lets *corrections* of p play against it:

* ``flatter``: the square root of p, normalised: p was overconfident;
* ``uniform``: p knew nothing;
* ``inverted``: ``flatter`` with slow and fast exchanged;
* ``climatology``: the bin frequencies of the pools before, each bin with one row more.

A forecaster may be good for long and break then, so each correction plays from every pool on, with prior
weight 1 / (s (s + 1)) for a start at the s-th. The mean of all these games is the *evidence* E, again of mean
1 at most, and by Ville's inequality it ever reaches 1 / a, in a run of any length, with probability a at
most: the false alarm rate. The k-th alarm of a run has the level a / 2^k, so that there is any false alarm at
all with probability a at most.

All measured rows with a forecast count, not only the random ones: what is measured is chosen for its
forecast, which does not change how a calibrated forecast turns out. Of kernels that fail nothing is foretold,
so they don't count. Underconfident forecasts are not looked for: they cost measurements, not trust.

After an alarm forecasts have *caught up* when, over the last ``WINDOW`` rows since (at least ``LEAST_ROWS``),
no correction would have scored better than they did. That is a rule without a level of its own; when it is
wrong, the next alarm follows.

Sources: Ville 1939; Shafer 2021 (testing by betting); Shin, Ramdas and Rinaldo 2023 (mixtures over change
points).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import N_BINS

__all__ = [
    "CORRECTIONS",
    "LEAST_ROWS",
    "WINDOW",
    "ChangeEvidence",
    "DriftChange",
    "DriftPool",
    "DriftState",
    "DriftTest",
    "log_gains",
]

Array = NDArray[np.float64]

CORRECTIONS = ("flatter", "uniform", "inverted", "climatology")
"""What plays against the forecasts."""

WINDOW = 32
LEAST_ROWS = 16

LEAST_PROBABILITY = 1e-3
"""Smaller ones are scored as this, which only favours the forecasts: no single surprise raises an alarm."""


@dataclass(frozen=True, eq=False)
class DriftPool:
    """Measured rows of one pool.

    Attributes:
        number: number of the pool in its run.
        probabilities: forecasts as they were made; shape (n, 8), each row sums to 1.
        truth: index of the measured bin, from 0; shape (n,).
    """

    number: int
    probabilities: Array
    truth: NDArray[np.intp]


@dataclass(frozen=True)
class DriftChange:
    """An alarm, or its end.

    Attributes:
        pool: number of the pool whose rows decided it.
        miscalibrated: True for an alarm, False where forecasts have caught up.
        log_evidence: natural log of the e-value at the alarm.
        correction: which of :data:`CORRECTIONS` had gained most.
    """

    pool: int
    miscalibrated: bool
    log_evidence: float
    correction: str


@dataclass(frozen=True)
class DriftState:
    """Where the test stands.

    Attributes:
        log_evidence: natural log of the e-value of the test that runs, or of the one that raised the alarm.
        changes: alarms and their ends, in order.
    """

    log_evidence: float = 0.0
    changes: tuple[DriftChange, ...] = ()

    @property
    def miscalibrated(self) -> bool:
        """Whether an alarm was raised and forecasts have not caught up."""
        return bool(self.changes) and self.changes[-1].miscalibrated


def log_gains(probabilities: Array, truth: NDArray[np.intp], climatology: Array) -> Array:
    """What each correction gains on each row: log of q(bin) / p(bin).

    Args:
        probabilities: forecasts; shape (..., n, 8).
        truth: measured bins, from 0; shape (..., n).
        climatology: bin frequencies known before these rows; shape (..., 8).

    Returns:
        Shape (..., n, 4), in the order of :data:`CORRECTIONS`.
    """
    forecast = np.maximum(probabilities, LEAST_PROBABILITY)
    flatter = np.sqrt(forecast)
    flatter /= flatter.sum(axis=-1, keepdims=True)
    uniform = np.full_like(flatter, 1.0 / N_BINS)
    usual = np.broadcast_to(climatology[..., None, :], flatter.shape)
    played = np.stack([flatter, uniform, flatter[..., ::-1], usual], axis=-1)
    at = truth[..., None]
    won = np.take_along_axis(played, at[..., None], axis=-2)[..., 0, :]
    gains: Array = np.log(won) - np.log(np.take_along_axis(forecast, at, axis=-1))
    return gains


class ChangeEvidence:
    """The mixture over corrections and starting pools, pool by pool.

    Works on many runs at once: every array may have the same leading axes.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._pools = 0
        self._logs = np.full((*shape, len(CORRECTIONS)), -math.inf)

    def update(self, gains: Array) -> None:
        """Add a pool.

        Args:
            gains: summed :func:`log_gains` of its rows; shape (..., 4).
        """
        self._pools += 1
        start = -math.log(self._pools * (self._pools + 1))
        self._logs = np.logaddexp(self._logs, start) + gains

    @property
    def log_evidence(self) -> Array:
        """Natural log of the e-value, shape (...); starts that are yet to come hold their stake."""
        waiting = -math.log(self._pools + 1)
        found: Array = np.logaddexp(
            np.logaddexp.reduce(self._logs, axis=-1) - math.log(len(CORRECTIONS)), waiting
        )
        return found

    @property
    def leader(self) -> str:
        """The correction that has gained most (of a single run)."""
        return CORRECTIONS[int(np.argmax(self._logs))]


class DriftTest:
    """The test of one run, pool by pool.

    Args:
        false_alarm_rate: probability in (0, 1) that calibrated forecasts ever raise an alarm.

    Attributes:
        state: where the test stands.
    """

    def __init__(self, false_alarm_rate: float) -> None:
        if not 0.0 < false_alarm_rate < 1.0:
            raise ValueError(f"a false alarm rate lies in (0, 1), got {false_alarm_rate!r}")
        self.state = DriftState()
        self._level = false_alarm_rate / 2
        self._counts = np.ones(N_BINS)
        self._evidence = ChangeEvidence()
        self._recent = np.zeros((0, len(CORRECTIONS)))

    def add(self, pool: DriftPool) -> None:
        """Go on with the next pool, complete: the order of pools must not depend on how measurements turned out."""
        gains = log_gains(pool.probabilities, pool.truth, self._counts / self._counts.sum())
        self._counts += np.bincount(pool.truth, minlength=N_BINS)
        if self.state.miscalibrated:
            self._wait_for_recovery(pool.number, gains)
            return
        self._evidence.update(gains.sum(axis=0))
        log_evidence = float(self._evidence.log_evidence)
        self.state = DriftState(log_evidence, self.state.changes)
        if log_evidence >= -math.log(self._level):
            self._change(pool.number, miscalibrated=True)

    def _wait_for_recovery(self, number: int, gains: Array) -> None:
        self._recent = np.concatenate([self._recent, gains])[-WINDOW:]
        if len(self._recent) >= LEAST_ROWS and (self._recent.sum(axis=0) <= 0.0).all():
            self._change(number, miscalibrated=False)
            self._recent = np.zeros((0, len(CORRECTIONS)))
            self._evidence, self._level = ChangeEvidence(), self._level / 2
            self.state = DriftState(0.0, self.state.changes)

    def _change(self, number: int, *, miscalibrated: bool) -> None:
        evidence = self.state.log_evidence
        change = DriftChange(number, miscalibrated, evidence, self._evidence.leader)
        self.state = DriftState(evidence, (*self.state.changes, change))
