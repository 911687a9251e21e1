"""What kernels run on: all that differs between a GPU and a try without one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from measuring.compiling import compile_ahead
from measuring.timing import FLUSH_BYTES, Timing, time_on_gpu, time_on_wall

__all__ = ["DEVICES", "Device", "device_named", "why_not"]

Call = Callable[[], tuple[Any, ...]]
_LOCK_FILE = "live_gpu.{name}.lock"
_CLOCK_RISE = 2000


class Device(Protocol):
    """Where kernels run."""

    name: str
    """As torch calls it."""

    def prepare(self) -> None:
        """Get it ready, once per process."""

    def compile(self, program: ModuleType, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Compile all that a call with each of these arguments launches, without touching the device."""

    def wait(self) -> None:
        """Wait until all that was launched has ended."""

    def time(self, call: Call) -> Timing:
        """How long a call takes."""


class Gpu:
    """The first visible NVIDIA GPU."""

    name = "cuda"

    def prepare(self) -> None:
        import torch

        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.name)
        for _ in range(_CLOCK_RISE):  # a tenth of a second, in which the clocks rise
            self._flush.zero_()
        torch.cuda.synchronize()

    def compile(self, program: ModuleType, arguments: Sequence[tuple[Any, ...]]) -> None:
        compile_ahead(program, arguments)

    def wait(self) -> None:
        import torch

        torch.cuda.synchronize()

    def time(self, call: Call) -> Timing:
        return time_on_gpu(call, self._flush)


class Interpreter:
    """Triton's interpreter on the processor: shows that everything works, and nothing about speed."""

    name = "cpu"

    def prepare(self) -> None:
        pass

    def compile(self, program: ModuleType, arguments: Sequence[tuple[Any, ...]]) -> None:
        pass

    def wait(self) -> None:
        pass

    def time(self, call: Call) -> Timing:
        return time_on_wall(call)


DEVICES = ("cuda", "cpu")


def device_named(name: str) -> Device:
    """The device of a name; to be called before triton is imported.

    Raises:
        ValueError: there is no such device.
    """
    if name == "cuda":
        return Gpu()
    if name == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        return Interpreter()
    raise ValueError(f"unknown device {name!r}: there are {' and '.join(DEVICES)}")


def why_not(name: str) -> str | None:
    """Why nothing can be measured on the device of this name; ``None`` if it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if name == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU; --device cpu tries everything with Triton's interpreter"
    return None


@contextmanager
def alone_on(device: Device) -> Iterator[None]:
    """Nobody else who asks for it this way works on the device meanwhile, in this process or any other.

    The system gives it back however a process ends.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(",", "_")
    path = Path(tempfile.gettempdir(), _LOCK_FILE.format(name=f"{device.name}{visible}"))
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
