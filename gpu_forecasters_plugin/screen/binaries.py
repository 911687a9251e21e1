"""Reading compiled kernels: what each takes of a multiprocessor, and what its text consists of."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpu_forecasters_plugin.screen.profile import InstructionMix

__all__ = ["KernelResources", "binary_tool", "instruction_mix", "kernel_resources"]

_TIMEOUT_S = 30.0
_RESERVED_SHARED = 1024
"""What ``cuobjdump`` adds to the shared memory of a kernel that has any, from sm_90 on: the system's part."""
_FUNCTION = re.compile(r"^\s*Function\s+(\S+):\s*$")
_FIELD = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)")
_TEXT = re.compile(r"^\s*\.section\s+\.text\.(\S+?)[,\s]")
_WIDTH = re.compile(r"\.(?:[US]?(8|16)|(32|64|128|256))(?=\.|$)")


@dataclass(frozen=True)
class KernelResources:
    """What one kernel's binary asks for.

    Attributes:
        name: its (mangled) name.
        registers: registers per thread.
        local_bytes: local memory per thread, the stack among it, in bytes.
        static_shared_bytes: shared memory per block, in bytes.
    """

    name: str
    registers: int
    local_bytes: int
    static_shared_bytes: int


@lru_cache(maxsize=8)
def binary_tool(name: str) -> str | None:
    """Path of ``cuobjdump``, ``nvdisasm`` or ``nvcc``: the CUDA toolkit's, or those that triton brings along."""
    found = shutil.which(name)
    for folder in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        candidate = Path(folder or "", "bin", name)
        if found is None and folder and os.access(candidate, os.X_OK):
            found = str(candidate)
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        own = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
        # Triton's own come first: they fit the binaries that its own ptxas makes.
        found = str(own) if os.access(own, os.X_OK) else found
    return found


def _run(tool: str, *arguments: str) -> str:
    path = binary_tool(tool)
    if path is None:
        raise FileNotFoundError(f"there is no {tool} here: install triton or the CUDA toolkit")
    done = subprocess.run([path, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout.decode(errors="replace")


def kernel_resources(binary: Path, capability: int) -> list[KernelResources]:
    """The kernels in a cubin, object or library.

    Args:
        binary: the file.
        capability: compute capability that it was compiled for, as one number (90 is 9.0).

    Raises:
        OSError, subprocess.SubprocessError: ``cuobjdump`` is not there, or cannot read it.
    """
    found: list[KernelResources] = []
    name = ""
    for line in _run("cuobjdump", "-res-usage", str(binary)).splitlines():
        if match := _FUNCTION.match(line):
            name = match.group(1)
        elif name and (fields := {key: int(value) for key, value in _FIELD.findall(line)}):
            local = max(fields.get("STACK", 0), fields.get("LOCAL", 0))
            shared = fields.get("SHARED", 0)
            reserved = _RESERVED_SHARED if shared and capability >= 90 else 0
            found.append(KernelResources(name, fields.get("REG", 0), local, max(0, shared - reserved)))
            name = ""
    return found


def instruction_mix(binary: Path, kernel: str | None = None) -> InstructionMix:
    """What the SASS of a cubin consists of.

    Args:
        binary: a cubin.
        kernel: count only this kernel's text; ``None`` counts all.

    Raises:
        OSError, subprocess.SubprocessError: ``nvdisasm`` is not there, or cannot read it.
    """
    return count_instructions(_run("nvdisasm", "-c", str(binary)).splitlines(), kernel)


def count_instructions(lines: Iterable[str], kernel: str | None = None) -> InstructionMix:
    """The mix of a disassembly as ``nvdisasm -c`` prints it."""
    counts: Counter[str] = Counter()
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    counting = kernel is None
    for line in lines:
        if section := _TEXT.match(line):
            counting = kernel is None or section.group(1) == kernel
        match = _SASS.match(line) if counting else None
        if match is None or match.group(1) == "NOP":
            continue
        operation, modifiers = match.groups()
        counts["total"] += 1
        if operation in ("LDG", "STG", "LD", "ST"):
            width = _WIDTH.search(modifiers)
            bits = next((group for group in width.groups() if group), "32") if width else "32"
            (loads if operation.startswith("LD") else stores)[bits] += 1
        elif kind := _kind(operation):
            counts[kind] += 1
    return InstructionMix(
        global_loads=dict(sorted(loads.items())), global_stores=dict(sorted(stores.items())), **counts
    )


_KINDS = {
    "shared": r"LDS|STS|LDSM|STSM",
    "local": r"LDL|STL",
    "async_copies": r"LDGSTS|UBLKCP|UTMALDG|UTMASTG|UTMAREDG|UTMAPF",
    "tensor_core": r"[HIDBQ]MMA|[HIDBQ]GMMA|UT[A-Z]*MMA|OMMA",
    "special_functions": r"MUFU",
    "conversions": r"F2F|F2I|I2F|I2I|F2FP|F2IP|I2FP|FRND",
    "shuffles": r"SHFL|REDUX",
    "barriers": r"BAR|SYNCS|WARPSYNC|DEPBAR|ARRIVES|B2R",
    "atomics": r"ATOM|ATOMG|ATOMS|RED|REDG|REDAS",
    "branches": r"BRA|BRX|JMP|JMX|CALL|RET|BSSY|BSYNC|BREAK",
    "floating_point": (
        r"F(?:ADD|MUL|FMA|MNMX|MNMX3|SETP|SEL|SET|CHK|SWZADD)\d*|H(?:ADD|MUL|FMA|MNMX|SETP|SET)2?"
        r"|D(?:ADD|MUL|FMA|SETP|MNMX)"
    ),
}
_KIND = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _KINDS.items()))


@lru_cache(maxsize=512)
def _kind(operation: str) -> str | None:
    match = _KIND.fullmatch(operation)
    return None if match is None else match.lastgroup
