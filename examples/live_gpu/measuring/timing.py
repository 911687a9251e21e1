"""How long a kernel takes: with CUDA events on a GPU, by the wall clock elsewhere."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Timing", "time_on_gpu", "time_on_wall"]

REPEATS = 30
BATCH = 10
WARM_UP = 5
FLUSH_BYTES = 256 << 20
SLOW_MS = 50.0

_CYCLES_PER_MS = 1_800_000
_MIN_LEAD_MS, _MAX_LEAD_MS = 1.0, 24.0
_LONGEST_TRIES = 5
"""Batches behind the longest idle period in which the GPU may catch up with the host before it counts."""

Call = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Timing:
    """Time of one call.

    Attributes:
        median_us: median of the repeated calls, in microseconds.
        spread: their median absolute deviation times 1.4826, relative to the median.
        outputs: what the last call returned.
        host_behind: a call was queued too late for its time to be the GPU's alone.
    """

    median_us: float
    spread: float
    outputs: tuple[Any, ...]
    host_behind: bool = False


def _timing(times_ms: list[float], outputs: tuple[Any, ...], host_behind: bool = False) -> Timing:
    median = statistics.median(times_ms)
    spread = 1.4826 * statistics.median(abs(value - median) for value in times_ms) / median
    return Timing(1000 * median, spread, outputs, host_behind)


def time_on_wall(call: Call) -> Timing:
    """By the wall clock: for tries without a GPU, where nothing can be said about speed."""
    times = []
    outputs: tuple[Any, ...] = ()
    for _ in range(3):
        started = time.perf_counter()
        outputs = call()
        times.append(1000 * (time.perf_counter() - started))
    return _timing(times, outputs)


def time_on_gpu(call: Call, flush: Any) -> Timing:
    """With CUDA events around each call, and a cold L2: ``flush``, larger than L2, is written before each.

    The calls are queued in batches behind an idle period, so that the host runs ahead of the GPU, and gaps between
    launches are no part of the time. A batch in which the GPU caught up with the host is taken again behind a longer
    period, a few times behind the longest; after that it counts, and ``host_behind`` says so (a kernel that itself
    waits for the GPU never runs ahead).
    """
    first = _batch(call, 2, flush, 0.0)
    slow = min(first.times_ms) > SLOW_MS
    warm = first if slow else _batch(call, WARM_UP, flush, 0.0)
    lead_ms = max(_MIN_LEAD_MS, 2 * BATCH * warm.host_ms / len(warm.times_ms))
    tries = 0 if slow else _LONGEST_TRIES
    times: list[float] = []
    behind = False
    gc.disable()
    try:
        while len(times) < (BATCH if slow else REPEATS):
            batch = _batch(call, BATCH, flush, min(lead_ms, _MAX_LEAD_MS))
            if not batch.ahead and tries:
                tries -= lead_ms >= _MAX_LEAD_MS
                lead_ms *= 2
                continue
            behind |= not batch.ahead
            times += batch.times_ms
    finally:
        gc.enable()
    return _timing(times, batch.outputs, behind)


@dataclass(frozen=True)
class _Batch:
    times_ms: list[float]
    outputs: tuple[Any, ...]
    host_ms: float
    ahead: bool


def _batch(call: Call, count: int, flush: Any, lead_ms: float) -> _Batch:
    """Calls that are queued together; ``ahead`` if the last was queued before the idle period had ended."""
    import torch

    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    begun = torch.cuda.Event()
    outputs: tuple[Any, ...] = ()
    started = time.perf_counter()
    torch.cuda._sleep(int(lead_ms * _CYCLES_PER_MS))
    begun.record()
    for start, end in events:
        flush.zero_()
        start.record()
        outputs = call()
        end.record()
    ahead = not begun.query()
    host_ms = 1000 * (time.perf_counter() - started)
    torch.cuda.synchronize()
    return _Batch([start.elapsed_time(end) for start, end in events], outputs, host_ms, ahead)
