"""One dry run from beginning to end, in the process that is made for it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import SubprocessError
from types import ModuleType
from typing import Any

from gpu_forecasters_plugin.screen.architectures import architecture, typical_device
from gpu_forecasters_plugin.screen.binaries import instruction_mix
from gpu_forecasters_plugin.screen.completing import completed
from gpu_forecasters_plugin.screen.dry.cuda_source import CudaSources
from gpu_forecasters_plugin.screen.dry.fake_cuda import FakeDevice
from gpu_forecasters_plugin.screen.dry.fake_triton import DryDriver, unpatched_parts
from gpu_forecasters_plugin.screen.dry.judging import judge_exception
from gpu_forecasters_plugin.screen.dry.program import watch_program
from gpu_forecasters_plugin.screen.dry.recorder import Recorder, Stop
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.profile import SourceProfile
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, invalid, undecided

__all__ = ["dry_run"]


def dry_run(job: ScreenJob, scratch: str) -> Verdict:
    """Screen a candidate. Replaces parts of torch and triton for good: to be called once per process.

    Args:
        job: the candidate.
        scratch: a folder to write to.
    """
    program = Path(scratch, "candidate.py")
    program.write_text(job.code, encoding="utf-8", errors="surrogateescape")
    _settle_in(scratch)
    arch = architecture(job.arch)
    recorder = Recorder(str(program))
    device = FakeDevice(arch, typical_device(arch, job.device), recorder)
    device.install()
    DryDriver(device).install()
    CudaSources(arch, recorder).install()
    watch_program(recorder)
    device.enter()
    recorder.enter_thread = _per_thread(device)
    before = unpatched_parts()
    try:
        verdict = _by_evaluator(job, recorder) if job.evaluator else _by_task_file(job, recorder)
    except Stop:
        verdict = None
    except BaseException as error:
        verdict = undecided(f"what calls the candidate raised {type(error).__name__}: {error}")
    if unpatched_parts() != before:
        return undecided("the candidate replaces parts of triton")
    verdict = _verdict(verdict, recorder, job.code)
    return replace(verdict, profile=_profile(recorder, job, verdict))


def _settle_in(scratch: str) -> None:
    """Everything that is written by default goes to the scratch folder."""
    os.chdir(scratch)
    tempfile.tempdir = scratch
    folders = {"HOME": scratch, "TMPDIR": scratch, "TRITON_CACHE_DIR": os.path.join(scratch, "triton")}
    folders |= {"TORCHINDUCTOR_CACHE_DIR": scratch, "XDG_CACHE_HOME": scratch, "CUDA_VISIBLE_DEVICES": ""}
    os.environ.update(folders)
    sys.dont_write_bytecode = True


def _per_thread(device: FakeDevice) -> Any:
    """Enter the fake device in each further thread that calls the candidate."""
    import threading

    entered = threading.local()
    entered.done = True

    def enter() -> None:
        if not getattr(entered, "done", False):
            entered.done = True
            device.enter()

    return enter


# -- ways to call the candidate ---------------------------------------------------------------------------------


def _load(path: str, name: str) -> ModuleType:
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _by_evaluator(job: ScreenJob, recorder: Recorder) -> Verdict | None:
    """Run the user's evaluator as its host would; a verdict only where the evaluator itself forbids one."""
    assert job.evaluator is not None
    evaluator = _load(job.evaluator, "evaluation_module")
    try:
        result = evaluator.evaluate(recorder.program, **(job.arguments or {}))
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result))
    except Stop:
        raise
    except BaseException as error:
        said = f"the evaluator raised {type(error).__name__}: {error}"
        if recorder.returned:
            recorder.stopped = recorder.stopped or said  # the candidate had done its part
        elif recorder.failure is None and not recorder.stopped and not _missing_entry(recorder):
            return undecided(said)
    return None


async def _awaited(value: Any) -> Any:
    return await value


def _by_task_file(job: ScreenJob, recorder: Recorder) -> Verdict | None:
    """Call the entry point with each of the task's inputs."""
    assert job.task_file is not None
    task = _load(job.task_file, "task_module")
    name = getattr(task, "ENTRY_POINT", "run")
    calls = list(_calls(task.make_inputs()))
    candidate = _load(recorder.program, "candidate")
    entry = vars(candidate).get(name)
    if entry is None:
        return invalid(Fault.ENTRY_POINT, f"it defines no {name!r}")
    if not callable(entry):
        return invalid(Fault.ENTRY_POINT, f"its {name!r} is a {type(entry).__name__} and cannot be called")
    call = recorder.guarded(entry)
    for arguments in calls:
        with suppress(TypeError, ValueError):
            parameters = inspect.signature(entry)
            try:
                parameters.bind(*arguments)
            except TypeError as error:
                return invalid(Fault.SIGNATURE, f"{name}{parameters}: {error}", _definition(entry))
        call(*arguments)
    return None


def _definition(function: Any) -> int | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else int(code.co_firstlineno)


def _calls(inputs: Any) -> Iterable[tuple[Any, ...]]:
    """One tuple of arguments, or a list of them."""
    return inputs if isinstance(inputs, list) else [tuple(inputs)]


# -- what came of it --------------------------------------------------------------------------------------------


def _missing_entry(recorder: Recorder) -> str | None:
    """A name that was looked for in vain, where nothing of the candidate was called."""
    return recorder.missing[0] if recorder.missing and not recorder.entered else None


def _verdict(given: Verdict | None, recorder: Recorder, code: str) -> Verdict:
    if recorder.failure is not None:
        return judge_exception(recorder.failure, recorder, code)
    if given is not None:
        return given
    if (name := _missing_entry(recorder)) is not None:
        return invalid(Fault.ENTRY_POINT, f"it defines no {name!r}")
    if not recorder.entered:
        reason = recorder.stopped or "it called nothing of the candidate"
        return undecided(f"the evaluator cannot be run dry: {reason}")
    if recorder.stopped and recorder.stopped_inside and not (recorder.launches or recorder.returned):
        return undecided(f"{recorder.stopped}, before anything was launched")
    return Verdict(Status.VALID, stopped=recorder.stopped)


def _profile(recorder: Recorder, job: ScreenJob, verdict: Verdict) -> SourceProfile | None:
    launches, library = tuple(recorder.launches.items()), tuple(recorder.library.values())
    if not launches and not library:
        return None
    found = []
    for (digest, *_), launch in launches:
        if job.disassemble and digest in recorder.binaries:
            path = Path(tempfile.gettempdir(), f"{digest[:16]}.cubin")
            path.write_bytes(recorder.binaries[digest])
            with suppress(OSError, SubprocessError):
                launch = replace(launch, instructions=instruction_mix(path, launch.kernel))
        found.append(launch)
    complete = verdict.status is Status.VALID and not (recorder.stopped and recorder.stopped_inside)
    profile = SourceProfile(job.arch, max(recorder.returned, 1), tuple(found), library, complete=complete)
    return completed(profile, job.device)
