"""The way from here to the process that screens: starts it, hands it jobs, reads verdicts."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace

from gpu_forecasters_plugin.errors import GpuForecastersError
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.template import HEADER_BYTES
from gpu_forecasters_plugin.screen.verdict import Verdict, undecided
from gpu_forecasters_plugin.validation import SECRET_WORDS

__all__ = ["ScreenError", "Workshop"]

_START_S = 120.0
_GRACE_S = 15.0
_MODULE = "gpu_forecasters_plugin.screen.template"
_SECRET = re.compile(rf"(?:key|token|{SECRET_WORDS})$", re.IGNORECASE)


class ScreenError(GpuForecastersError):
    """Nothing can be screened here; says what to do."""


def _environment() -> dict[str, str]:
    """This process's, without keys and without what would turn compilers into something else."""
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    for name in ("TRITON_INTERPRET", "TRITON_KERNEL_OVERRIDE", "TRITON_KERNEL_DUMP", "PYTHONSTARTUP"):
        kept.pop(name, None)
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


class Workshop:
    """Screens jobs, as many at once as there are callers. Thread-safe.

    Promises: a job always comes back with a verdict, whatever its candidate does; nothing that a candidate started
    lives longer than its job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._closed = False
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Start the process, unless it runs; takes a few seconds.

        Raises:
            ScreenError: torch or triton is not installed, the process does not start, or this was closed.
        """
        with self._lock:
            if self._closed:
                raise ScreenError("the process that screens was ended")
            if self._process is not None and self._process.poll() is None:
                return
            self._hang_up()
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                )
            self._connection = ours
            said = self._greeting(ours)
            if "problem" in said:
                self._hang_up()
                raise ScreenError(f"{said['problem']}: pip install 'gpu-forecasters-plugin[screen]'")
            self.versions = said

    def _greeting(self, connection: socket.socket) -> dict[str, str]:
        connection.settimeout(_START_S)
        try:
            with connection.makefile("rb") as file:
                said: dict[str, str] = json.loads(file.readline() or b"{}")
        except (OSError, ValueError):
            said = {}
        connection.settimeout(None)
        return said or {"problem": "the process that screens does not start; torch or triton is broken here"}

    def screen(self, job: ScreenJob) -> Verdict:
        """Screen one candidate; blocks for at most its seconds and a few more.

        Raises:
            ScreenError: see :meth:`start`.
        """
        started = time.monotonic()
        scratch = tempfile.mkdtemp(prefix="gpu-forecasters-screen-")
        try:
            verdict = self._ask(job, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return replace(verdict, seconds=time.monotonic() - started)

    def _ask(self, job: ScreenJob, scratch: str) -> Verdict:
        data = json.dumps(job.to_json() | {"scratch": scratch}).encode()
        reading, writing = os.pipe()
        try:
            try:
                self.start()
                with self._lock:
                    if self._connection is None:
                        return undecided("the process that screens was ended")
                    socket.send_fds(self._connection, [len(data).to_bytes(HEADER_BYTES, "big")], [writing])
                    self._connection.sendall(data)
            except OSError as error:
                return undecided(f"the process that screens is gone: {error}")
            finally:
                os.close(writing)
            return _read_verdict(reading, job.seconds + _GRACE_S)
        finally:
            os.close(reading)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = self._connection = None

    def close(self) -> None:
        """End the process, for good; whoever waits for a verdict gets ``undecided``."""
        with self._lock:
            self._closed = True
            self._hang_up()


def _read_verdict(reading: int, seconds: float) -> Verdict:
    deadline = time.monotonic() + seconds
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            _end_supervisor(data)
            return undecided(f"no verdict within {seconds:.0f} s")
        piece = os.read(reading, 1 << 16)
        if not piece:
            break
        data += piece
    try:
        return Verdict.from_json(json.loads(data.partition(b"\n")[2]))
    except (ValueError, KeyError, TypeError):
        return undecided("the process that screens ended without a verdict")


def _end_supervisor(data: bytes) -> None:
    """End a supervisor that hangs, and with it the candidate that it watches."""
    number = data.partition(b"\n")[0]
    if number.isdigit():
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)
