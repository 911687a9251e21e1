"""The processes that measure: as many as the user lets measure at once, started in the background."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil

from gpu_forecasters_openevolve import evaluator_process as protocol
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.ledger import Worker

__all__ = [
    "EvaluatorDied",
    "EvaluatorPool",
    "EvaluatorProcess",
    "EvaluatorTimeout",
    "EvaluatorsClosed",
    "one_started_ahead",
]

_LOAD_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 5.0
_SLICE_S = 0.5


class EvaluatorDied(Exception):
    """The evaluator ended its process; carries the exit code."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"evaluator ended its process (exit code {exit_code})")
        self.exit_code = exit_code


class EvaluatorTimeout(Exception):
    """The evaluator ran out of time and was ended."""


class EvaluatorsClosed(Exception):
    """The run has ended: nobody measures any more."""


class EvaluatorProcess:
    """One process that calls the user's evaluator, once it has loaded it. Used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-c",
            "import sys; from gpu_forecasters_openevolve.evaluator_process import main; main(int(sys.argv[1]))",
            str(theirs.fileno()),
        ]
        # Its own session: Ctrl-C reaches the host alone, and a time-out ends what the evaluator started too.
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self._connection = Connection(ours.detach())
        self.worker = self._identity()

    def load(self, request: protocol.LoadRequest) -> protocol.EvaluatorInfo:
        """Load the evaluator.

        Raises:
            HostError: the evaluator file cannot be loaded; this process has ended.
        """
        try:
            self._connection.send(request)
            info: protocol.EvaluatorInfo = self._receive(_LOAD_TIMEOUT_S)
        except (EvaluatorDied, EvaluatorTimeout, BrokenPipeError) as error:
            self.kill()
            raise HostError(f"evaluator {request.evaluator_path} cannot be loaded: {error}") from None
        except BaseException:  # Ctrl-C: loading may take minutes
            self.kill()
            raise
        if info.problem is not None:
            self.stop()
            raise HostError(f"evaluator {request.evaluator_path} cannot be loaded: {info.problem}")
        return info

    def _identity(self) -> Worker:
        started = psutil.Process(self._process.pid).create_time()
        return Worker(socket.gethostname(), self._process.pid, started)

    def call(self, request: protocol.CallRequest, timeout_s: float) -> protocol.CallReply:
        """Call the evaluator.

        Raises:
            EvaluatorDied: it ended its process.
            EvaluatorTimeout: it ran longer than ``timeout_s`` seconds.
        """
        try:
            self._connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise EvaluatorDied(self._process.wait()) from None
        reply: protocol.CallReply = self._receive(timeout_s)
        return reply

    def _receive(self, timeout_s: float) -> Any:
        try:
            deadline = time.monotonic() + timeout_s
            # In slices: children of a dead evaluator may hold its end of the connection open.
            while not self._connection.poll(min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
                if not self.alive and not self._connection.poll(0):
                    raise EOFError
                if time.monotonic() >= deadline:
                    self.kill()
                    raise EvaluatorTimeout(f"no answer within {timeout_s:.0f} s")
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise EvaluatorDied(self._process.wait()) from None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it and everything that it started, at once; from any thread, whoever waits for an answer."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def hang_up(self) -> None:
        """Let it end by itself: no further call comes."""
        self._connection.close()

    def stop(self) -> None:
        """Let it end by itself, and end it if it does not."""
        self.hang_up()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


_started_ahead: list[EvaluatorProcess] = []


@contextmanager
def one_started_ahead() -> Iterator[None]:
    """Start a process now that a pool of this block takes as its first: it gets ready while the host is loaded."""
    process = EvaluatorProcess()
    _started_ahead.append(process)
    try:
        yield
    finally:
        if process in _started_ahead:
            _started_ahead.remove(process)
            process.kill()


class EvaluatorPool:
    """At most ``size`` evaluators at once. Thread-safe."""

    def __init__(self, load: protocol.LoadRequest, size: int) -> None:
        """Start the first one, to learn what the evaluator file defines, and the others in the background.

        Raises:
            HostError: the evaluator file cannot be loaded.
        """
        self._load = load
        self._size = size
        self._changed = threading.Condition()
        first = _started_ahead.pop() if _started_ahead else EvaluatorProcess()
        self.info = first.load(load)
        self._idle: list[EvaluatorProcess] = [first]
        self._busy: set[EvaluatorProcess] = set()
        """Those that start or measure."""
        self._closed = False
        for _ in range(size - 1):
            threading.Thread(target=self._get_ready, args=(self._start(),), daemon=True).start()

    def _start(self) -> EvaluatorProcess:
        process = EvaluatorProcess()
        with self._changed:
            self._busy.add(process)
        return process

    def _get_ready(self, process: EvaluatorProcess) -> None:
        # If it cannot, its place is free again, and the call that needs it finds out why.
        with suppress(HostError):
            process.load(self._load)
        self.release(process)

    @property
    def has_room(self) -> bool:
        """Whether a call could begin at once."""
        with self._changed:
            return bool(self._idle) or self._may_start()

    def _may_start(self) -> bool:
        return len(self._idle) + len(self._busy) < self._size

    def acquire(self, preferred: EvaluatorProcess | None = None) -> EvaluatorProcess:
        """An idle evaluator; waits for one, and for the preferred one as long as it lives.

        Raises:
            HostError: a new one had to be started, and cannot load the evaluator file.
            EvaluatorsClosed: this pool was closed, maybe meanwhile.
        """
        with self._changed:
            while True:
                if self._closed:
                    raise EvaluatorsClosed
                if preferred in self._idle or (preferred not in self._busy and self._idle):
                    found = preferred if preferred in self._idle else self._idle[-1]
                    assert found is not None
                    self._idle.remove(found)
                    self._busy.add(found)
                    return found
                if preferred not in self._busy and self._may_start():
                    started = self._start()
                    break
                self._changed.wait(1.0)
        try:
            started.load(self._load)
        except BaseException as error:
            self.release(started)
            if self._closed and isinstance(error, HostError):
                raise EvaluatorsClosed from None  # it was ended with all others
            raise
        return started

    def release(self, evaluator: EvaluatorProcess) -> None:
        """Give one back; a dead one leaves its place to a new one."""
        with self._changed:
            self._busy.discard(evaluator)
            if evaluator.alive:
                self._idle.append(evaluator)
            else:
                evaluator.hang_up()
            self._changed.notify_all()

    def close(self, grace_s: float = 0.0) -> None:
        """End all of them, and start no further one; those that measure get ``grace_s`` seconds to finish."""
        deadline = time.monotonic() + grace_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._busy and time.monotonic() < deadline:
                self._changed.wait(0.1)
            idle, busy = self._idle, list(self._busy)
            self._idle, self._busy = [], set()
        for evaluator in busy:
            evaluator.kill()
        # All at once: each takes a moment to end.
        for evaluator in idle:
            evaluator.hang_up()
        for evaluator in idle:
            evaluator.stop()
