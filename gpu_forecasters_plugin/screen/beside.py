"""Profiles beside each other: a line per property, in few words, for prompts and pages.

Nothing in it is text of a candidate's: numbers, and words of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.screen.profile import InstructionMix, LaunchProfile, SourceProfile

__all__ = ["PROPERTY_NAMES", "Property", "properties_beside"]

_UNKNOWN = "?"
_LIMITS = ("registers", "shared memory", "warps", "blocks")


@dataclass(frozen=True)
class Property:
    """One property of several sources.

    Attributes:
        name: what it is, with its unit.
        values: of each source, as text; ``?`` where it is not known.
    """

    name: str
    values: tuple[str, ...]


def properties_beside(profiles: Sequence[SourceProfile | None]) -> list[Property]:
    """What the compiler made of several sources; properties that are zero or unknown in all of them are left out.

    Where the launches of a source differ, the smallest and the largest value are given.
    """
    found = [
        Property(name, tuple(_UNKNOWN if profile is None else say(profile) for profile in profiles))
        for name, say in _PROPERTIES.items()
    ]
    return [line for line in found if not set(line.values) <= {"0", _UNKNOWN}]


def _range(values: Iterable[float | None], write: Callable[[float], str]) -> str:
    """The smallest to the largest, once where they read the same."""
    known = [value for value in values if value is not None]
    if not known:
        return _UNKNOWN
    low, high = write(min(known)), write(max(known))
    return low if low == high else f"{low} to {high}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _of_launches(
    take: Callable[[LaunchProfile], float | None], write: Callable[[float], str] = _whole
) -> Callable[[SourceProfile], str]:
    return lambda profile: _range((take(launch) for launch in profile.launches), write)


def _of_instructions(take: Callable[[InstructionMix], int]) -> Callable[[SourceProfile], str]:
    """Summed over the distinct kernels, each counted once however often it is launched."""

    def say(profile: SourceProfile) -> str:
        mixes = {
            (x.kernel, x.registers, x.shared_bytes): x.instructions
            for x in profile.launches
            if x.instructions
        }
        return str(sum(map(take, mixes.values()))) if mixes else _UNKNOWN

    return say


def _widths(take: Callable[[InstructionMix], Iterable[str]]) -> Callable[[SourceProfile], str]:
    def say(profile: SourceProfile) -> str:
        mixes = [launch.instructions for launch in profile.launches if launch.instructions]
        return _range((int(width) for mix in mixes for width in take(mix)), _whole)

    return say


def _limits(profile: SourceProfile) -> str:
    seen = {launch.limited_by for launch in profile.launches}
    return ", ".join(name for name in _LIMITS if name in seen) or _UNKNOWN


def _microseconds(value: float | None) -> str:
    return _UNKNOWN if value is None else _short(value)


_PROPERTIES: dict[str, Callable[[SourceProfile], str]] = {
    "kernel launches": lambda profile: str(profile.launch_count),
    "library calls": lambda profile: str(profile.library_count),
    "registers per thread": _of_launches(lambda x: x.registers),
    "spilled bytes per thread": _of_launches(lambda x: x.spill_bytes),
    "shared memory per block, KiB": _of_launches(lambda x: x.shared_bytes / 1024, _short),
    "threads per block": _of_launches(lambda x: x.threads),
    "occupancy": _of_launches(lambda x: x.occupancy, _percent),
    "occupancy limited by": _limits,
    "waves of blocks": _of_launches(lambda x: x.waves, _short),
    "global loads, bits per thread": _widths(lambda mix: mix.global_loads),
    "global stores, bits per thread": _widths(lambda mix: mix.global_stores),
    "asynchronous copies": _of_instructions(lambda mix: mix.async_copies),
    "tensor-core instructions": _of_instructions(lambda mix: mix.tensor_core),
    "special functions": _of_instructions(lambda mix: mix.special_functions),
    "barriers": _of_instructions(lambda mix: mix.barriers),
    "atomics": _of_instructions(lambda mix: mix.atomics),
    "bytes of arguments, MB": lambda profile: _short(profile.moved_bytes / 1e6),
    "lower bound of the time, us": lambda profile: _microseconds(profile.roofline_us),
    "estimate of the time, us": lambda profile: _microseconds(profile.estimated_us),
    "dry run went through": lambda profile: "yes" if profile.complete else "in part",
}

PROPERTY_NAMES = tuple(_PROPERTIES)
"""Names of all properties, in order."""
