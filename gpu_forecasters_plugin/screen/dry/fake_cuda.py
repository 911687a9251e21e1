"""Stand-ins for what torch asks of a CUDA device, on a machine without one."""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

from gpu_forecasters_plugin.forecasters.language_model.hardware import HardwareFacts
from gpu_forecasters_plugin.screen.architectures import Architecture
from gpu_forecasters_plugin.screen.dry.recorder import Recorder

__all__ = ["FakeDevice", "lend_device_guard"]

_BASE_ADDRESS = 0x7F00_0000_0000
_CUDA, _META, _GUARDS = 1, 14, 20
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


def lend_device_guard() -> bool:
    """Let torch handle tensors that claim to be on a CUDA device where there is none.

    A build without CUDA has no guard that switches the current device to CUDA, and ends the process where it needs one;
    that of a build with CUDA asks the driver. The guard of the meta device, which does nothing, is entered in its
    place.

    Returns:
        Whether there is one now.
    """
    torch: Any = importlib.import_module("torch")
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        registry = (ctypes.c_void_p * _GUARDS).in_dll(library, _REGISTRY)
    except (OSError, ValueError):
        return False
    registry[_CUDA] = registry[_META] or registry[_CUDA]
    return bool(registry[_CUDA])


class FakeDevice:
    """One CUDA device without memory: tensors on it have shapes, strides and types, and no data."""

    def __init__(self, arch: Architecture, facts: HardwareFacts | None, recorder: Recorder) -> None:
        self.arch = arch
        self.facts = facts
        self.recorder = recorder
        self.torch: Any = importlib.import_module("torch")
        fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
        self._fake = fake
        self.mode = fake.FakeTensorMode()
        self.device = self.torch.device("cuda", 0)

    def install(self) -> None:
        """Replace what would ask for the device. Not undone: the process is thrown away."""
        self._install_queries()
        self._install_streams()
        self._install_compilers()
        self._note_threads()
        # Aligned as the allocator's blocks are, so that kernels are specialised as they would be.
        self._fake.FakeTensor.data_ptr = lambda tensor: (
            _BASE_ADDRESS + tensor.storage_offset() * tensor.element_size()
        )
        self._fake.FakeTensor.record_stream = lambda tensor, stream: None
        # A build of torch with CUDA would make a real tensor before the first that is not.
        for name in ("init_gpu_context", "init_cuda_context"):
            if hasattr(self._fake, name):
                setattr(self._fake, name, lambda *device: None)
        # A list becomes a tensor on the CPU first, and a fake one from there: there is no device for a real one.
        if hasattr(self.torch._C, "_set_only_lift_cpu_tensors"):
            self.torch._C._set_only_lift_cpu_tensors(True)
        self.torch.nn.Module._apply = _replacing_parameters
        original = self.torch.Generator

        class Generator(original):  # type: ignore[misc, valid-type]
            """A generator of any device: it draws nothing here."""

            def __new__(cls, device: Any = "cpu") -> Any:
                return super().__new__(cls, device="cpu")

        self.torch.Generator = Generator

    def enter(self) -> AbstractContextManager[Any]:
        """What makes the tensors of this thread fake; to be left by ending the process."""
        self.mode.__enter__()
        _library_log(self).__enter__()
        _rewriting(self).__enter__()
        return nullcontext()

    # -- stand-ins ------------------------------------------------------------------------------------------

    def _properties(self) -> SimpleNamespace:
        arch, facts = self.arch, self.facts
        return SimpleNamespace(
            name=facts.name if facts else f"NVIDIA {arch.name}",
            major=arch.capability // 10,
            minor=arch.capability % 10,
            total_memory=(facts.memory_gb if facts else 80) * 10**9,
            multi_processor_count=facts.multiprocessors if facts else 108,
            warp_size=32,
            max_threads_per_multi_processor=arch.warps_per_sm * 32,
            max_threads_per_block=arch.threads_per_block,
            regs_per_multiprocessor=arch.registers_per_sm,
            shared_memory_per_block=48 * 1024,
            shared_memory_per_block_optin=arch.shared_per_block,
            shared_memory_per_multiprocessor=arch.shared_per_sm,
            L2_cache_size=(facts.l2_mib or 40) * 1024 * 1024 if facts else 40 * 1024 * 1024,
            is_integrated=False,
            is_multi_gpu_board=False,
        )

    def _install_queries(self) -> None:
        cuda, properties = self.torch.cuda, self._properties()
        capability = (properties.major, properties.minor)
        memory = (properties.total_memory, properties.total_memory)
        answers: dict[str, Any] = {
            "is_available": True,
            "device_count": 1,
            "current_device": 0,
            "get_device_name": properties.name,
            "get_device_capability": capability,
            "get_device_properties": properties,
            "is_initialized": True,
            "is_bf16_supported": self.arch.capability >= 80,
            "is_current_stream_capturing": False,
            "mem_get_info": memory,
            "get_arch_list": [self.arch.name],
        }
        answers |= dict.fromkeys(
            (
                "synchronize",
                "set_device",
                "empty_cache",
                "init",
                "manual_seed",
                "manual_seed_all",
                "seed",
                "ipc_collect",
            )
            + ("reset_peak_memory_stats", "reset_max_memory_allocated", "_lazy_init", "_sleep", "set_stream")
        )
        for name, answer in answers.items():
            setattr(cuda, name, _always(answer))
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            setattr(cuda, name, self._guessing(name, 0))
        for name in ("device", "device_of"):
            setattr(cuda, name, _NoOpContext)
        for name in ("range_push", "range_pop", "mark"):
            setattr(cuda.nvtx, name, _always(None))
        self.torch.version.cuda = self.torch.version.cuda or "12.8"

    def _install_streams(self) -> None:
        cuda, recorder = self.torch.cuda, self.recorder

        class Stream(_NoOpContext):
            cuda_stream, device, priority = 0, self.device, 0

            def query(self) -> bool:
                return True

        class Event(_NoOpContext):
            def query(self) -> bool:
                return True

            def elapsed_time(self, other: Any) -> float:
                recorder.stop("it asks for a time of the GPU")
                return 0.0

        stream = Stream()
        cuda.Stream = cuda.ExternalStream = Stream
        cuda.Event = Event
        cuda.CUDAGraph = _NoOpContext
        for name in ("stream", "graph"):
            setattr(cuda, name, _NoOpContext)
        for name in ("current_stream", "default_stream"):
            setattr(cuda, name, _always(stream))
        with suppress(ImportError):
            testing = importlib.import_module("triton.testing")
            for name in ("do_bench", "do_bench_cudagraph"):
                setattr(testing, name, self._benchmark)

    def _benchmark(self, function: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        function()
        self.recorder.stop("it asks for a time of the GPU")

    def _install_compilers(self) -> None:
        torch = self.torch

        def as_it_is(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            return (lambda function: function) if model is None else model

        torch.compile = as_it_is
        torch.jit.script = as_it_is

    def _note_threads(self) -> None:
        """The stand-ins are those of one thread: what another one makes of the device is not known."""
        start = threading.Thread.start

        def noted(thread: threading.Thread) -> None:
            self.recorder.guess("what a thread of its own does")
            start(thread)

        threading.Thread.start = noted  # type: ignore[assignment]

    def _guessing(self, name: str, answer: Any) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            self.recorder.guess(f"torch.cuda.{name}")
            return answer

        return ask

    def wants_data(self, error: Exception) -> bool:
        """Whether an exception means that an operation depends on what the tensors hold."""
        fake = self._fake
        return isinstance(error, fake.DataDependentOutputException | fake.DynamicOutputShapeException)

    def placed(self, value: Any) -> Any:
        """An argument, with ``cuda`` as the device that there is: the lent guard knows no current one."""
        if isinstance(value, str) and value == "cuda":
            return self.device
        if isinstance(value, int) and not isinstance(value, bool):
            return self.torch.device("cuda", value)
        if isinstance(value, self.torch.device) and value.type == "cuda" and value.index is None:
            return self.device
        return value


def _replacing_parameters(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """``torch.nn.Module._apply`` with new parameters: torch cannot swap fake ones, since it refers to them weakly."""
    torch: Any = importlib.import_module("torch")
    for child in module.children() if recurse else ():
        child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                module._parameters[name] = torch.nn.Parameter(function(parameter), parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


class _NoOpContext:
    """A class of ``torch.cuda`` whose every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _always(None)


def _rewriting(device: FakeDevice) -> Any:
    """A mode through which every call of torch's interface goes."""
    torch = device.torch
    overrides = importlib.import_module("torch.overrides")
    tensor = torch.Tensor
    unreadable = (tensor.numpy, tensor.__array__)

    class Rewriting(overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function in unreadable:
                device.recorder.stop("it reads data of a tensor")
            if function is tensor.pin_memory:
                return args[0]
            if function is tensor.cuda:
                function, args, kwargs = tensor.to, (args[0], device.device), {}
            elif function is tensor.to or "device" in kwargs:
                if function is tensor.to:
                    args = (args[0], *(device.placed(value) for value in args[1:]))
                kwargs |= {"device": device.placed(kwargs["device"])} if "device" in kwargs else {}
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if device.wants_data(error):
                    device.recorder.stop(f"it needs data ({getattr(function, '__name__', 'an operation')})")
                raise

    return Rewriting()


def _library_log(device: FakeDevice) -> Any:
    """A mode that notes the operators that a candidate leaves work to."""
    from gpu_forecasters_plugin.screen.dry.library import LibraryLog

    python_dispatch = importlib.import_module("torch.utils._python_dispatch")
    log = LibraryLog(device.recorder)

    class Log(python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if device.recorder.depth:
                log.note(operator, args, kwargs or {}, result)
            return result

    return Log()
