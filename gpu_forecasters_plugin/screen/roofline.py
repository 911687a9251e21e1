"""A lower bound of the time of a profile, and what its launches make of the device.

The bound is that of Williams, Waterman and Patterson (2009): moving each argument once at the memory's peak
bandwidth, or computing at the peak of the tensor cores, whichever takes longer; and a fixed time per launch, since
kernels of one stream run one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_forecasters_plugin.forecasters.language_model.hardware import HardwareFacts
from gpu_forecasters_plugin.screen.architectures import Architecture, architecture, typical_device
from gpu_forecasters_plugin.screen.profile import LaunchProfile, SourceProfile

__all__ = ["LAUNCH_US", "completed", "roofline_us"]

LAUNCH_US = 2.5
"""Time between two small kernels of one stream, in microseconds."""

_DENSE_TFLOPS = {70: 125, 75: 65, 80: 312, 86: 125, 89: 362, 90: 989, 100: 2250, 120: 209}
"""Dense half-precision peak of the tensor cores, in 10^12 operations per second, of each architecture's usual card
(data sheets of NVIDIA). Only library calls have operation counts: a matrix product in single precision is slower."""


def roofline_us(profile: SourceProfile, facts: HardwareFacts) -> float:
    """Lower bound of one pass over everything in the profile, in microseconds."""
    bandwidth = facts.bandwidth_gb_s * 1e3  # bytes per microsecond
    peak = _DENSE_TFLOPS.get(int(facts.compute_capability.replace(".", "") or 0), 1000) * 1e6
    own = sum(max(x.count, 1) * (LAUNCH_US + x.argument_bytes / bandwidth) for x in profile.launches)
    library = sum(x.count * LAUNCH_US + max(x.bytes / bandwidth, x.flops / peak) for x in profile.library)
    return own + library


def completed(profile: SourceProfile, device: str = "") -> SourceProfile:
    """The profile with occupancy, waves and roofline of a device; of a usual one of its architecture without a name."""
    arch = architecture(profile.arch)
    facts = typical_device(arch, device)
    launches = tuple(_occupied(launch, arch, facts) for launch in profile.launches)
    filled = replace(profile, launches=launches)
    return filled if facts is None else replace(filled, roofline_us=roofline_us(filled, facts))


def _occupied(launch: LaunchProfile, arch: Architecture, facts: HardwareFacts | None) -> LaunchProfile:
    if launch.threads is None:
        return launch
    found = arch.occupancy(launch.threads, launch.registers, launch.shared_bytes)
    waves = None
    if facts is not None and launch.grid is not None and found.blocks_per_sm:
        x, y, z = launch.grid
        waves = x * y * z / (found.blocks_per_sm * facts.multiprocessors)
    return replace(
        launch,
        occupancy=found.fraction,
        blocks_per_sm=found.blocks_per_sm,
        limited_by=found.limited_by,
        waves=waves,
    )
