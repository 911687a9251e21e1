"""Compiles sources without a GPU and without running them; the caches of the compilers keep the products.

What stands in for the GPU is what the package itself screens sources with: tensors without memory, and a driver for
Triton that compiles for a device that is not there. Triton binds, specialises and caches as it will on the device, so
that a process that measures there finds the binaries. CUDA C++ is built by importing its source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.generators.candidate import Candidate, first_line, load_task
from benchmarks.generators.checking import as_tuple
from benchmarks.generators.variant import Variant

Row = dict[str, Any]


class Compiler:
    """Compiles sources that are all in one language.

    Args:
        folder: Where sources are written to.
        device: Name of the GPU that is compiled for.
        language: Triton's sources are run with a stand-in for the device, others only imported.
    """

    def __init__(self, folder: Path, device: str, language: str) -> None:
        self._folder = folder
        self._runs = language == "triton"
        self._inputs: dict[str, list[tuple[Any, ...]]] = {}
        if self._runs:
            _stand_in(device)
        else:
            _load_nothing()

    def compile(self, task: str, variant: Variant) -> Row:
        """Compiles a source for all shapes of its task; the row says how long it took and what went wrong."""
        from gpu_forecasters_plugin.screen.dry.recorder import Stop

        begun = time.perf_counter()
        error = None
        try:
            inputs = self._inputs_of(task)
            candidate = Candidate(variant, self._folder)
            for values in inputs:
                candidate.run(*values)
        except (Exception, SystemExit, Stop) as problem:
            error = first_line(problem)
        return {"seconds": round(time.perf_counter() - begun, 2), "error": error}

    def _inputs_of(self, name: str) -> list[tuple[Any, ...]]:
        """Inputs without memory for each shape, where sources are run."""
        if self._runs and name not in self._inputs:
            task = load_task(name)
            self._inputs[name] = [as_tuple(task.make_inputs(shape, "cuda", 1)) for shape in task.SHAPES]
        return self._inputs.get(name, [])


def _load_nothing() -> None:
    """What NVRTC builds is not loaded: there is no device."""
    import torch.cuda._utils as utils

    utils._cuda_load_module = lambda binary, names=None: dict.fromkeys(names or ())


def architecture_of(device_name: str) -> Any:
    """What is known of a GPU's architecture; raises ValueError where nothing is."""
    from gpu_forecasters_plugin.screen.architectures import architecture_of_device

    arch = architecture_of_device(device_name)
    if arch is None:
        raise ValueError(f"nothing is known of {device_name!r}")
    return arch


def _stand_in(device_name: str) -> None:
    """From now on this process has a CUDA device without memory, for which Triton compiles."""
    from gpu_forecasters_plugin.forecasters.language_model.hardware import hardware_facts
    from gpu_forecasters_plugin.screen.dry.fake_cuda import FakeDevice, lend_device_guard
    from gpu_forecasters_plugin.screen.dry.recorder import Recorder

    lend_device_guard()
    device = FakeDevice(architecture_of(device_name), hardware_facts(device_name), Recorder(""))
    device.install()
    _driver()(device).install()
    _build_every_configuration()
    device.enter()


def _driver() -> type[Any]:
    from triton.backends.nvidia.driver import CudaLauncher

    from gpu_forecasters_plugin.screen.dry.fake_triton import DryDriver

    class CompilingDriver(DryDriver):
        """Loads no binary and launches nothing."""

        def __init__(self, device: Any) -> None:
            super().__init__(device)
            self.utils.load_binary = lambda *arguments: (object(), object(), 0, 0, 1024)  # type: ignore[method-assign]

        def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
            # What launches the kernel is compiled as well, and kept; it needs the driver's library, not a device.
            with suppress(Exception):
                CudaLauncher(source, metadata)
            return lambda *arguments: None

    return CompilingDriver


def _build_every_configuration() -> None:
    """An autotuner builds all its configurations, and takes the first that builds."""
    from triton.runtime.autotuner import Autotuner

    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        try:
            tuner.fn.run(*args, **dict(meta, **config.all_kwargs()))
        except Exception:  # the configuration loses
            return [float("inf")] * 3
        return [1.0] * 3

    Autotuner._bench = bench
