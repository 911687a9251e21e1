"""The processes that measure: as many as the user lets measure at once, started when first needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import psutil

# The child is "__main__" there: its messages must be pickled under their importable name.
from gpu_forecasters_openevolve import evaluator_process as protocol
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.ledger import Worker

__all__ = ["EvaluatorDied", "EvaluatorPool", "EvaluatorProcess", "EvaluatorTimeout"]

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


class EvaluatorProcess:
    """One process that has the user's evaluator loaded. Used by one thread at a time."""

    def __init__(self, load: protocol.LoadRequest) -> None:
        """Start it and load the evaluator.

        Raises:
            HostError: the evaluator file cannot be loaded.
        """
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
        try:
            self._connection.send(load)
            self.info: protocol.EvaluatorInfo = self._receive(_LOAD_TIMEOUT_S)
        except (EvaluatorDied, EvaluatorTimeout, BrokenPipeError) as error:
            self.kill()
            raise HostError(f"evaluator {load.evaluator_path} cannot be loaded: {error}") from None
        if self.info.problem is not None:
            self.stop()
            raise HostError(f"evaluator {load.evaluator_path} cannot be loaded: {self.info.problem}")

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
        """End it and everything that it started, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._connection.close()

    def stop(self) -> None:
        """Let it end by itself, and end it if it does not."""
        self._connection.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class EvaluatorPool:
    """At most ``size`` evaluators at once. Thread-safe."""

    def __init__(self, load: protocol.LoadRequest, size: int) -> None:
        """Start the first one, to learn what the evaluator file defines.

        Raises:
            HostError: the evaluator file cannot be loaded.
        """
        self._load = load
        self._size = size
        self._changed = threading.Condition()
        first = EvaluatorProcess(load)
        self.info = first.info
        self._idle: list[EvaluatorProcess] = [first]
        self._busy: set[EvaluatorProcess] = set()
        self._starting = 0

    @property
    def has_room(self) -> bool:
        """Whether a call could begin at once."""
        with self._changed:
            return bool(self._idle) or self._may_start()

    def _may_start(self) -> bool:
        return len(self._idle) + len(self._busy) + self._starting < self._size

    def acquire(self, preferred: EvaluatorProcess | None = None) -> EvaluatorProcess:
        """An idle evaluator; waits for one, and for the preferred one as long as it lives."""
        with self._changed:
            while True:
                if preferred in self._idle or (preferred not in self._busy and self._idle):
                    found = preferred if preferred in self._idle else self._idle[-1]
                    assert found is not None
                    self._idle.remove(found)
                    self._busy.add(found)
                    return found
                if preferred not in self._busy and self._may_start():
                    self._starting += 1
                    break
                self._changed.wait(1.0)
        try:
            started = EvaluatorProcess(self._load)
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()
        with self._changed:
            self._busy.add(started)
        return started

    def release(self, evaluator: EvaluatorProcess) -> None:
        """Give one back; a dead one leaves its place to a new one."""
        with self._changed:
            self._busy.discard(evaluator)
            if evaluator.alive:
                self._idle.append(evaluator)
            self._changed.notify_all()

    def close(self, grace_s: float = 0.0) -> None:
        """End all of them; those that measure get ``grace_s`` seconds to finish."""
        deadline = time.monotonic() + grace_s
        with self._changed:
            while self._busy and time.monotonic() < deadline:
                self._changed.wait(0.1)
            idle, busy = self._idle, list(self._busy)
            self._idle, self._busy = [], set()
        for evaluator in busy:
            evaluator.kill()
        for evaluator in idle:
            evaluator.stop()
