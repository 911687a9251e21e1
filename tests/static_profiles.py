"""Static profiles for tests: made by hand, completed like those that a compiler made."""

from __future__ import annotations

from typing import Any

from gpu_forecasters_plugin.screen.completing import completed
from gpu_forecasters_plugin.screen.profile import InstructionMix, LaunchProfile, LibraryCall, SourceProfile

H100 = "NVIDIA H100 80GB HBM3"
MIB = 1 << 20


def launch(**changed: Any) -> LaunchProfile:
    """A kernel that moves 64 MiB with 16-byte loads, a pass in all."""
    given: dict[str, Any] = {
        "kernel": "k",
        "language": "triton",
        "count": 1,
        "grid": (16384, 1, 1),
        "threads": 128,
        "registers": 32,
        "spill_bytes": 0,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 0,
        "argument_bytes": 64 * MIB,
        "instructions": InstructionMix(total=100, global_loads={"128": 1}, global_stores={"128": 1}),
    }
    return LaunchProfile(**(given | changed))


def profile(*launches: LaunchProfile, library: tuple[LibraryCall, ...] = (), **more: Any) -> SourceProfile:
    """What a dry run found, with the times of an H100."""
    return completed(SourceProfile("sm_90", 1, launches, library, **more), H100)


def profile_of_bytes(mib: float) -> SourceProfile:
    """A profile whose estimate is as good as proportional to what it moves."""
    return profile(launch(argument_bytes=int(mib * MIB), grid=(max(1, int(mib * 256)), 1, 1)))
