"""Worker processes that are replaced when they die or hang."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOAD_TIMEOUT_S = 180.0
START_ATTEMPTS = 3
KILLED_FROM_OUTSIDE = {-signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM}
WORKER = "benchmarks.generators.worker"

Row = dict[str, Any]


class _Process:
    """One process that answers a line with a row."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        command = [sys.executable, "-m", WORKER, *arguments]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        self._buffer = b""

    @property
    def ended_with(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def send(self, text: str) -> None:
        """Sends a line; one that has ended meanwhile will not answer it."""
        assert self._process.stdin
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, timeout: float) -> Row | None:
        """The next row; None if the process has ended or the time is up.

        Raises:
            ValueError: The answer is no row.
        """
        assert self._process.stdout
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            wait = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], wait)
            if not ready:
                return None
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("no object")
        return row

    def gets_ready(self, setup: str) -> bool:
        """Waits until its libraries are loaded, and sets it up."""
        try:
            # It has answered already if it was a spare one and has had the time.
            if self.answer(LOAD_TIMEOUT_S) is None:
                return False
            self.send(setup)
            return self.answer(LOAD_TIMEOUT_S) is not None
        except ValueError:
            return False

    def kill(self) -> None:
        """Ends the process and what it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


class Worker:
    """Answers lines with rows, in a process that is replaced when it has died.

    Args:
        arguments: Of :mod:`.worker`.
        log: File for what the processes print.
        environment: What their environment has besides.
        spare: Another process waits with its libraries loaded, so that a replacement is there soon. It does not touch
            the GPU before it is needed.

    Attributes:
        starts: Processes that were started and got ready.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        spare: bool = False,
    ) -> None:
        self._arguments = arguments
        self._log = log
        self._environment = environment or {}
        self._keeps_spare = spare
        self._spare: _Process | None = None
        self._process: _Process | None = None
        self._setup = "go"
        self.starts = 0

    def renew(self, setup: str) -> None:
        """From now on another process answers, which is told `setup` after ``go``; the spare one, if there is one."""
        self._end()
        self._setup = f"go {setup}"

    def ask(self, line: str, timeout: float) -> Row:
        """Sends a line and returns its row; a process that dies, takes longer or answers with no row gives one as well.

        Such a row, and one after which the process is of no more use, has ``ended``. Where a signal ended the process
        that others send, such as that of the system when memory is short, the line is sent once more.

        Raises:
            RuntimeError: No process can be started.
        """
        row, code = self._ask(line, timeout)
        return self._ask(line, timeout)[0] if code in KILLED_FROM_OUTSIDE else row

    def _ask(self, line: str, timeout: float) -> tuple[Row, int | None]:
        """The row, and the exit code of a process that ended without giving one."""
        if self._process is not None and self._process.ended_with is not None:
            self._end()
        if self._process is None:
            self._start()
        assert self._process
        self._process.send(line)
        code = None
        try:
            row = self._process.answer(timeout)
        except ValueError:
            row = {"outcome": "runtime_error", "error": "the process answered with no row", "fatal": True}
        if row is None:
            code = self._process.ended_with
            row = (
                {"outcome": "timeout", "error": f"no result within {timeout:g} s"}
                if code is None
                else {"outcome": "runtime_error", "error": f"the process ended with code {code}"}
            )
            row["fatal"] = True
        if row.pop("fatal", False):
            self._end()
            row["ended"] = True
        return row, code

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _start(self) -> None:
        for attempt in range(START_ATTEMPTS):
            process = self._spare or self._new()
            self._spare = None
            if process.gets_ready(self._setup):
                self._process = process
                self.starts += 1
                if self._keeps_spare:
                    self._spare = self._new()
                return
            process.kill()
            time.sleep(attempt)
        raise RuntimeError(f"no worker process starts; see {self._log}")

    def _new(self) -> _Process:
        return _Process(self._arguments, self._environment, self._log)

    def stop(self) -> None:
        """Ends the processes."""
        self._end()
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
