"""A driver for triton that compiles for a device that is not there and launches nothing."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_forecasters_plugin.screen.architectures import Architecture
from gpu_forecasters_plugin.screen.binaries import kernel_resources
from gpu_forecasters_plugin.screen.dry.fake_cuda import FakeDevice
from gpu_forecasters_plugin.screen.dry.library import tensor_bytes
from gpu_forecasters_plugin.screen.dry.recorder import LaunchRefused, Recorder
from gpu_forecasters_plugin.screen.profile import LaunchProfile

__all__ = ["DryDriver", "unpatched_parts"]

_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class DryDriver:
    """What triton asks of a driver: target, device, stream, properties; a way to load binaries, and to launch them.

    All else is triton's own: how arguments are bound and specialised, what is compiled how, and which kernels it
    refuses for want of shared memory or threads.
    """

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.recorder = device.recorder
        self.utils = _Utils(
            device.arch, device.facts.multiprocessors if device.facts else 108, device.recorder
        )
        compiler = importlib.import_module("triton.backends.compiler")
        self._target = compiler.GPUTarget("cuda", device.arch.capability, 32)

    def install(self) -> None:
        """Make this the only driver, and have tuners take the first configuration that builds."""
        active = importlib.import_module("triton.runtime.driver").driver
        active.set_active(self)
        for name in ("_default", "default"):
            if name in vars(active):
                setattr(active, name, self)
        autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        autotuner._bench = _first_that_builds(autotuner._bench, self.recorder)

    # -- triton's driver interface --------------------------------------------------------------------------

    @classmethod
    def is_active(cls) -> bool:
        """Always."""
        return True

    def get_current_target(self) -> Any:
        """The architecture that is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def set_current_device(self, device: Any) -> None:
        """There is only one."""

    def get_current_stream(self, device: Any = None) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Major and minor compute capability."""
        return divmod(self.device.arch.capability, 10)

    def get_active_torch_device(self) -> Any:
        """Where tensors are to be."""
        return self.device.device

    def get_device_interface(self) -> Any:
        """``torch.cuda``, whose functions are stand-ins."""
        return self.device.torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """What a tuner times configurations with: it runs one and makes up a time."""

        def benchmark(call: Callable[[], Any], *, quantiles: Sequence[float] = (0.5,), **more: Any) -> Any:
            call()
            return [1.0 for _ in quantiles]

        return benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        """A tensor to clear the cache with."""
        return self.device.torch.empty(1, dtype=self.device.torch.int32, device=self.device.device)

    def clear_cache(self, cache: Any) -> None:
        """There is none."""

    def assemble_tensormap_to_arg(self, maps: Any, arguments: Any) -> Any:
        """The arguments as they are."""
        return arguments

    def map_python_to_cpp_type(self, kind: str) -> str:
        """The C++ type of a triton type; nothing is compiled for the host here."""
        return kind

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches a compiled kernel: it checks the launch and notes it."""
        return _Launcher(self, source, metadata)


class _Utils:
    """The part of the driver that loads binaries."""

    def __init__(self, arch: Architecture, multiprocessors: int, recorder: Recorder) -> None:
        self._arch = arch
        self._multiprocessors = multiprocessors
        self._recorder = recorder

    def get_device_properties(self, device: Any) -> dict[str, int]:
        """As triton's own driver names them."""
        return {
            "max_shared_mem": self._arch.shared_per_block,
            "max_num_regs": self._arch.registers_per_sm,
            "multiprocessor_count": self._multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1_500_000,
            "mem_clock_rate": 1_500_000,
            "mem_bus_width": 4096,
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: Any) -> tuple[Any, ...]:
        """Module, function, registers, spilled registers and most threads of a cubin."""
        digest = hashlib.sha256(binary).hexdigest()
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            (resources, *_) = kernel_resources(Path(file.name), self._arch.capability)
        self._recorder.binaries[digest] = binary
        function = SimpleNamespace(digest=digest, resources=resources)
        spills = resources.local_bytes // 4
        return object(), function, resources.registers, spills, self._arch.max_threads(resources.registers)

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""


