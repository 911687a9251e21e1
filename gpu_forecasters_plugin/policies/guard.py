"""The guard: watches whether forecasts order a pool as the GPU does, and hands slots back to chance if not.

Every pair of measured members of a pool whose speed-ups differ by more than the noise of repeated measurements is
concordant or discordant with the forecasts' expected log2 speed-up (not with the ranking scores, which may hold a
bonus for uncertainty). Pools of which only one candidate was measured are compared two at a time. Evidence decays from
pool to pool. The share of concordant pairs, shrunk towards a prior, is turned into trust: full from ``FULL_TRUST``
upwards, none at a half and below, which is what chance reaches.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from gpu_forecasters_plugin.config import GuardConfig

__all__ = ["FULL_TRUST", "NOISE_LOG2", "PRIOR_SHARE", "trust"]

FULL_TRUST = 0.6
"""Concordance from which on the surrogate keeps all its slots."""

PRIOR_SHARE = 0.55
"""Concordance that a forecaster is credited with before anything is known: half of the trust; the rest is earned."""

NOISE_LOG2 = 0.03
"""Smaller differences in log2 speed-up are noise: twice the median difference of repeated measurements."""

_NOTHING = 1e-9


@lru_cache(maxsize=4096)
def _pool_pairs(scored: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """Concordant and discordant pairs of (expected, measured) log2 speed-up; equal forecasts count half each."""
    by_truth = sorted(scored, key=lambda pair: pair[1])
    slower: list[float] = []  # scores of those that are slower beyond the noise, sorted
    concordant = discordant = 0.0
    for score, truth in by_truth:
        while truth - by_truth[len(slower)][1] > NOISE_LOG2:
            insort(slower, by_truth[len(slower)][0])
        below, up_to = bisect_left(slower, score), bisect_right(slower, score)
        concordant += (below + up_to) / 2
        discordant += len(slower) - (below + up_to) / 2
    return concordant, discordant


def trust(pools: Iterable[Sequence[tuple[float, float]]], config: GuardConfig) -> float:
    """Share of its slots that the surrogate keeps, in [0, 1].

    Args:
        pools: per pool, oldest first, the (expected, measured) log2 speed-up over the reference of its measured members
            that had a forecast. A pool with one such member is compared with the next.
        config: decay and prior.
    """
    if not config.enabled:
        return 1.0
    # Older ones have decayed to nothing.
    remembered = None if config.decay == 1.0 else math.ceil(math.log(_NOTHING) / math.log(config.decay))
    concordant = discordant = 0.0
    for scored in deque(_comparable(pools), remembered):
        more, less = _pool_pairs(tuple(scored))
        # A pool of m members has m(m-1)/2 dependent pairs but only about m - 1 independent facts.
        weight = 2.0 / max(2, len(scored))
        concordant = config.decay * concordant + weight * more
        discordant = config.decay * discordant + weight * less
    share = (concordant + PRIOR_SHARE * config.prior_pairs) / (concordant + discordant + config.prior_pairs)
    return min(1.0, max(0.0, (share - 0.5) / (FULL_TRUST - 0.5)))


def _comparable(pools: Iterable[Sequence[tuple[float, float]]]) -> Iterator[Sequence[tuple[float, float]]]:
    """Pools of two members and more, those of one put together."""
    alone: Sequence[tuple[float, float]] = ()
    for pool in pools:
        scored = (*alone, *pool) if alone else pool
        if len(scored) < 2:
            alone = scored
        else:
            yield scored
            alone = ()
