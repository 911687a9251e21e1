"""Maps that mend a forecaster's probabilities, fitted by log loss on what was measured.

Two maps, both shrunk to doing nothing: a *temperature*, p(b)^(1/T) normalised, for one that is too sure or not sure
enough; and on top of it a *bin map*, an 8x8 matrix that says how often what is called bin b turns out to be which bin,
for one that is off to a side. Rows of the matrix are shrunk to a shift that is the same for all bins, since a run
measures too little to learn 56 numbers, and the shift to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecasters.stacking import FLOOR, fit_weights, log_pool

__all__ = ["VERSIONS", "Recalibration", "fit_recalibration"]

Array = NDArray[np.float64]

VERSIONS = ("identity", "temperature", "bin_map")
"""In the order of :meth:`Recalibration.versions`."""

_TEMPERATURE_ROWS = 8.0
_SHIFT_ROWS = 4.0
_MAP_ROWS = 16.0
"""How many measurements it takes to overrule what each is shrunk to."""

_SHIFTS = (-2, -1, 0, 1, 2)
_SWEEPS = 40
_START = 0.5


def _shift(places: int) -> Array:
    """The bin map that moves everything by some bins; what would leave the scale stays at its end."""
    matrix = np.zeros((N_BINS, N_BINS))
    matrix[np.arange(N_BINS), np.clip(np.arange(N_BINS) + places, 0, N_BINS - 1)] = 1.0
    return matrix


_SHIFT_MAPS = np.stack([_shift(places) for places in _SHIFTS])
_NO_SHIFT = np.array([float(places == 0) for places in _SHIFTS])


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A fitted pair of maps; without arguments they do nothing.

    Attributes:
        exponent: 1 / temperature.
        bin_map: row b holds the probabilities of what is called bin b, shape (8, 8).
    """

    exponent: float = 1.0
    bin_map: Array = field(default_factory=lambda: np.eye(N_BINS))

    def versions(self, probabilities: Array) -> Array:
        """The forecasts as they are, at the temperature, and at the temperature through the bin map.

        Args:
            probabilities: shape (rows, bins).

        Returns:
            Shape (versions, rows, bins); see :data:`VERSIONS`.
        """
        tempered = _tempered(probabilities, self.exponent)
        return np.stack([probabilities, tempered, tempered @ self.bin_map])


def _logs(probabilities: Array) -> Array:
    # A zero is a rounded small number; taken at its word, no map could undo it.
    return np.log(np.maximum(probabilities, FLOOR))


def _tempered(probabilities: Array, exponent: float) -> Array:
    return log_pool(_logs(probabilities)[:, None, :], np.array([exponent]))


def fit_recalibration(probabilities: Array, truth: NDArray[np.intp]) -> Recalibration:
    """The maps that a forecaster's record asks for.

    Args:
        probabilities: forecasts made before measuring, shape (rows, bins).
        truth: measured bin of each row, from 0.
    """
    if not len(truth):
        return Recalibration()
    weight = np.ones(len(truth))
    logs = _logs(probabilities)[:, None, :]
    exponent = float(fit_weights(logs, truth, weight, np.ones(1), _TEMPERATURE_ROWS)[0])
    return Recalibration(exponent, _fit_bin_map(_tempered(probabilities, exponent), truth))


def _fit_bin_map(probabilities: Array, truth: NDArray[np.intp]) -> Array:
    """Maximum a posteriori by expectation maximisation; the likelihood is concave, so there is one answer."""
    # Of each row, how likely each shift made what was measured.
    likelihoods = np.stack([(probabilities @ shift)[np.arange(len(truth)), truth] for shift in _SHIFT_MAPS])
    shares = _START * _NO_SHIFT + (1.0 - _START) / len(_SHIFTS)
    for _ in range(_SWEEPS):
        joint = likelihoods * shares[:, None]
        counts = (joint / joint.sum(axis=0)).sum(axis=1)
        shares = (counts + _SHIFT_ROWS * _NO_SHIFT) / (len(truth) + _SHIFT_ROWS)
    common = np.tensordot(shares, _SHIFT_MAPS, axes=1)
    measured = np.eye(N_BINS)[truth]
    matrix = _START * common + (1.0 - _START) / N_BINS
    for _ in range(_SWEEPS):
        joint = probabilities * matrix[:, truth].T
        table = (joint / joint.sum(axis=1, keepdims=True)).T @ measured
        matrix = (table + _MAP_ROWS * common) / (table.sum(axis=1, keepdims=True) + _MAP_ROWS)
    return matrix
