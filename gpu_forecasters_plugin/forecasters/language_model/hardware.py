"""What is known of a GPU by its name: facts for a prompt, without asking any device."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PRESETS", "HardwareFacts", "hardware_facts"]


@dataclass(frozen=True)
class HardwareFacts:
    """Published figures of one GPU; ``None`` where no figure is published.

    Attributes:
        name: the usual name of the GPU.
        architecture: its family.
        compute_capability: NVIDIA's number, or the target of AMD's compilers.
        memory_gb: size of the device memory, in 10^9 bytes.
        memory_type: kind of device memory.
        bandwidth_gb_s: peak bandwidth of the device memory, in 10^9 bytes per second.
        bus_width_bits: width of the memory bus.
        multiprocessors: streaming multiprocessors, or compute units, that are switched on.
        threads_per_multiprocessor: threads that can be resident on one of them.
        shared_kib_per_multiprocessor: the largest part of its local memory that blocks can share.
        l2_mib: size of the L2 cache.
        boost_clock_mhz: highest clock of the multiprocessors.
    """

    name: str
    architecture: str
    compute_capability: str
    memory_gb: int
    memory_type: str
    bandwidth_gb_s: int
    bus_width_bits: int
    multiprocessors: int
    threads_per_multiprocessor: int
    shared_kib_per_multiprocessor: int
    l2_mib: int | None
    boost_clock_mhz: int | None


_VOLTA = ("Volta", "7.0")
_TURING = ("Turing", "7.5")
_AMPERE = ("Ampere", "8.0")
_AMPERE_86 = ("Ampere", "8.6")
_ADA = ("Ada Lovelace", "8.9")
_HOPPER = ("Hopper", "9.0")
_BLACKWELL = ("Blackwell", "10.0")
_BLACKWELL_120 = ("Blackwell", "12.0")
_CDNA2 = ("CDNA 2", "gfx90a")
_CDNA3 = ("CDNA 3", "gfx942")

PRESETS: tuple[HardwareFacts, ...] = (
    HardwareFacts("H100 NVL", *_HOPPER, 94, "HBM3", 3938, 6016, 132, 2048, 228, 50, None),
    HardwareFacts("H100 PCIe", *_HOPPER, 80, "HBM2e", 2039, 5120, 114, 2048, 228, 50, 1755),
    HardwareFacts("H100", *_HOPPER, 80, "HBM3", 3352, 5120, 132, 2048, 228, 50, 1980),
    HardwareFacts("H200", *_HOPPER, 141, "HBM3e", 4800, 6144, 132, 2048, 228, 50, 1980),
    HardwareFacts("B200", *_BLACKWELL, 180, "HBM3e", 8000, 8192, 148, 2048, 228, 126, None),
    HardwareFacts("A100 PCIe 80GB", *_AMPERE, 80, "HBM2e", 1935, 5120, 108, 2048, 164, 40, 1410),
    HardwareFacts("A100 80GB", *_AMPERE, 80, "HBM2e", 2039, 5120, 108, 2048, 164, 40, 1410),
    HardwareFacts("A100 40GB", *_AMPERE, 40, "HBM2", 1555, 5120, 108, 2048, 164, 40, 1410),
    HardwareFacts("A30", *_AMPERE, 24, "HBM2", 933, 3072, 56, 2048, 164, 24, 1440),
    HardwareFacts("A10", *_AMPERE_86, 24, "GDDR6", 600, 384, 72, 1536, 100, 6, 1695),
    HardwareFacts("A10G", *_AMPERE_86, 24, "GDDR6", 600, 384, 80, 1536, 100, 6, 1710),
    HardwareFacts("A40", *_AMPERE_86, 48, "GDDR6", 696, 384, 84, 1536, 100, 6, 1740),
    HardwareFacts("RTX A6000", *_AMPERE_86, 48, "GDDR6", 768, 384, 84, 1536, 100, 6, 1800),
    HardwareFacts("RTX 3090", *_AMPERE_86, 24, "GDDR6X", 936, 384, 82, 1536, 100, 6, 1695),
    HardwareFacts("L4", *_ADA, 24, "GDDR6", 300, 192, 58, 1536, 100, 48, 2040),
    HardwareFacts("L40", *_ADA, 48, "GDDR6", 864, 384, 142, 1536, 100, 96, 2490),
    HardwareFacts("L40S", *_ADA, 48, "GDDR6", 864, 384, 142, 1536, 100, 96, 2520),
    HardwareFacts("RTX 4090", *_ADA, 24, "GDDR6X", 1008, 384, 128, 1536, 100, 72, 2520),
    HardwareFacts("RTX 5090", *_BLACKWELL_120, 32, "GDDR7", 1792, 512, 170, 1536, 100, 96, 2407),
    HardwareFacts("T4", *_TURING, 16, "GDDR6", 320, 256, 40, 1024, 64, 4, 1590),
    HardwareFacts("V100 32GB", *_VOLTA, 32, "HBM2", 900, 4096, 80, 2048, 96, 6, 1530),
    HardwareFacts("V100 16GB", *_VOLTA, 16, "HBM2", 900, 4096, 80, 2048, 96, 6, 1530),
    HardwareFacts("MI210", *_CDNA2, 64, "HBM2e", 1638, 4096, 104, 2048, 64, 8, 1700),
    HardwareFacts("MI250X", *_CDNA2, 64, "HBM2e", 1638, 4096, 110, 2048, 64, 8, 1700),
    HardwareFacts("MI300X", *_CDNA3, 192, "HBM3", 5300, 8192, 304, 2048, 64, None, 2100),
    HardwareFacts("MI325X", *_CDNA3, 256, "HBM3e", 6000, 8192, 304, 2048, 64, None, 2100),
)
"""Figures of data sheets and architecture white papers.

NVIDIA: the product's data sheet (memory, bandwidth, bus), the white papers of Volta, Turing, Ampere, Ada, Hopper
and Blackwell (multiprocessors, L2, clocks) and the CUDA programming guide's table of compute capabilities
(threads, shared memory). AMD: the Instinct data sheets and the CDNA 2 and 3 white papers; the MI250X is one of its
two dies, which is the device that a process sees. Where a name stands for several variants, a plain ``H100`` is
the SXM one.
"""

_ANOTHER_DEVICE = {"laptop", "mobile", "mig", "grid", "max", "ti", "super", "d", "vgpu"}
"""Words of names whose device has fewer units or lower clocks than the one that the rest of the name means."""
_WORD = re.compile(r"[a-z0-9]+")


def hardware_facts(device_name: str) -> HardwareFacts | None:
    """The facts of a device by the name that its driver gives it, such as ``NVIDIA A100-SXM4-80GB``.

    Returns:
        The preset all of whose words the name holds, the first of several; ``None`` for a device that no
        preset describes, or describes only a larger sibling of (laptops, slices of a GPU).
    """
    words = set(_WORD.findall(device_name.lower()))
    if words & _ANOTHER_DEVICE:
        return None
    return next((facts for facts in PRESETS if set(_WORD.findall(facts.name.lower())) <= words), None)
