"""What a profile's launches make of a device: occupancy, waves, and how long they take."""

from __future__ import annotations

from dataclasses import replace

from gpu_forecasters_plugin.forecasters.language_model.hardware import HardwareFacts
from gpu_forecasters_plugin.screen.architectures import Architecture, architecture, typical_device
from gpu_forecasters_plugin.screen.estimate import estimated_us
from gpu_forecasters_plugin.screen.profile import LaunchProfile, SourceProfile
from gpu_forecasters_plugin.screen.roofline import roofline_us

__all__ = ["completed"]


def completed(profile: SourceProfile, device: str = "") -> SourceProfile:
    """The profile with occupancy, waves and times of a device; of a usual one of its architecture without a name."""
    arch = architecture(profile.arch)
    facts = typical_device(arch, device)
    launches = tuple(_occupied(launch, arch, facts) for launch in profile.launches)
    filled = replace(profile, launches=launches)
    if facts is None:
        return filled
    return replace(filled, roofline_us=roofline_us(filled, facts), estimated_us=estimated_us(filled, facts))


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
