"""Numbers that a static profile yields: what the compiler made of a candidate, for the learned forecaster.

All are logarithms or shares, so that a change means the same for small and large kernels. They are taken over the
launches of a call; where one number has to stand for several kernels, it is that of the kernel that matters most: the
most registers, the largest share of spills, the mean occupancy by the time that each kernel is estimated to take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.screen.profile import InstructionMix, LaunchProfile, SourceProfile

__all__ = ["PROFILE_NAMES", "profile_features"]

_MIX: dict[str, Callable[[InstructionMix], int]] = {
    "instructions": lambda mix: mix.total,
    "loads": lambda mix: sum(mix.global_loads.values()),
    "stores": lambda mix: sum(mix.global_stores.values()),
    "shared_accesses": lambda mix: mix.shared,
    "spill_accesses": lambda mix: mix.local,
    "async_copies": lambda mix: mix.async_copies,
    "tensor_core": lambda mix: mix.tensor_core,
    "floating_point": lambda mix: mix.floating_point,
    "special_functions": lambda mix: mix.special_functions,
    "conversions": lambda mix: mix.conversions,
    "shuffles": lambda mix: mix.shuffles,
    "barriers": lambda mix: mix.barriers,
    "atomics": lambda mix: mix.atomics,
    "branches": lambda mix: mix.branches,
}
_TIMES = ("estimated", "bound", "library")
_LAUNCH = (
    "moved",
    "launches",
    "library_calls",
    "registers",
    "spills",
    "shared",
    "threads",
    "blocks",
    "waves",
)
_SHARES = ("occupancy", "load_width", "store_width", "out_of_sight", "incomplete")
PROFILE_NAMES: tuple[str, ...] = (*_TIMES, *_LAUNCH, *_SHARES, *_MIX)
"""Names of the features, in their order."""

_NO_TIME_US = 1.0
_KIB = 1024.0


def profile_features(profile: SourceProfile | None) -> NDArray[np.float64] | None:
    """One number per entry of :data:`PROFILE_NAMES`; ``None`` where nothing was compiled and nothing was called.

    A time that is not known (``estimated``) is ``nan``: it counts as average.
    """
    if profile is None or not (profile.launches or profile.library):
        return None
    launches = profile.launches
    mixes = [(launch, launch.instructions) for launch in launches if launch.instructions is not None]
    numbers = [
        _log2(profile.estimated_us),
        _log2(profile.roofline_us),
        math.log2(1.0 + sum(call.bytes for call in profile.library) / _KIB),
        math.log2(1.0 + profile.moved_bytes / _KIB),
        math.log2(1.0 + profile.launch_count),
        math.log2(1.0 + profile.library_count),
        math.log2(1.0 + profile.registers),
        math.log2(1.0 + profile.spill_bytes),
        math.log2(1.0 + max((launch.shared_bytes for launch in launches), default=0) / _KIB),
        math.log2(1.0 + max((launch.threads or 0 for launch in launches), default=0)),
        math.log2(1.0 + max((math.prod(launch.grid or (0,)) for launch in launches), default=0)),
        math.log2(1.0 + max((launch.waves or 0.0 for launch in launches), default=0.0)),
        _mean(launch.occupancy for launch in launches),
        _width(mix.global_loads for _, mix in mixes),
        _width(mix.global_stores for _, mix in mixes),
        float(any(launch.grid is None for launch in launches)),
        float(not profile.complete),
        *(_most(launches, count) for count in _MIX.values()),
    ]
    return np.array(numbers)


def _log2(time_us: float | None) -> float:
    return math.nan if time_us is None else math.log2(max(time_us, _NO_TIME_US))


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0


def _width(mixes: Iterable[object]) -> float:
    """Mean log2 of bits per access; 0 without accesses."""
    total = accesses = 0.0
    for mix in mixes:
        assert isinstance(mix, dict)
        for bits, count in mix.items():
            total += count * math.log2(max(int(bits), 1))
            accesses += count
    return total / accesses if accesses else 0.0


def _most(launches: Iterable[LaunchProfile], count: Callable[[InstructionMix], int]) -> float:
    """log2(1 + the most instructions of a kind that a kernel has)."""
    return math.log2(
        1.0 + max((count(x.instructions) for x in launches if x.instructions is not None), default=0)
    )
