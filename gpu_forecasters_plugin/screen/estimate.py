"""How long a profile's work would take: an estimate, where :mod:`~gpu_forecasters_plugin.screen.roofline` is a bound.

A kernel takes as long as its slower side. Memory: its arguments once at the memory's peak bandwidth. Instructions: its
text, issued by the warps of every wave; a scheduler issues one instruction per cycle, and a warp one in
:data:`_CYCLES_PER_INSTRUCTION` (the latency of arithmetic that waits for its own results), so that few resident warps
leave it idle. How often a loop runs is not in a text: it is taken to run until the loads and stores of all threads
have touched the arguments once. In the spirit of the warp-parallelism model of Hong and Kim (2009).
"""

from __future__ import annotations

import math

from gpu_forecasters_plugin.forecasters.language_model.hardware import HardwareFacts
from gpu_forecasters_plugin.screen.profile import LaunchProfile, SourceProfile
from gpu_forecasters_plugin.screen.roofline import LAUNCH_US, library_us

__all__ = ["estimated_us"]

_CYCLES_PER_INSTRUCTION = 4.0
_SCHEDULERS = 4
_WARP = 32
_USUAL_CLOCK_MHZ = 1700


def estimated_us(profile: SourceProfile, facts: HardwareFacts) -> float | None:
    """Estimated time of one pass over everything in the profile, in microseconds.

    ``None`` where part of the work is out of sight: the dry run ended inside the candidate, nothing was launched, or
    CUDA host code launches a kernel with a grid that nobody saw.
    """
    if not profile.complete or not (profile.launches or profile.library):
        return None
    total = library_us(profile, facts)
    for launch in profile.launches:
        work = _work_us(launch, facts)
        if work is None:
            return None
        total += launch.count * (LAUNCH_US + work)
    return total


def _work_us(launch: LaunchProfile, facts: HardwareFacts) -> float | None:
    if launch.grid is None or launch.threads is None or not launch.count:
        return None
    memory = launch.argument_bytes / (facts.bandwidth_gb_s * 1e3)
    return max(memory, _issue_us(launch, launch.threads, math.prod(launch.grid), facts))


def _issue_us(launch: LaunchProfile, threads: int, blocks: int, facts: HardwareFacts) -> float:
    """Time to issue all instructions; 0 where nobody disassembled the kernel."""
    mix = launch.instructions
    if mix is None or not blocks:
        return 0.0
    widths = (*mix.global_loads.items(), *mix.global_stores.items())
    touched = blocks * threads * max(1, sum(int(bits) // 8 * count for bits, count in widths))
    trips = max(1.0, launch.argument_bytes / touched)
    warps = -(-threads // _WARP)
    together = max(1, launch.blocks_per_sm or 1)
    waves = max(1.0, blocks / (together * facts.multiprocessors))
    resident = warps * min(together, blocks / facts.multiprocessors) / _SCHEDULERS
    cycles = waves * mix.total * trips * max(resident, _CYCLES_PER_INSTRUCTION)
    return cycles / (facts.boost_clock_mhz or _USUAL_CLOCK_MHZ)
