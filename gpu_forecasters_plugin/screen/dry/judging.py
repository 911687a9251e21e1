"""From an exception that left the candidate to a verdict: only what would fail on the GPU as well is invalid."""

from __future__ import annotations

import re
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from gpu_forecasters_plugin.screen.dry.cuda_source import CudaCompileError, assembler_refused, nvcc_verdict
from gpu_forecasters_plugin.screen.dry.recorder import LaunchRefused, Recorder
from gpu_forecasters_plugin.screen.verdict import Fault, Verdict, invalid, undecided

__all__ = ["judge_exception", "line_in"]

_ELSEWHERE = {
    "apex", "bitsandbytes", "causal_conv1d", "cublas", "cuda", "cudf", "cudnn", "cupy", "cupyx", "cutlass", "deep_gemm",
    "deepspeed", "fla", "flash_attn", "flash_attn_interface", "flash_mla", "flashinfer", "hidet", "jax", "liger_kernel",
    "mamba_ssm", "numba", "nvmath", "nvtx", "pycuda", "pynvml", "quack", "rmm", "tensorrt", "thunderkittens",
    "tilelang", "torchao", "torchvision", "transformer_engine", "triton_kernels", "tvm", "vllm", "warp", "xformers",
}  # fmt: skip
"""Packages that a GPU machine may well have and this one need not."""
_OF_THIS_MACHINE = re.compile(
    r"cuda|nvidia|cudnn|cublas|not compiled|not linked|not (?:yet )?(?:implemented|supported)|unsupported|accelerator"
    r"|\bfake|\bmeta\b|no kernel image|device-side|driver|permission|read-only|NYI|internal (?:assert|error)"
    r"|not available|shared librar|cannot open|symbolic|PrimaryContext|device.?index|hooks"
    r"|new thread|allocat|out of memory|temporarily unavailable|too many open files",
    re.IGNORECASE,
)
"""What an exception says that comes of there being no GPU, of tensors without data, or of the sandbox's limits."""
_OF_THIS_VERSION = re.compile(r"(?:has|have) been removed|no longer|deprecated", re.IGNORECASE)
"""What a compiler says that a GPU machine with another version of it may accept."""
_OF_THE_CODE = (
    NameError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError,
)  # fmt: skip
_BUILDS = (
    "torch.cuda",
    "torch._C",
    "torch.backends",
    "torch.ops",
    "torch.version",
    "torch._inductor",
    "torch._dynamo",
)
"""Modules whose names differ between builds of torch."""


def judge_exception(error: BaseException, recorder: Recorder, code: str) -> Verdict:
    """What an exception says about the candidate.

    Args:
        error: what left the candidate's code.
        recorder: what the dry run had seen by then.
        code: the candidate's text.
    """
    line = line_in(error, recorder.program, code)
    if isinstance(error, SyntaxError):
        return _syntax(error, recorder, line)
    if isinstance(error, ImportError):
        return _import(error, line)
    if isinstance(error, CudaCompileError):
        where = _line_of(error.text, code) or line
        return invalid(Fault.COMPILE, str(error), where) if error.certain else undecided(str(error))
    if isinstance(error, LaunchRefused):
        return invalid(Fault.LAUNCH, str(error), line)
    triton_says = _triton(error, code, line)
    if triton_says is not None:
        doubtful = _is_a_guess(triton_says, recorder) or _OF_THIS_VERSION.search(triton_says.message)
        return undecided(triton_says.message) if doubtful else triton_says
    if isinstance(error, subprocess.CalledProcessError):
        return nvcc_verdict(error)
    return _python(error, recorder, line)


def _is_a_guess(verdict: Verdict, recorder: Recorder) -> bool:
    """A tuner's first configuration says nothing about those that nobody tried."""
    return verdict.fault is Fault.RESOURCES and bool(recorder.guesses)


def _said(error: BaseException) -> str:
    text = str(error).replace("FakeTensor", "Tensor").strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _syntax(error: SyntaxError, recorder: Recorder, line: int | None) -> Verdict:
    if error.filename not in (recorder.program, "<string>", "<unknown>") and line is None:
        return undecided(_said(error))
    return invalid(Fault.SYNTAX, _said(error), error.lineno if error.lineno and error.lineno > 0 else line)


def _import(error: ImportError, line: int | None) -> Verdict:
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        if package in _ELSEWHERE:
            return undecided(f"{_said(error)}; a GPU machine may have it")
        return invalid(Fault.IMPORT, _said(error), line)
    # A name that a package lacks; a library that cannot be loaded here says nothing.
    if error.name and "cannot import name" in str(error) and not str(error.name).startswith(_BUILDS):
        return invalid(Fault.IMPORT, _said(error), line)
    return undecided(_said(error))


