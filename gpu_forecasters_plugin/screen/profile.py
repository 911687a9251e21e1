"""The static profile: what the compiler made of a candidate. Records only, with their units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["InstructionMix", "LaunchProfile", "LibraryCall", "SourceProfile"]


_LARGEST = 2**62
_LONGEST_NAME = 20_000
"""Of a kernel; those of C++ templates run to thousands of characters."""


@dataclass(frozen=True)
class InstructionMix:
    """SASS instructions of one kernel as they stand in its text, each counted once whatever loop it is in.

    Attributes:
        total: all instructions but padding.
        global_loads: loads from global memory, by bits per thread (``{"32": 4, "128": 2}``).
        global_stores: stores to global memory, likewise; reductions are under ``atomics``.
        shared: loads and stores of shared memory (``LDS``, ``STS``, ``LDSM``, ``STSM``).
        local: loads and stores of local memory, which is where spilled registers go (``LDL``, ``STL``).
        async_copies: copies from global to shared memory past the registers (``LDGSTS``, TMA).
        tensor_core: matrix instructions (``HMMA``, ``IMMA``, ``WGMMA`` and their like).
        floating_point: other floating-point arithmetic (``FADD``, ``FFMA``, ``HFMA2``, ``DFMA``, ...).
        special_functions: ``MUFU``: exponentials, reciprocals, square roots.
        conversions: between types (``F2F``, ``I2F``, ``F2I``, ``F2FP``, ...).
        shuffles: exchanges within a warp.
        barriers: waits of a block (``BAR``, ``SYNCS``).
        atomics: atomic operations and reductions in memory.
        branches: jumps and calls.
    """

    total: int = 0
    global_loads: Mapping[str, int] = field(default_factory=dict)
    global_stores: Mapping[str, int] = field(default_factory=dict)
    shared: int = 0
    local: int = 0
    async_copies: int = 0
    tensor_core: int = 0
    floating_point: int = 0
    special_functions: int = 0
    conversions: int = 0
    shuffles: int = 0
    barriers: int = 0
    atomics: int = 0
    branches: int = 0


@dataclass(frozen=True)
class LaunchProfile:
    """One kernel with one grid and one size of arguments, and how often a call of the candidate launches it.

    Attributes:
        kernel: the kernel's name.
        language: ``triton`` or ``cuda``.
        count: such launches of it in the dry run; 0 for a kernel that was compiled but whose launch
            is out of sight (CUDA C++ behind its own host code).
        grid: blocks in x, y and z; ``None`` out of sight.
        threads: threads per block; ``None`` out of sight.
        registers: registers per thread.
        spill_bytes: local memory per thread, in bytes: spilled registers and arrays that found none.
        static_shared_bytes: shared memory per block that the kernel's binary asks for.
        dynamic_shared_bytes: shared memory per block that is asked for at the launch.
        occupancy: warps that an SM can hold at once, over the most that it could (0 to 1); ``None`` out of sight.
        blocks_per_sm: blocks that an SM can hold at once; ``None`` out of sight.
        limited_by: what keeps more blocks from an SM: ``registers``, ``shared memory``, ``warps`` or ``blocks``.
        waves: blocks of the grid over the blocks that the whole device holds at once; ``None`` out of sight.
        argument_bytes: bytes of the distinct tensors among the arguments: what is moved if each is touched once.
        instructions: what its text consists of; ``None`` where nobody disassembled it.
        options: what it was compiled with (``num_warps``, ``num_stages``, ...).
    """

    kernel: str
    language: str
    count: int
    grid: tuple[int, int, int] | None
    threads: int | None
    registers: int
    spill_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    occupancy: float | None = None
    blocks_per_sm: int | None = None
    limited_by: str = ""
    waves: float | None = None
    argument_bytes: int = 0
    instructions: InstructionMix | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


@dataclass(frozen=True)
class LibraryCall:
    """A PyTorch operator that the candidate leaves work to.

    Attributes:
        name: the operator, such as ``aten.mm``.
        count: calls in the dry run.
        bytes: bytes of its tensor arguments and results, summed over the calls.
        flops: floating-point operations of matrix products and convolutions; 0 for all others.
    """

    name: str
    count: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class SourceProfile:
    """All that a candidate's dry run launched and called.

    Attributes:
        arch: what it was compiled for, such as ``sm_90``.
        calls: calls of the candidate's entry point that the dry run finished or began.
        launches: kernels, in the order of their first launch.
        library: PyTorch operators other than views and allocations, in the order of their first call.
        roofline_us: a lower bound of the time of all this, in microseconds, launch overhead included (see
            :mod:`gpu_forecasters_plugin.screen.roofline`); ``None`` without figures of the device.
        complete: whether the dry run went through the candidate; otherwise more may follow.
        estimated_us: an estimate of the same time, in microseconds, by occupancy, waves and instructions (see
            :mod:`gpu_forecasters_plugin.screen.estimate`); ``None`` where part of the work is out of sight.
    """

    arch: str
    calls: int = 0
    launches: tuple[LaunchProfile, ...] = ()
    library: tuple[LibraryCall, ...] = ()
    roofline_us: float | None = None
    complete: bool = True
    estimated_us: float | None = None

    @property
    def launch_count(self) -> int:
        """Launches of own kernels."""
        return sum(launch.count for launch in self.launches)

    @property
    def library_count(self) -> int:
        """Calls of library operators."""
        return sum(call.count for call in self.library)

    @property
    def registers(self) -> int:
        """The most registers per thread that a kernel uses; 0 without kernels."""
        return max((launch.registers for launch in self.launches), default=0)

    @property
    def spill_bytes(self) -> int:
        """The most local memory per thread that a kernel uses, in bytes."""
        return max((launch.spill_bytes for launch in self.launches), default=0)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all arguments, each touched once per launch or call."""
        own = sum(launch.argument_bytes * max(launch.count, 1) for launch in self.launches)
        return own + sum(call.bytes for call in self.library)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SourceProfile:
        """Inverse of :func:`dataclasses.asdict`.

        Raises:
            ValueError, KeyError, TypeError: it is no profile.
        """
        kept = dict(given)
        kept["launches"] = tuple(_launch(entry) for entry in kept.get("launches", ()))
        kept["library"] = tuple(LibraryCall(**_only(LibraryCall, entry)) for entry in kept.get("library", ()))
        return cls(**_only(cls, kept))


