"""Watches one candidate's process: reads its answer, ends it and all that it started, says how it went."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import psutil

from gpu_forecasters_plugin.screen.sandbox import linux
from gpu_forecasters_plugin.screen.sandbox.confinement import PROTECTIONS, Confinement, SandboxLimits

__all__ = ["Ending", "supervise"]

_POLL_S = 0.05
_MIB = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Ending:
    """How a supervised process ended.

    Attributes:
        answer: what it said, if that was one well-formed answer; ``None`` otherwise.
        problem: why there is none, or what it did on the side; empty where all went well.
        held: the protections that held.
        cpu_seconds: processor time of it and of all that it waited for.
    """

    answer: dict[str, Any] | None
    problem: str
    held: tuple[str, ...]
    cpu_seconds: float = 0.0


def supervise(work: Callable[[], dict[str, Any]], limits: SandboxLimits, scratch: str) -> Ending:
    """Run a function in a confined process of its own, and everything that it starts only as long as that.

    To be called in a process with a single thread, made for this call: it does not get its rights back.

    Args:
        work: what to run; its answer must be JSON of at most ``limits.answer_bytes``.
        limits: what it may use.
        scratch: an empty folder, the only one that it can write to where namespaces are allowed.
    """
    confinement = Confinement(limits, scratch)
    confinement.before_fork()
    reading, writing = os.pipe()
    # The answer begins with a word that code that writes into whatever descriptor it finds does not know.
    token = os.urandom(16).hex().encode()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_candidate(work, confinement, writing, token)
    os.close(writing)
    watch = _Watch(child, reading, limits, confinement)
    try:
        problem = watch.until_it_ends()
    finally:
        watch.end_all()
    ending = _ending(watch.data, token, problem or watch.exit_problem(), confinement)
    return replace(ending, cpu_seconds=watch.cpu_seconds)


def _be_the_candidate(
    work: Callable[[], dict[str, Any]], confinement: Confinement, writing: int, token: bytes
) -> NoReturn:
    try:
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        if not _is_read(writing):
            os._exit(0)  # its parent ended before it asked to end with it
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        confinement.after_fork()
        answer = work()
        answer["held"] = confinement.held
        data = memoryview(token + json.dumps(answer).encode() + b"\n")
        while data:
            data = data[os.write(writing, data) :]
    finally:
        # Nothing of the parent's is to be flushed or cleaned up here.
        os._exit(0)


def _is_read(writing: int) -> bool:
    """Whether somebody holds the other end of a pipe."""
    poller = select.poll()
    poller.register(writing, 0)
    return not poller.poll(0)


def _ending(data: bytes, token: bytes, problem: str, confinement: Confinement) -> Ending:
    before, found, after = data.partition(token)
    held = tuple(confinement.held)
    if not found:
        return Ending(None, problem or "it ended without an answer", held)
    try:
        answer = json.loads(after)
        said = answer.pop("held")
        held = tuple(name for name in PROTECTIONS if name in said)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Ending(None, problem or "its answer cannot be read", held)
    if before:
        problem = problem or "it wrote into the channel of its answer"
    return Ending(answer if not problem else None, problem, held)


class _Watch:
    """The candidate's process and its descendants, seen from their parent."""

    def __init__(self, child: int, reading: int, limits: SandboxLimits, confinement: Confinement) -> None:
        self._child = child
        self._reading = reading
        self._limits = limits
        self._confinement = confinement
        self._status: int | None = None
        self._closed = False
        self.data = b""
        self.cpu_seconds = 0.0
        os.set_blocking(reading, False)

    def until_it_ends(self) -> str:
        """Read and watch; why it has to be ended, empty where it ended by itself."""
        deadline = time.monotonic() + self._limits.seconds
        ended = os.pidfd_open(self._child)
        try:
            while True:
                open_ends = [ended] if self._closed else [ended, self._reading]
                ready, _, _ = select.select(open_ends, [], [], _POLL_S)
                if self._reading in ready and not self._read():
                    return "its answer is too long"
                if ended in ready:
                    self._read()
                    return ""
                if time.monotonic() >= deadline:
                    return f"it took longer than {self._limits.seconds:g} s"
                if problem := self._excess():
                    return problem
        finally:
            os.close(ended)

    def _read(self) -> bool:
        with suppress(BlockingIOError):
            while piece := os.read(self._reading, 65536):
                self.data += piece
                if len(self.data) > self._limits.answer_bytes:
                    return False
            self._closed = True
        return True

    def _excess(self) -> str:
        count, memory = self._use()
        if count > self._limits.processes:
            return f"it had more than {self._limits.processes} processes"
        if memory > self._limits.memory_mib * _MIB:
            return f"it used more than {self._limits.memory_mib} MiB of memory"
        return ""

    def _use(self) -> tuple[int, int]:
        """Its processes, and their resident memory in bytes."""
        if (
            self._confinement.has_namespaces
            and os.path.exists("/proc/1")
            and not os.path.exists("/proc/self")
        ):
            return _use_in_namespace()
        count = memory = 0
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(self._child)
            for process in (child, *child.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    count, memory = count + 1, memory + process.memory_info().rss
        return count, memory

    def end_all(self) -> None:
        """End it and everything that it started; returns when all of it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        _, self._status, use = os.wait4(self._child, 0)
        self.cpu_seconds = use.ru_utime + use.ru_stime
        if self._confinement.has_namespaces:
            return  # with the first process of a namespace the kernel ends all others
        linux.end_descendants()

    def exit_problem(self) -> str:
        """What its exit says; empty for exit code 0."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        if code == 0:
            return ""
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"it ended its process ({name})"


def _use_in_namespace() -> tuple[int, int]:
    """Of the processes in the namespace whose ``/proc`` is mounted here."""
    numbers = [name for name in os.listdir("/proc") if name.isdigit()]
    memory = 0
    for number in numbers:
        with suppress(OSError, ValueError):
            with open(f"/proc/{number}/statm") as file:
                memory += int(file.read().split()[1]) * _PAGE
    return len(numbers), memory