class _Launcher:
    def __init__(self, driver: DryDriver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._names = list(getattr(source.fn, "arg_names", ()))
        self._signature = dict(source.signature)
        self._metadata = metadata

    def __call__(self, x: Any, y: Any, z: Any, stream: Any, function: Any, *more: Any) -> None:
        # Packed metadata, launch metadata, two hooks, then the kernel's arguments.
        arguments = more[4:]
        grid = tuple(_whole(size) for size in (x, y, z))
        tensors = [self._tensor(place, value) for place, value in enumerate(arguments)]
        if ctypes.c_int32(math.prod(grid)).value <= 0:
            return  # so does triton's own launcher: it launches nothing, and says nothing
        if any(not 0 < size <= limit for size, limit in zip(grid, _GRID_LIMITS, strict=True)):
            raise LaunchRefused(f"invalid argument: grid {grid} is not within {_GRID_LIMITS}")
        self._note(grid, function, [tensor for tensor in tensors if tensor is not None])

    def _tensor(self, place: int, value: Any) -> Any:
        torch = self._driver.device.torch
        if not isinstance(value, torch.Tensor):
            return None
        if value.device.type != "cuda":
            raise LaunchRefused(f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)")
        return value

    def _note(self, grid: tuple[int, ...], function: Any, tensors: list[Any]) -> None:
        metadata, resources = self._metadata, function.resources
        launches = self._driver.recorder.launches
        options = {name: getattr(metadata, name, None) for name in _OPTIONS}
        argument_bytes = tensor_bytes(tensors)
        key = (function.digest, grid, argument_bytes)
        if key in launches:
            launches[key] = replace(launches[key], count=launches[key].count + 1)
            return
        launches[key] = LaunchProfile(
            kernel=str(metadata.name),
            language="triton",
            count=1,
            grid=(grid[0], grid[1], grid[2]),
            threads=int(metadata.num_warps) * 32,
            registers=resources.registers,
            spill_bytes=resources.local_bytes,
            static_shared_bytes=0,
            # Triton asks for all of a block's shared memory at the launch.
            dynamic_shared_bytes=int(metadata.shared),
            argument_bytes=argument_bytes,
            options={name: value for name, value in options.items() if isinstance(value, int)},
        )


def _whole(size: Any) -> int:
    """A size of the grid, as the C function that launches takes it."""
    if not isinstance(size, int):
        raise LaunchRefused(f"{type(size).__name__!r} object cannot be interpreted as an integer: grid")
    if not -_GRID_LIMITS[0] <= size <= _GRID_LIMITS[0]:
        raise LaunchRefused(f"a signed integer of 32 bits cannot hold {size}: grid")
    return int(size)


def _first_that_builds(bench: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """For a tuner: the first configuration that builds is the fastest; the others are not compiled."""

    def first(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        good = vars(tuner).get("_first_that_built")
        if good is not None:
            return [0.0 if config is good else math.inf] * 3
        recorder.guess("the fastest configuration of a tuner")
        times = bench(tuner, *args, config=config, **meta)
        if times[0] != math.inf:
            tuner._first_that_built = config
        return times

    return first


def unpatched_parts() -> tuple[Any, ...]:
    """What a candidate would replace to make triton say something else; compared before and after it."""
    jit = importlib.import_module("triton.runtime.jit")
    compiler = importlib.import_module("triton.compiler.compiler")
    driver = importlib.import_module("triton.runtime.driver").driver
    return (
        jit.JITFunction.run,
        jit.JITFunction.__getitem__,
        compiler.compile,
        compiler.CompiledKernel.__init__,
        compiler.CompiledKernel._init_handles,
        driver.active,
        type(driver.active).launcher_cls,
    )
