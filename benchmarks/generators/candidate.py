"""A source as a module, and what its failure means."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from benchmarks.generators.variant import Variant

# An error after which the process's CUDA context cannot be trusted any more.
FATAL = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "an illegal",
    "launch timed out",
    "invalid program counter",
    "hardware stack",
    "cudaErrorLaunchFailure",
    "invalid address space",
)
BUILD_MARKS = (
    "Error building extension",
    "nvrtc",
    "NVRTC",
    "Kernel compilation failed",
    "CompileException",
    "nvcc",
    "ninja",
    "No such file: nvcc",
)


def load_task(name: str) -> ModuleType:
    """Imports the generator of a task."""
    return importlib.import_module(f"benchmarks.generators.tasks.{name}")


def imported(name: str, code: str, folder: Path) -> ModuleType:
    """A source, imported from a file of its own in that folder (Triton reads the text of its kernels from there)."""
    path = folder / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Candidate:
    """A source of a task as a module."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        self.name = f"candidate_{variant.id}"
        self.module = imported(self.name, variant.code, folder)
        self.run = self.module.run


def first_line(error: BaseException) -> str:
    """A short, single-line description of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    # Triton's messages begin with the position and end with the reason.
    if "CompilationError" in type(error).__name__:
        telling = lines[-1:]
    line = next(iter(telling or lines), "")
    for secret in (tempfile.gettempdir(), str(Path.cwd()), str(Path.home())):
        line = line.replace(secret, "")
    return f"{type(error).__name__}: {line}"[:240]


def classify(error: BaseException, phase: str, language: str) -> str:
    """Whether an error means that the source does not compile or that it fails when it runs."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if phase == "import" or names & {
        "CompilationError",
        "PTXASError",
        "CompileTimeAssertionFailure",
        "SyntaxError",
    }:
        return "compile_error"
    if language == "cuda" and any(mark in str(error) for mark in BUILD_MARKS):
        return "compile_error"
    return "runtime_error"