def _launch(entry: Mapping[str, Any]) -> LaunchProfile:
    kept = dict(entry)
    grid = kept.get("grid")
    kept["grid"] = None if grid is None else _three(grid)
    mix = kept.get("instructions")
    kept["instructions"] = None if mix is None else _mix(mix)
    return LaunchProfile(**_only(LaunchProfile, kept))


def _mix(entry: Mapping[str, Any]) -> InstructionMix:
    mix = InstructionMix(**_only(InstructionMix, entry))
    if not all(width.isdecimal() for widths in (mix.global_loads, mix.global_stores) for width in widths):
        raise ValueError("widths of loads and stores are numbers of bits")
    return mix


def _three(grid: Sequence[int]) -> tuple[int, int, int]:
    if not (isinstance(grid, list | tuple) and len(grid) == 3 and all(_fits(size, "int") for size in grid)):
        raise ValueError(f"a grid is three numbers, got {grid!r:.60}")
    x, y, z = grid
    return x, y, z


def _only(kind: type, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, each of its type: a profile comes out of the process of a candidate that may have forged it.

    Raises:
        ValueError: they are not.
    """
    types = {f.name: str(f.type) for f in fields(kind)}
    if unknown := set(entry) - set(types):
        raise ValueError(f"unknown fields of a {kind.__name__}: {sorted(unknown)}")
    for name, value in entry.items():
        if not _fits(value, types[name]):
            raise ValueError(f"{name} of a {kind.__name__} cannot be {value!r:.60}")
    return dict(entry)


def _fits(value: Any, expected: str) -> bool:
    if value is None or expected.endswith(" | None"):
        return expected.endswith(" | None") and (value is None or _fits(value, expected[:-7]))
    if expected == "float":
        return type(value) in (int, float) and 0 <= value <= _LARGEST and math.isfinite(value)
    if expected == "int":
        return type(value) is int and 0 <= value <= _LARGEST
    if expected == "str":
        return isinstance(value, str) and len(value) <= _LONGEST_NAME
    if expected == "bool":
        return isinstance(value, bool)
    if expected == "Mapping[str, int]":
        return isinstance(value, dict) and all(_fits(k, "str") and _fits(v, "int") for k, v in value.items())
    return True  # records, which are read apart
