"""The process that measures: programs come in over an inherited socket, and what came of them goes out.

Between the two it says how far it is, so that whoever waits can tell a compilation from a kernel that hangs.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from measuring.device import Device, alone_on, device_named

__all__ = ["COMPILED", "READY", "RUNNING", "main"]

READY, COMPILED, RUNNING = "ready", "compiled", "running"
"""What it says: it takes programs; the program is compiled; it has the device for itself. Then the result follows."""

_COMPILING = {"CompilationError", "PTXASError", "CompileTimeAssertionFailure", "SyntaxError"}


class _WrongOutput(Exception):
    """A program's outputs are not what they should be."""


class _Task:
    """A task's inputs, expected outputs and check, on the device."""

    def __init__(self, path: str, device: Device) -> None:
        self._module = _imported(Path(path), "task")
        shapes = enumerate(self._module.SHAPES[device.name])
        self.arguments = [self._module.inputs(shape, device.name, number) for number, shape in shapes]
        self._expected = [self._module.reference(*arguments) for arguments in self.arguments]
        self._originals = [tuple(tensor.clone() for tensor in arguments) for arguments in self.arguments]

    def check(self, number: int, outputs: tuple[Any, ...]) -> None:
        """Compare the outputs for the inputs of that number.

        Raises:
            _WrongOutput: they are wrong, or an input was changed.
        """
        import torch

        if not all(map(torch.equal, self.arguments[number], self._originals[number])):
            raise _WrongOutput("an input was changed")
        try:
            self._module.check(outputs, self._expected[number], self.arguments[number])
        except AssertionError as error:
            raise _WrongOutput(str(error)) from None

    def restore(self) -> None:
        """Put the inputs back, whatever the last program did to them."""
        for arguments, originals in zip(self.arguments, self._originals, strict=True):
            for tensor, original in zip(arguments, originals, strict=True):
                tensor.copy_(original)


def _imported(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _spoil(outputs: tuple[Any, ...]) -> None:
    """Leave values that are certainly wrong in the memory that the next outputs will probably get."""
    for output in outputs:
        output.fill_(float("nan") if output.is_floating_point() else -1)


def _measured(task: _Task, program: ModuleType, device: Device) -> dict[str, Any]:
    """Check a program on every shape, time it, and check it again."""
    rows = []
    for number, arguments in enumerate(task.arguments):

        def call(arguments: tuple[Any, ...] = arguments) -> tuple[Any, ...]:
            value = program.run(*arguments)
            return tuple(value) if isinstance(value, tuple | list) else (value,)

        _spoil(call())
        outputs = call()
        device.wait()
        task.check(number, outputs)
        del outputs
        timing = device.time(call)
        task.check(number, timing.outputs)
        rows.append(
            {"median_us": timing.median_us, "spread": timing.spread, "host_behind": timing.host_behind}
        )
    mean = math.exp(sum(math.log(row["median_us"]) for row in rows) / len(rows))
    return {"outcome": "ok", "time_us": mean, "spread": max(row["spread"] for row in rows), "shapes": rows}


def _failure(error: BaseException, outcome: str) -> dict[str, Any]:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # The compiler's messages begin with the source and end with the reason.
    text = lines[-1] if kinds & _COMPILING else " ".join(lines)
    if isinstance(error, _WrongOutput):
        return {"outcome": "incorrect", "error": text[:300]}
    found = "compile_error" if kinds & _COMPILING else outcome
    return {"outcome": found, "error": f"{type(error).__name__}: {text}"[:300]}


def _is_sound(device: Device) -> bool:
    """Whether the device still answers this process: after some errors it never does again."""
    try:
        device.wait()
    except Exception:
        return False
    return True


def _measure(
    task: _Task, path: Path, device: Device, say: Callable[[Any], None]
) -> tuple[dict[str, Any], bool]:
    """What came of a program, and whether this process can take another."""
    try:
        program = _imported(path, path.stem)
    except (Exception, SystemExit) as error:
        return _failure(error, "compile_error"), True
    try:
        device.compile(program, task.arguments)
    except (Exception, SystemExit) as error:
        return _failure(error, "runtime_error"), True
    say(COMPILED)
    with alone_on(device):
        say(RUNNING)
        try:
            task.restore()
            found = _measured(task, program, device)
        except (Exception, SystemExit) as error:
            found = _failure(error, "runtime_error")
        sound = _is_sound(device)
    if not sound and found["outcome"] == "ok":
        found = {"outcome": "runtime_error", "error": "the device failed after the last call"}
    return found, sound


def _end_with(parent: int) -> None:
    """End this process and what it has started when the one that started it has ended, also while a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def main(descriptor: int, device_name: str, folder: str, task_paths: list[str]) -> None:
    """Measure until the other end closes, or a program has spoilt this process."""
    sys.dont_write_bytecode = True
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    device = device_named(device_name)
    with Connection(descriptor) as connection:
        with alone_on(device):
            device.prepare()
            tasks = {path: _Task(path, device) for path in task_paths}
            device.wait()
        gc.collect()
        gc.freeze()
        connection.send(READY)
        while True:
            try:
                number, task, code = connection.recv()
            except (EOFError, ConnectionError):
                break
            # A file of its own: triton reads the text of a kernel from there.
            path = Path(folder, f"candidate_{os.getpid()}_{number}.py")
            path.write_text(code)
            found, sound = _measure(tasks[task], path, device, connection.send)
            sys.modules.pop(path.stem, None)
            path.unlink()
            connection.send((found, sound))
            if not sound:
                break
    os._exit(0)  # a spoilt context may hang in its clean-up


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
