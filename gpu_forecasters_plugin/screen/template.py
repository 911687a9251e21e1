"""The process that has torch and triton loaded, and becomes a new, confined process for each candidate.

Loading them takes seconds; a fork takes milliseconds. It runs no candidate itself, has a single thread, and talks over
the socket that it inherits: a length and a descriptor for the answer, then the job as JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NoReturn

from gpu_forecasters_plugin.screen.jobs import ScreenJob

__all__ = ["HEADER_BYTES", "main"]

HEADER_BYTES = 8


def _load_everything() -> dict[str, str]:
    """Import what candidates and their screening need, and have it do a little of everything once."""
    torch = importlib.import_module("torch")
    importlib.import_module("triton")
    for name in ("triton.language", "triton.compiler", "triton.testing", "torch.utils.cpp_extension"):
        importlib.import_module(name)
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    for name in ("fake_cuda", "fake_triton", "library", "run"):
        importlib.import_module(f"gpu_forecasters_plugin.screen.dry.{name}")
    from gpu_forecasters_plugin.screen.dry.fake_cuda import lend_device_guard

    torch.set_num_threads(1)
    lend_device_guard()
    with fake.FakeTensorMode():
        x = torch.empty(8, 8, device="cuda")
        (torch.softmax(x @ x, -1) + x.to(torch.bfloat16).float().sum(-1, keepdim=True)).contiguous()
    return {name: version(name) for name in ("torch", "triton")}


def _receive(connection: socket.socket) -> tuple[Mapping[str, Any], int] | None:
    """A job and the descriptor that its answer goes to; ``None`` at the end."""
    header, descriptors, _, _ = socket.recv_fds(connection, HEADER_BYTES, 1)
    if len(header) < HEADER_BYTES or not descriptors:
        return None
    left = int.from_bytes(header, "big")
    pieces = []
    while left:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        left -= len(piece)
    return json.loads(b"".join(pieces)), descriptors[0]


def _answer(job: ScreenJob, scratch: str, reply: int) -> dict[str, Any]:
    """Screen one candidate, in a process of its own that this one watches."""
    from gpu_forecasters_plugin.screen.dry.run import dry_run
    from gpu_forecasters_plugin.screen.sandbox import SandboxLimits, supervise
    from gpu_forecasters_plugin.screen.verdict import Verdict, undecided

    limits = SandboxLimits(seconds=job.seconds, memory_mib=job.memory_mib)

    def work() -> dict[str, Any]:
        os.close(reply)  # out of the candidate's reach
        return dry_run(job, scratch).to_json()

    ending = supervise(work, limits, scratch)
    try:
        verdict = None if ending.answer is None else Verdict.from_json(ending.answer)
    except (ValueError, KeyError, TypeError):
        verdict = undecided("its verdict cannot be read")
    if verdict is None:
        verdict = undecided(f"the candidate did not behave: {ending.problem}")
    return replace(verdict, sandbox=ending.held, cpu_seconds=ending.cpu_seconds).to_json()


def _become_supervisor(job: Mapping[str, Any], reply: int, parent: int) -> NoReturn:
    from gpu_forecasters_plugin.screen.sandbox import linux

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # it ended before it was asked to take this one with it
        os.write(reply, f"{os.getpid()}\n".encode())
        fields = dict(job)
        scratch = fields.pop("scratch")
        answer = _answer(ScreenJob(**fields), scratch, reply)
        data = memoryview(json.dumps(answer).encode())
        while data:
            data = data[os.write(reply, data) :]
    finally:
        os._exit(0)


def main(descriptor: int) -> None:
    """Serve jobs until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    try:
        ready: dict[str, Any] = _load_everything()
    except ImportError as error:
        ready = {"problem": f"{error.name or error} is not installed"}
    connection.sendall(json.dumps(ready).encode() + b"\n")
    if "problem" in ready:
        return
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for a supervisor
    here = os.getpid()
    while (received := _receive(connection)) is not None:
        job, reply = received
        if os.fork() == 0:
            connection.close()
            _become_supervisor(job, reply, here)
        os.close(reply)


if __name__ == "__main__":
    main(int(sys.argv[1]))
