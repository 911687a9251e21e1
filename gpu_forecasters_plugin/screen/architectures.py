"""What each NVIDIA architecture allows, and how many blocks of a kernel fit on a multiprocessor.

Figures: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; units of allocation:
CUDA Occupancy Calculator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters.language_model.hardware import PRESETS, HardwareFacts, hardware_facts

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Occupancy",
    "architecture",
    "architecture_of_device",
    "architecture_to_compile_for",
    "typical_device",
]

WARP = 32
_REGISTER_UNIT = 256
_WARP_UNIT = 4
_KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """Limits of a compute capability.

    Attributes:
        capability: major and minor number, as one number (90 is 9.0).
        warps_per_sm: warps that a multiprocessor holds at most.
        blocks_per_sm: blocks that it holds at most.
        shared_per_sm: its shared memory, in bytes.
        shared_per_block: the most that one block may have of it, in bytes, when it asks for it.
        shared_unit: granularity of its allocation, in bytes.
        shared_reserved: what the system keeps of it per block, in bytes.
    """

    capability: int
    warps_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int
    shared_unit: int = 128
    shared_reserved: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024

    @property
    def name(self) -> str:
        """As compilers call it, such as ``sm_90``."""
        return f"sm_{self.capability}"

    def max_threads(self, registers: int) -> int:
        """Threads that a block of a kernel with so many registers per thread may have at most."""
        per_warp = _up(max(registers, 1) * WARP, _REGISTER_UNIT)
        warps = self.registers_per_sm // per_warp // _WARP_UNIT * _WARP_UNIT
        return min(self.threads_per_block, warps * WARP)

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> Occupancy:
        """How many blocks of that kind fit on one multiprocessor.

        Args:
            threads: threads per block, at least 1.
            registers: registers per thread.
            shared_bytes: shared memory per block, static and dynamic, in bytes.
        """
        warps = -(-threads // WARP)
        per_warp = _up(max(registers, 1) * WARP, _REGISTER_UNIT)
        # Registers are handed out by the quarter of a multiprocessor, and warps of a block in fours.
        warps_by_registers = self.registers_per_sm // per_warp // _WARP_UNIT * _WARP_UNIT
        shared = _up(shared_bytes + self.shared_reserved, self.shared_unit)
        limits = {
            "warps": self.warps_per_sm // warps,
            "blocks": self.blocks_per_sm,
            "registers": warps_by_registers // warps,
            "shared memory": self.shared_per_sm // shared if shared else self.blocks_per_sm,
        }
        limited_by = min(limits, key=lambda name: limits[name])
        blocks = limits[limited_by]
        return Occupancy(blocks, float(Fraction(blocks * warps, self.warps_per_sm)), limited_by)


@dataclass(frozen=True)
class Occupancy:
    """Blocks on a multiprocessor, their warps over the most possible, and what keeps out more."""

    blocks_per_sm: int
    fraction: float
    limited_by: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


_TABLE = (
    Architecture(70, 64, 32, 96 * _KIB, 96 * _KIB, 256, 0),
    Architecture(75, 32, 16, 64 * _KIB, 64 * _KIB, 256, 0),
    Architecture(80, 64, 32, 164 * _KIB, 163 * _KIB),
    Architecture(86, 48, 16, 100 * _KIB, 99 * _KIB),
    Architecture(87, 48, 16, 164 * _KIB, 163 * _KIB),
    Architecture(89, 48, 24, 100 * _KIB, 99 * _KIB),
    Architecture(90, 64, 32, 228 * _KIB, 227 * _KIB),
    Architecture(100, 64, 32, 228 * _KIB, 227 * _KIB),
    Architecture(120, 48, 24, 100 * _KIB, 99 * _KIB),
)
ARCHITECTURES = {entry.name: entry for entry in _TABLE}
"""By name, such as ``sm_90``."""

_TYPICAL = {
    "sm_70": "V100 32GB",
    "sm_75": "T4",
    "sm_80": "A100 80GB",
    "sm_86": "A10",
    "sm_89": "L40S",
    "sm_90": "H100",
    "sm_100": "B200",
    "sm_120": "RTX 5090",
}
_DEFAULT = "sm_90"
_NAME = re.compile(r"(?:sm_?|compute_?)?(\d{2,3})[a-z]?")


def architecture(name: str) -> Architecture:
    """The architecture of that name.

    Args:
        name: ``sm_90``, ``sm90``, ``90``, ``sm_90a`` or ``9.0``.

    Raises:
        ConfigError: there is none, or none that is known here.
    """
    match = _NAME.fullmatch(name.strip().lower().replace(".", ""))
    found = ARCHITECTURES.get(f"sm_{match.group(1)}") if match else None
    if found is None:
        raise ConfigError(f"unknown architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
    return found


def architecture_of_device(device_name: str) -> Architecture | None:
    """The architecture of a GPU by its name; ``None`` where no preset describes it, or where it is no NVIDIA GPU."""
    facts = hardware_facts(device_name)
    return ARCHITECTURES.get(f"sm_{facts.compute_capability.replace('.', '')}") if facts else None


def architecture_to_compile_for(arch: str | None, device_name: str) -> Architecture:
    """What is compiled for: the architecture that was named, else the device's, else ``sm_90``.

    Args:
        arch: name of an architecture; ``None`` where none was given.
        device_name: name of a GPU; empty where none was given. With an architecture, any name is taken.

    Raises:
        ConfigError: unknown architecture or device, or the device is of another architecture.
    """
    of_device = architecture_of_device(device_name)
    if arch is None:
        if device_name and of_device is None:
            known = (entry.name for entry in PRESETS if architecture_of_device(entry.name) is not None)
            raise ConfigError(
                f"unknown device {device_name!r}; known: {', '.join(known)}. "
                "For any other give its architecture as well, as in --arch sm_80"
            )
        return of_device or ARCHITECTURES[_DEFAULT]
    found = architecture(arch)
    if of_device is not None and of_device != found:
        raise ConfigError(f"{device_name!r} is of architecture {of_device.name}, not {found.name}")
    return found


def typical_device(arch: Architecture, device_name: str = "") -> HardwareFacts | None:
    """Figures of that device, if it is of the architecture, else of a well-known one that is; ``None`` without any."""
    facts = hardware_facts(device_name) if device_name else None
    if facts is not None and facts.compute_capability.replace(".", "") == str(arch.capability):
        return facts
    return next((entry for entry in PRESETS if entry.name == _TYPICAL.get(arch.name)), None)
