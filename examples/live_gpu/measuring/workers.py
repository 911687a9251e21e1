"""Warm processes that measure: as many as are asked for, each replaced as soon as it is lost."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measuring import worker as protocol

__all__ = ["MeasuringError", "TimeLimits", "WarmWorkers"]

_ROOT = Path(__file__).resolve().parents[1]
_STARTS = 3
_START_S = 300.0
_LAST_WORDS_S = 5.0
"""How long a process that has hung up may take to say in the log why."""


class MeasuringError(Exception):
    """Nothing can be measured here: says nothing about any program."""


class TimeLimits:
    """How long a program may take, in seconds; waiting for the device is not its time.

    Attributes:
        compile_s: until it is compiled.
        run_s: on the device, for its checks and timed calls together.
    """

    def __init__(self, compile_s: float = 60.0, run_s: float = 20.0) -> None:
        self.compile_s = compile_s
        self.run_s = run_s


class _Lost(Exception):
    """A process has ended, or was ended since its time was up; carries the outcome that this means."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class _Worker:
    """One process. Used by one thread at a time."""

    def __init__(self, device: str, folder: str, tasks: Sequence[str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = self._begun(theirs.fileno(), [device, folder, *tasks], log)
            self._connection = Connection(ours.detach())
        self._numbers = itertools.count()

    @staticmethod
    def _begun(descriptor: int, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            # A session of its own: whatever a program starts ends with it.
            return subprocess.Popen(
                [sys.executable, "-m", "measuring.worker", str(descriptor), *arguments],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[descriptor],
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def next_word(self, limit_s: float | None, what: str) -> Any:
        """The next that it says.

        Raises:
            _Lost: it has ended, or says nothing in time and was ended.
        """
        try:
            if not self._connection.poll(limit_s):
                self.end()
                raise _Lost("timeout", f"not {what} within {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_S)
            self.end()
            code = self._process.returncode
            raise _Lost("runtime_error", f"the process ended with {code} before it had {what}") from None

    def measure(self, task: str, code: str, limits: TimeLimits) -> tuple[dict[str, Any], bool]:
        """What came of a program, and whether the process can take another."""
        started = time.monotonic()
        seconds: dict[str, float] = {}
        try:
            self._connection.send((next(self._numbers), task, code))
            word = self.next_word(limits.compile_s, "compiled it")
            seconds["compile_s"] = time.monotonic() - started
            if word == protocol.COMPILED:
                word = self.next_word(None, "the device")
                started = time.monotonic()
                assert word == protocol.RUNNING
                word = self.next_word(limits.run_s, "run it")
                seconds["device_s"] = time.monotonic() - started
            found, sound = word
        except ConnectionError:
            raise MeasuringError("a process that measures ended while it was idle") from None
        except _Lost as lost:
            found, sound = {"outcome": lost.outcome, "error": str(lost)}, False
        return found | {name: round(value, 3) for name, value in seconds.items()}, sound

    def end(self) -> None:
        """End it and what it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()


class WarmWorkers:
    """Measures programs, several at once: compiled side by side, run one at a time. Thread-safe."""

    def __init__(
        self, device: str, tasks: Sequence[Path], size: int, *, limits: TimeLimits, log: Path
    ) -> None:
        """Start the processes; they get ready in the background.

        Args:
            device: ``cuda`` or ``cpu``.
            tasks: the ``task.py`` of every task that programs may be of.
            size: how many processes.
            limits: for one program.
            log: file for what the processes print.
        """
        self._device = device
        self._tasks = [str(task) for task in tasks]
        self.limits = limits
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="live_gpu_")
        self._idle: queue.Queue[_Worker | MeasuringError] = queue.Queue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.replaced = 0
        """Processes that a program has ended or spoilt."""
        for _ in range(size):
            self._start_another()

    def _start_another(self) -> None:
        threading.Thread(target=self._get_ready, daemon=True).start()

    def _get_ready(self) -> None:
        for _ in range(_STARTS):
            with self._lock:
                if self._closed:
                    return
                try:
                    started = _Worker(self._device, self._folder.name, self._tasks, self._log)
                except OSError as error:  # no memory, no descriptors, a log that cannot be written
                    problem = str(error)
                    continue
                self._all.add(started)
            try:
                started.next_word(_START_S, "got ready")
            except _Lost as lost:
                problem = str(lost)
                self._all.discard(started)
            else:
                self._idle.put(started)
                return
        if not self._closed:
            self._idle.put(
                MeasuringError(f"no process that measures could be started (log: {self._log}): {problem}")
            )

    def measure(self, task: Path, code: str) -> dict[str, Any]:
        """Compile, check and time a program; waits for an idle process.

        Returns:
            ``outcome``; if that is ``ok``, ``time_us`` (geometric mean over the shapes), ``spread`` (the largest) and
            ``shapes``, and otherwise ``error``; seconds as far as it came: ``compile_s``, ``device_s``.

        Raises:
            MeasuringError: nothing can be measured here.
        """
        taken = self._idle.get()
        if isinstance(taken, MeasuringError):
            self._idle.put(taken)  # for whoever asks next
            raise taken
        try:
            found, sound = taken.measure(str(task), code, self.limits)
        except BaseException:
            self._replace(taken)
            raise
        if sound:
            self._idle.put(taken)
        else:
            self._replace(taken)
        return found

    def _replace(self, lost: _Worker) -> None:
        lost.end()
        with self._lock:
            self._all.discard(lost)
            self.replaced += 1
        self._start_another()

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for each in workers:
            each.end()
        self._folder.cleanup()
