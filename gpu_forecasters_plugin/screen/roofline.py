"""A lower bound of the time of a profile.

The bound is that of Williams, Waterman and Patterson (2009): moving each argument once at the memory's peak
bandwidth, or computing at the peak of the tensor cores, whichever takes longer; and a fixed time per launch, since
kernels of one stream run one after the other.
"""

from __future__ import annotations

from gpu_forecasters_plugin.forecasters.language_model.hardware import HardwareFacts
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["LAUNCH_US", "library_us", "roofline_us"]

LAUNCH_US = 2.5
"""Time between two small kernels of one stream, in microseconds."""

_DENSE_TFLOPS = {70: 125, 75: 65, 80: 312, 86: 125, 89: 362, 90: 989, 100: 2250, 120: 209}
"""Dense half-precision peak of the tensor cores, in 10^12 operations per second, of each architecture's usual card
(data sheets of NVIDIA). Only library calls have operation counts: a matrix product in single precision is slower."""


def roofline_us(profile: SourceProfile, facts: HardwareFacts) -> float:
    """Lower bound of one pass over everything in the profile, in microseconds."""
    bandwidth = facts.bandwidth_gb_s * 1e3  # bytes per microsecond
    own = sum(max(x.count, 1) * (LAUNCH_US + x.argument_bytes / bandwidth) for x in profile.launches)
    return own + library_us(profile, facts)


def library_us(profile: SourceProfile, facts: HardwareFacts) -> float:
    """Lower bound of the time of the profile's library calls, in microseconds."""
    bandwidth = facts.bandwidth_gb_s * 1e3  # bytes per microsecond
    peak = _DENSE_TFLOPS.get(int(facts.compute_capability.replace(".", "") or 0), 1000) * 1e6
    return sum(x.count * LAUNCH_US + max(x.bytes / bandwidth, x.flops / peak) for x in profile.library)
