"""How long a call takes on a GPU, whatever the host does meanwhile."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REPEATS = 30
REPEATS_SLOW = 10
SLOW_MS = 5.0
WARM_UP = 5
BATCH = 10
BATCH_MS = 300.0
SMALLEST_BATCH = 3
MIN_LEAD_MS = 1.0
MAX_LEAD_MS = 24.0
LOST_RACES = 2
CYCLES_PER_MS = 1_800_000
FLUSH_BYTES = 256 << 20
METHOD = (
    f"CUDA events around each call; {FLUSH_BYTES >> 20} MiB written before each call, so that L2 is cold; calls in "
    f"batches of {BATCH} behind an idle period, so that the host runs ahead of the GPU; a batch in which the GPU "
    f"caught up with the host is taken again behind a period twice as long, until {MAX_LEAD_MS:.0f} ms have been too "
    f"short {LOST_RACES} times, after which it counts (a kernel that itself waits for the GPU is never ahead); median "
    f"of {REPEATS} calls after a warm-up, of {REPEATS_SLOW} where a call takes over {SLOW_MS:.0f} ms, of fewer where "
    f"these take over {BATCH_MS:.0f} ms"
)

Call = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Timing:
    """What a series of timed calls gave.

    Attributes:
        median_us: In microseconds.
        spread: The median absolute deviation, scaled to a normal distribution's standard deviation, over the median.
        repeats: Calls that were timed.
        fastest_us: The fastest of them.
        host_behind: The GPU may have waited for the host between two events.
    """

    median_us: float
    spread: float
    repeats: int
    fastest_us: float
    host_behind: bool


@dataclass(frozen=True)
class _Batch:
    """Calls that were queued together: their times on the GPU, the last outputs, and how the host fared."""

    times_ms: list[float]
    outputs: tuple[Any, ...]
    host_ms: float
    ahead: bool


def time_calls(
    call: Call, flush: Any, *, hopeless: bool, before: Callable[[], None]
) -> tuple[Timing, tuple[Any, ...]]:
    """Times a call, and returns the outputs of the last one as well.

    Args:
        call: What is timed; it has been called before.
        flush: A tensor larger than the L2 cache.
        hopeless: The host was always behind at another shape: no time is spent on trying to be ahead.
        before: Called between the warm-up and the calls that are timed.
    """
    first = _timed_batch(call, 2, flush, 0.0)
    fastest_ms = min(first.times_ms)
    slow = fastest_ms > SLOW_MS
    warm = first if slow else _timed_batch(call, WARM_UP, flush, 0.0)
    lead_ms = max(MIN_LEAD_MS, 2 * BATCH * warm.host_ms / len(warm.times_ms))
    count = BATCH if fastest_ms * BATCH <= BATCH_MS else max(SMALLEST_BATCH, int(BATCH_MS / fastest_ms))
    gc.disable()
    try:
        before()
        times, outputs, behind = _timed_series(
            call,
            min(count, REPEATS_SLOW) if slow else REPEATS,
            count,
            flush,
            lead_ms,
            patient=not (slow or hopeless),
        )
    finally:
        gc.enable()
    median = statistics.median(times)
    spread = 1.4826 * statistics.median(abs(value - median) for value in times) / median
    return Timing(1000 * median, spread, len(times), 1000 * min(times), behind), outputs


def _timed_series(
    call: Call, repeats: int, count: int, flush: Any, lead_ms: float, *, patient: bool
) -> tuple[list[float], tuple[Any, ...], bool]:
    """Times `repeats` calls in batches of `count`; if `patient`, one in which the host fell behind is taken again.

    Returns the times in milliseconds, the last outputs, and whether the host fell behind in a batch that counts.
    """
    times: list[float] = []
    outputs: tuple[Any, ...] = ()
    behind = False
    lost = 0 if patient else LOST_RACES
    while len(times) < repeats:
        lead_ms = min(lead_ms, MAX_LEAD_MS)
        batch = _timed_batch(call, count, flush, lead_ms)
        outputs = batch.outputs
        if not batch.ahead and lost < LOST_RACES:
            lost += lead_ms >= MAX_LEAD_MS
            lead_ms *= 2
            continue
        behind |= not batch.ahead
        times += batch.times_ms
    return times, outputs, behind


def _timed_batch(call: Call, count: int, flush: Any, lead_ms: float) -> _Batch:
    """Queues `count` calls behind an idle period of `lead_ms` and times each on the GPU.

    The batch is `ahead` if the last call was queued before the idle period ended: no time between two events can then
    be time in which the GPU waited for the host.
    """
    import torch

    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
    ]
    begun = torch.cuda.Event()
    outputs: tuple[Any, ...] = ()
    start_of_host = time.perf_counter()
    torch.cuda._sleep(int(lead_ms * CYCLES_PER_MS))
    begun.record()
    for start, end in events:
        flush.zero_()
        start.record()
        outputs = call()
        end.record()
    ahead = not begun.query()
    host_ms = 1000 * (time.perf_counter() - start_of_host)
    torch.cuda.synchronize()
    return _Batch([start.elapsed_time(end) for start, end in events], outputs, host_ms, ahead)
