"""Forecasts as good as a language model's, made from recorded times: what would a filter be worth with one?

"GPU Forecasters" (arXiv 2605.31464) reports models that name the right bin for about a third of the kernels, and one
that is at most one off for three quarters. An imitated forecast is the measured place on the scale of bins, moved by an
error. Errors of kernels that an edit connects are alike, since a model that misjudges a kernel misjudges its kin. Some
kernels are harder than others, and the forecast knows which: its probabilities are those of the errors that it makes.
What a kernel that fails would be worth nobody knows; it is forecast as the nearest one that runs.

From these a useless forecaster is made, which says the same of the wrong kernels, and an inverted one, which calls fast
what is slow.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["EXACT", "WITHIN_ONE", "imitated", "inverted", "useless"]

EXACT = 0.35
"""Share of the kernels that run whose bin is named right."""

WITHIN_ONE = 0.75
"""Share of them whose bin is at most one off."""

_KINSHIP = 0.8
"""Share of the errors' variance that spreads along edits; the rest is a kernel's own."""
_SMOOTHNESS = 30.0
_HARDNESS_SD = 0.5
"""Of the log width of errors, over kernels."""
_LEAST = 1e-6
"""Smallest probability, before normalising: what is said may lie far beyond the scale."""
_SCALES, _TAILS = np.geomspace(0.02, 5.0, 24), np.linspace(0.5, 3.0, 9)
_FINER_SCALES, _FINER_TAILS = np.geomspace(0.78, 1.28, 15), np.linspace(0.8, 1.25, 7)
"""Where settings of the errors are looked for: first anywhere, then about the best of these, as factors."""

Array = NDArray[np.float64]
Table = dict[str, tuple[float, ...]]
"""Eight probabilities by candidate key."""


@dataclass(frozen=True, eq=False)
class _Kernels:
    """A pool's kernels, in the order of its file.

    Attributes:
        keys: their identities.
        place: measured place on the scale of bins, 0 to 8: bin b is from b - 1 to b.
        ran: whether it is the kernel's own.
        kinship: Cholesky factor of the correlation of their errors, as far as edits make it.
    """

    keys: tuple[str, ...]
    place: Array
    ran: NDArray[np.bool_]
    kinship: Array


@lru_cache(maxsize=2)
def _kernels(pool: RecordedPool) -> _Kernels:
    names = list(pool.candidates)
    # Open ends are two octaves deep; what lies further out is told apart no more.
    edges = (BINS.log2_edges[0] - 2.0, *BINS.log2_edges, BINS.log2_edges[-1] + 2.0)
    sources = [_nearest_that_ran(pool, name) for name in names]
    log2 = [math.log2(pool.speedup(name) or 1.0) for name in sources]
    return _Kernels(
        tuple(pool.candidates[name].key for name in names),
        np.interp(log2, edges, np.arange(N_BINS + 1)),
        np.array([pool.speedup(name) is not None for name in names]),
        np.asarray(np.linalg.cholesky(_correlation(pool, names)), dtype=np.float64),
    )


def _nearest_that_ran(pool: RecordedPool, name: str) -> str:
    """By edits; the reference where no edit leads to one."""
    seen, waiting = {name}, deque([name])
    while waiting:
        here = waiting.popleft()
        if pool.speedup(here) is not None:
            return here
        waiting.extend(other for other in pool.neighbours(here) if other not in seen)
        seen.update(pool.neighbours(here))
    return pool.reference_id


def _correlation(pool: RecordedPool, names: list[str]) -> Array:
    """Regularised Laplacian kernel of the graph of edits (Smola and Kondor 2003), scaled to a diagonal of ones."""
    place = {name: index for index, name in enumerate(names)}
    adjacent = np.zeros((len(names), len(names)))
    for name, others in ((name, pool.neighbours(name)) for name in names):
        adjacent[place[name], [place[other] for other in others]] = 1.0
    degree = np.maximum(adjacent.sum(axis=1), 1.0)
    laplacian = np.eye(len(names)) - adjacent / np.sqrt(np.outer(degree, degree))
    kernel = np.linalg.inv(np.eye(len(names)) + _SMOOTHNESS * laplacian)
    spread = np.sqrt(np.diag(kernel))
    scaled: Array = kernel / np.outer(spread, spread) + 1e-9 * np.eye(len(names))
    return scaled


def _chance(pool: RecordedPool, draw: int, what: int) -> np.random.Generator:
    return np.random.default_rng([draw, what, zlib.crc32(pool.task.encode())])


def _errors(kernels: _Kernels, chance: np.random.Generator) -> Array:
    """Standard logistic errors, alike for kernels that edits connect."""
    common = kernels.kinship @ chance.standard_normal(len(kernels.keys))
    own = chance.standard_normal(len(kernels.keys))
    normal = math.sqrt(_KINSHIP) * common + math.sqrt(1.0 - _KINSHIP) * own
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in normal])
    below = np.clip(below, 1e-9, 1.0 - 1e-9)
    logistic: Array = np.log(below / (1.0 - below))
    return logistic


def _masses(said: Array, width: Array, tail: float) -> Array:
    """Probability of each bin given the place that is said: errors are symmetric, and every place was as likely."""
    off = said[:, None] - np.arange(N_BINS + 1)[None, :]
    size = np.minimum((np.abs(off) / width[:, None]) ** (1.0 / tail), 50.0)
    above = 1.0 / (1.0 + np.exp(-np.sign(off) * size))
    masses = -np.diff(above, axis=1) + _LEAST
    normalised: Array = masses / masses.sum(axis=1, keepdims=True)
    return normalised


def _shares(masses: Array, truth: NDArray[np.intp]) -> tuple[float, float]:
    """Of bins that are right, and of bins at most one off."""
    off = np.abs(masses.argmax(axis=1) - truth)
    return float((off == 0).mean()), float((off <= 1).mean())


@lru_cache(maxsize=64)
def imitated(pool: RecordedPool, draw: int) -> Table:
    """Forecasts relative to the reference by candidate key: :data:`EXACT` right, :data:`WITHIN_ONE` at most one off.

    Both shares are met as nearly as the number of kernels allows.

    Args:
        pool: the recorded task.
        draw: number of the draw; each has errors of its own.
    """
    kernels, chance = _kernels(pool), _chance(pool, draw, 0)
    errors = _errors(kernels, chance)
    hardness = np.exp(_HARDNESS_SD * chance.standard_normal(len(errors)))
    truth = np.clip(np.ceil(kernels.place[kernels.ran]) - 1, 0, N_BINS - 1).astype(np.intp)

    def forecasts(scale: float, tail: float) -> Array:
        error = scale * hardness * np.sign(errors) * np.abs(errors) ** tail
        return _masses(kernels.place + error, scale * hardness, tail)

    def miss(setting: tuple[float, float]) -> float:
        exact, within_one = _shares(forecasts(*setting)[kernels.ran], truth)
        return abs(exact - EXACT) + abs(within_one - WITHIN_ONE)

    scale, tail = min(itertools.product(_SCALES, _TAILS), key=miss)
    finer = itertools.product(scale * _FINER_SCALES, tail * _FINER_TAILS)
    masses = forecasts(*min(finer, key=miss))
    return {key: tuple(map(float, row)) for key, row in zip(kernels.keys, masses, strict=True)}


def useless(pool: RecordedPool, draw: int) -> Table:
    """The imitated forecasts dealt out at random: the right frequencies, and no information."""
    table = imitated(pool, draw)
    keys = list(table)
    dealt = _chance(pool, draw, 1).permutation(len(keys))
    return {key: table[keys[place]] for key, place in zip(keys, dealt, strict=True)}


def inverted(pool: RecordedPool, draw: int) -> Table:
    """The mirror images of the imitated forecasts."""
    return {key: probabilities[::-1] for key, probabilities in imitated(pool, draw).items()}
