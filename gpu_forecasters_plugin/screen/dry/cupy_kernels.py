"""CuPy's kernels of CUDA text, on a machine without CuPy: compiled, and never launched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from gpu_forecasters_plugin.screen.dry.recorder import Recorder

__all__ = ["stand_in_for_cupy"]


def stand_in_for_cupy(recorder: Recorder, compile_text: Callable[[str, Sequence[str]], None]) -> None:
    """Let a program import CuPy for its ``RawKernel`` and ``RawModule``, unless there is a CuPy here.

    Args:
        recorder: whose run ends where the program asks for anything else of CuPy.
        compile_text: compiles CUDA text with options, and raises where it is refused.
    """
    if importlib.util.find_spec("cupy") is not None:
        return

    class RawKernel:
        """A kernel by its text and name."""

        def __init__(self, code: str, name: str, options: Sequence[str] = (), **more: Any) -> None:
            compile_text(code, options)
            self.name = name

        def __call__(self, *args: Any, **kwargs: Any) -> None:
            recorder.stop("it calls compiled CUDA code")

        def compile(self, *args: Any, **kwargs: Any) -> None:
            """It is compiled already."""

    class RawModule:
        """Several kernels by their text."""

        def __init__(self, *, code: str = "", options: Sequence[str] = (), **more: Any) -> None:
            self._text = code
            compile_text(code, options)

        def compile(self, *args: Any, **kwargs: Any) -> None:
            """It is compiled already."""

        def get_function(self, name: str) -> RawKernel:
            if name.partition("<")[0] not in self._text:
                recorder.stop("it asks for a kernel that its text does not name")
            kernel = RawKernel.__new__(RawKernel)
            kernel.name = name
            return kernel

    class CuPy(ModuleType):
        """The module; what it has not is out of sight."""

        __path__: list[str] = []

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            recorder.stop(f"it uses CuPy's {name}, which is not installed here")

    module: Any = CuPy("cupy")
    module.RawKernel, module.RawModule = RawKernel, RawModule
    for name in ("int32", "int64", "uint32", "uint64"):
        setattr(module, name, int)
    for name in ("float32", "float64", "float16"):
        setattr(module, name, float)
    sys.modules["cupy"] = module