def _triton(error: BaseException, code: str, line: int | None) -> Verdict | None:
    """A verdict on what triton itself refused; ``None`` for what it did not."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "CompilationError" in names:
        inner, messages = error, []
        for cause in _causes(error):
            if type(cause).__name__ == type(error).__name__ or hasattr(cause, "error_message"):
                inner = cause
            messages.append(str(cause))
        return invalid(Fault.COMPILE, "\n".join(messages), _kernel_line(inner, code) or line)
    if "OutOfResources" in names:
        return invalid(Fault.RESOURCES, str(error), line)
    if "PTXASError" in names:
        said = str(error).partition("\nRepro command:")[0].rstrip().removesuffix("\n`ptxas` stderr:")
        return invalid(Fault.COMPILE, said, line) if assembler_refused(said) else undecided(said)
    if "PassManager::run failed" in str(error) and _passed(error, "triton/compiler/"):
        return invalid(Fault.COMPILE, str(error), line)
    return None


def _kernel_line(error: BaseException, code: str) -> int | None:
    """Line of the candidate that a compilation error means: it counts from the kernel's first."""
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    number = getattr(node, "lineno", None)
    if not source or number is None:
        return None
    start = _line_of(source.strip().splitlines()[0].strip(), code)
    return None if start is None else start - 1 + int(number)


def _line_of(text: str, code: str) -> int | None:
    """Number of the first line that says that."""
    lines = enumerate(code.splitlines(), start=1) if text else ()
    return next((number for number, line in lines if line.strip() == text), None)


def _python(error: BaseException, recorder: Recorder, line: int | None) -> Verdict:
    said = _said(error)
    if isinstance(error, AttributeError) and str(getattr(error.obj, "__name__", "")).startswith(_BUILDS):
        return undecided(f"{said}; builds of torch differ in it")
    if isinstance(error, AttributeError) and _is_stand_in(error.obj):
        return undecided(f"{said}; the real one may have it")
    certain = isinstance(error, _OF_THE_CODE) and not isinstance(error, NotImplementedError | RecursionError)
    if not certain:
        return undecided(said)
    if recorder.guesses:
        return undecided(f"{said}; after a guess at {', '.join(recorder.guesses)}")
    # Torch's own words about devices: two of them in one operation are wrong everywhere.
    if "Expected all tensors to be on the same device" not in said:
        text = str(error) if isinstance(error, RuntimeError) else ""
        # The engine of backward passes has threads and streams per device, and no stand-ins.
        in_engine = isinstance(error, RuntimeError) and _passed(error, "torch/autograd/")
        if in_engine or _OF_THIS_MACHINE.search(text) or _ends_in_stand_in(error):
            return undecided(said)
    if isinstance(error, TypeError) and _raised_at_the_door(error):
        return invalid(Fault.SIGNATURE, said, line)
    return invalid(Fault.RAISES, said, line)


def _is_stand_in(value: Any) -> bool:
    """Whether it takes the place of something that has more to it."""
    kind = value if isinstance(value, type) else type(value)
    return kind is SimpleNamespace or kind.__module__.startswith("gpu_forecasters_plugin.")


def _raised_at_the_door(error: BaseException) -> bool:
    """Whether no line of the candidate ran: its arguments did not fit."""
    last = _last_frame(error)
    return last is not None and last.f_code.co_filename == _RECORDER


def _last_frame(error: BaseException) -> FrameType | None:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1] if frames else None


def _ends_in_stand_in(error: BaseException) -> bool:
    """Whether a stand-in raised it, which says nothing about the real thing."""
    last = _last_frame(error)
    folder = str(Path(__file__).parent)
    if last is None or not last.f_code.co_filename.startswith(folder):
        return False
    # The modes hand calls on: what torch says through them is its own.
    return not last.f_code.co_name.startswith("__torch_") and last.f_code.co_filename != _RECORDER


_RECORDER = str(Path(__file__).with_name("recorder.py"))


def _passed(error: BaseException, part: str) -> bool:
    return any(part in frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def line_in(error: BaseException, program: str, code: str) -> int | None:
    """The last line of the candidate that an exception passed through."""
    found: int | None = None
    own = {program, str(Path(program).resolve())}
    last_line = code.count("\n") + 1

    def is_own(frame: FrameType, number: int) -> bool:
        name = frame.f_code.co_filename
        # A program that was read and executed; triton makes functions of text too.
        is_text = name == "<string>" and "triton" not in frame.f_globals.get("__name__", "")
        return name in own or (is_text and number <= last_line)

    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_own(frame, number):
            found = number
    return found
