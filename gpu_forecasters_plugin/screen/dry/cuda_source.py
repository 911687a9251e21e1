"""CUDA C++ in a candidate: its device code is compiled; calls into it end the dry run."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.screen.architectures import Architecture
from gpu_forecasters_plugin.screen.binaries import binary_tool, kernel_resources
from gpu_forecasters_plugin.screen.dry.cupy_kernels import stand_in_for_cupy
from gpu_forecasters_plugin.screen.dry.recorder import Recorder
from gpu_forecasters_plugin.screen.profile import LaunchProfile
from gpu_forecasters_plugin.screen.verdict import Fault, Verdict, invalid, undecided

__all__ = ["CudaCompileError", "CudaSources", "assembler_refused", "compile_cuda", "nvcc_verdict"]

_HEADERS = Path(__file__).parent.parent / "cuda_headers"
_ERROR = re.compile(
    r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<text>.*)$", re.MULTILINE
)
_ASSEMBLER_ENDED = re.compile(
    r"raised SIG|code (?:-\d+|1[2-9]\d)\b|due to signal|memory alloc|out of memory|bad_alloc|no space left|cannot open|"
    r"cannot allocate",
    re.IGNORECASE,
)
_SYNTAX = re.compile(
    r"expected an? |unrecognized token|missing closing|this declaration has no storage class"
)
_MISSING_FILE = re.compile(
    r"cannot open source file|No such file|is not defined in|unsupported GNU version|Unsupported gpu"
)
_DEVICE_FUNCTION = re.compile(r"__(?:global|device)__[^;{]*\{")
_TIMEOUT_S = 60.0
_IN_CUDA = "it calls compiled CUDA code"


class CudaCompileError(RuntimeError):
    """CUDA C++ that ``nvcc`` refuses.

    Attributes:
        certain: whether it would be refused on a GPU machine too, with all headers at hand.
        text: the line of the CUDA source that it refuses; empty where it names none.
    """

    def __init__(self, message: str, *, certain: bool, text: str = "") -> None:
        super().__init__(message)
        self.certain = certain
        self.text = text


def compile_cuda(code: str, arch: Architecture, options: Sequence[str] = ()) -> bytes:
    """The cubin of the device code in a source.

    Headers of torch are replaced by small stand-ins, since the real ones take most of a minute: host code that needs
    more of them cannot be judged, device code can.

    Raises:
        CudaCompileError: ``nvcc`` refused it.
        OSError, subprocess.SubprocessError: there is no ``nvcc``, or it did not end.
    """
    nvcc = binary_tool("nvcc")
    if nvcc is None:
        raise FileNotFoundError("there is no nvcc here")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "candidate.cu"), Path(folder, "candidate.cubin")
        source.write_text(code, errors="surrogateescape")
        kept = [
            option
            for option in options
            if option.startswith(("-D", "-std", "--use_fast", "-use_fast", "--extended"))
        ]
        if not any(option.startswith("-std") for option in kept):
            kept.append("-std=c++17")
        command = [nvcc, "-cubin", f"-arch={arch.name}", "-w", "-I", str(_HEADERS), *kept]
        command += [str(source), "-o", str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
        if done.returncode != 0:
            raise _refusal(done.stderr + done.stdout, code)
        return binary.read_bytes() if binary.exists() else b""


def assembler_refused(output: str) -> bool:
    """Whether ptxas itself found fault with a kernel; not when it was killed, or had no memory or space."""
    return "ptxas" in output and not _ASSEMBLER_ENDED.search(output)


def _refusal(output: str, code: str) -> CudaCompileError:
    """What a failed ``nvcc`` says: certain where the fault lies in device code, or in the grammar."""
    errors = list(_ERROR.finditer(output))
    own = [error for error in errors if error["file"].endswith("candidate.cu")]
    if not own:
        return CudaCompileError(
            output.strip() or "nvcc failed and said nothing", certain=assembler_refused(output)
        )
    spans = _device_spans(code)
    for error in own:
        line = int(error["line"])
        in_device = any(first <= line <= last for first, last in spans)
        if not _MISSING_FILE.search(error["text"]) and (in_device or _SYNTAX.search(error["text"])):
            text = _line(code, line)
            return CudaCompileError(f"{text}\nnvcc: {error['text']}", certain=True, text=text)
    text = _line(code, int(own[0]["line"]))
    return CudaCompileError(f"{text}\nnvcc, in host code: {own[0]['text']}", certain=False, text=text)


def _line(code: str, number: int) -> str:
    lines = code.splitlines()
    return lines[number - 1].strip() if number <= len(lines) else ""


def _device_spans(code: str) -> list[tuple[int, int]]:
    """First and last line of each function that runs on the device."""
    spans = []
    for match in _DEVICE_FUNCTION.finditer(code):
        depth, place = 1, match.end()
        while place < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[place], 0)
            place += 1
        spans.append((code.count("\n", 0, match.start()) + 1, code.count("\n", 0, place) + 1))
    return spans


def nvcc_verdict(error: subprocess.CalledProcessError) -> Verdict:
    """On a compiler that the candidate called itself."""
    command = error.cmd if isinstance(error.cmd, list | tuple) else str(error.cmd).split()
    if not command or os.path.basename(str(command[0])) != "nvcc":
        return undecided(f"CalledProcessError: {error}")
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
    )
    found = _ERROR.search(done.stderr + done.stdout)
    if done.returncode == 0 or found is None or _MISSING_FILE.search(found["text"]):
        return undecided(f"CalledProcessError: {error}")
    return invalid(Fault.COMPILE, f"nvcc: {found['text']} (line {found['line']} of the CUDA source)")


class CudaSources:
    """Takes the place of what compiles and loads CUDA C++ from Python."""

    def __init__(self, arch: Architecture, recorder: Recorder) -> None:
        self._arch = arch
        self._recorder = recorder

    def install(self) -> None:
        """Replace torch's compilers of extensions, and the loading of libraries that the candidate built."""
        extension: Any = importlib.import_module("torch.utils.cpp_extension")
        extension.load_inline = self.load_inline
        extension.load = self.load
        cuda: Any = importlib.import_module("torch.cuda")
        cuda._compile_kernel = self.compile_kernel
        stand_in_for_cupy(self._recorder, self._compile_at_run_time)
        self._install_libraries()

    def load_inline(
        self, name: str, cpp_sources: Any, cuda_sources: Any = None, functions: Any = None, **more: Any
    ) -> Any:
        """torch.utils.cpp_extension.load_inline."""
        parts = [_texts(cuda_sources)] if cuda_sources else []
        host = _texts(cpp_sources)
        code = "\n".join([*(["#include <torch/extension.h>"] if parts else []), *parts])
        if parts:
            self._compile(code, more.get("extra_cuda_cflags") or ())
        elif "__global__" in host:
            self._compile(host, ())
        return _Extension(name, functions, f"{host}\n{code}", self._recorder)

    def load(self, name: str, sources: Any, *positional: Any, **more: Any) -> Any:
        """torch.utils.cpp_extension.load."""
        paths = [Path(path) for path in ([sources] if isinstance(sources, str) else sources)]
        for path in paths:
            if path.suffix == ".cu":
                self._compile(path.read_text(), more.get("extra_cuda_cflags") or ())
        return _Extension(name, None, "\n".join(path.read_text() for path in paths), self._recorder)

    def compile_kernel(self, source: str, name: str, *positional: Any, **more: Any) -> Any:
        """torch.cuda._compile_kernel."""
        text = source if "extern" in source else f'extern "C" {source}'
        self._compile_at_run_time(text, ())
        if not re.search(rf"__global__[^;{{]*\b{re.escape(name)}\s*\(", source):
            raise CudaCompileError(f"no kernel {name!r} in the source", certain=True)
        return self._called

    def _compile_at_run_time(self, text: str, options: Sequence[str]) -> None:
        # NVRTC knows the fixed-width integers without a header, and warp-wide functions as nvcc does.
        self._compile("#include <cstdint>\n" + text, options)

    def _called(self, *args: Any, **kwargs: Any) -> None:
        self._recorder.stop(_IN_CUDA)

    def _compile(self, code: str, options: Sequence[str]) -> None:
        binary = compile_cuda(code, self._arch, options)
        if binary:
            self.note(binary, ".cubin")

    def note(self, binary: bytes, suffix: str) -> None:
        """Note the kernels of a binary; how they are launched is out of sight."""
        digest = hashlib.sha256(binary).hexdigest()
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(binary)
            file.flush()
            kernels = kernel_resources(Path(file.name), self._arch.capability)
        if suffix == ".cubin":
            self._recorder.binaries[digest] = binary
        for kernel in kernels:
            self._recorder.launches.setdefault(
                (digest, kernel.name),
                LaunchProfile(
                    kernel=kernel.name,
                    language="cuda",
                    count=0,
                    grid=None,
                    threads=None,
                    registers=kernel.registers,
                    spill_bytes=kernel.local_bytes,
                    static_shared_bytes=kernel.static_shared_bytes,
                    dynamic_shared_bytes=0,
                ),
            )

    def _install_libraries(self) -> None:
        """Libraries in the scratch folder are the candidate's; all others are loaded as ever."""
        original: Any = ctypes.CDLL
        scratch = os.path.realpath(tempfile.gettempdir())
        sources = self

        class Library(original):  # type: ignore[misc]
            def __init__(self, name: Any, *args: Any, **kwargs: Any) -> None:
                super().__init__(name, *args, **kwargs)
                path = os.path.realpath(name) if isinstance(name, str | os.PathLike) else ""
                self._is_built_here = path.startswith(scratch + os.sep)
                if self._is_built_here:
                    sources.note(Path(path).read_bytes(), ".so")

            def __getattr__(self, name: str) -> Any:
                function = super().__getattr__(name)  # raises for a name that is not in it
                return (
                    _LibraryFunction(sources._recorder) if self.__dict__.get("_is_built_here") else function
                )

            def __getitem__(self, name: Any) -> Any:
                function = super().__getitem__(name)
                return (
                    _LibraryFunction(sources._recorder) if self.__dict__.get("_is_built_here") else function
                )

        loader: Any = ctypes
        loader.CDLL = Library
        loader.cdll = ctypes.LibraryLoader(Library)


class _LibraryFunction:
    """A function of a library that the candidate built: its types can be set, a call ends the dry run."""

    def __init__(self, recorder: Recorder) -> None:
        self.argtypes: Any = None
        self.restype: Any = None
        self._stop = recorder.stop

    def __call__(self, *args: Any) -> None:
        self._stop(_IN_CUDA)


class _Extension:
    """A compiled extension: it has the functions that it was asked for, and none of them can be run."""

    def __init__(self, name: str, functions: Any, text: str, recorder: Recorder) -> None:
        self.__name__ = name
        self._functions = [functions] if isinstance(functions, str) else list(functions or ())
        self._text = text
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = self._functions or re.findall(r"""\bdef\(\s*["'](\w+)["']""", self._text)
        if known and name not in known:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return lambda *args, **kwargs: self._recorder.stop(_IN_CUDA)


def _texts(sources: Any) -> str:
    return sources if isinstance(sources, str) else "\n".join(sources or ())
