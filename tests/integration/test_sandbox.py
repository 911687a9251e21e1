"""What a candidate cannot do to the machine that screens it. Runs without torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import ended, wait_until

from gpu_forecasters_plugin.screen.sandbox import linux

HARNESS = """
import json, os, sys
from dataclasses import asdict
from gpu_forecasters_plugin.screen.sandbox import SandboxLimits, confinement, supervise

if {without_namespaces}:
    def refuse():
        raise OSError(1, "not allowed")
    confinement.linux.new_namespaces = refuse

def work():
{body}
    return {{"said": "done"}}

ending = supervise(work, SandboxLimits(**{limits}), {scratch!r})
print(json.dumps(asdict(ending)))
"""


@dataclass(frozen=True)
class Ended:
    answer: dict[str, Any] | None
    problem: str
    held: list[str]
    cpu_seconds: float


class Sandbox:
    """Runs a few lines confined, watched by a process made for it."""

    def __init__(self, folder: Path, without_namespaces: bool) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.without_namespaces = without_namespaces

    def run(self, body: str, **limits: Any) -> Ended:
        script = HARNESS.format(
            without_namespaces=self.without_namespaces,
            body=textwrap.indent(textwrap.dedent(body), "    "),
            limits={"seconds": 200.0, **limits},
            scratch=str(self.scratch),
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout, done.stderr
        return Ended(**json.loads(done.stdout))


def namespaces_allowed() -> bool:
    script = "from gpu_forecasters_plugin.screen.sandbox import linux; linux.new_namespaces()"
    return subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


NAMESPACES = namespaces_allowed()


@pytest.fixture(params=["namespaces", "without"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    if request.param == "namespaces" and not NAMESPACES:
        pytest.skip("this machine allows no namespaces")
    return Sandbox(tmp_path, request.param == "without")


@pytest.fixture
def closed(tmp_path: Path) -> Sandbox:
    if not NAMESPACES:
        pytest.skip("this machine allows no namespaces")
    return Sandbox(tmp_path, False)


def test_work_that_behaves_answers_and_says_which_protections_held(sandbox: Sandbox) -> None:
    ending = sandbox.run(f"open({str(sandbox.scratch / 'note')!r}, 'w').write('x')")
    assert ending.answer == {"said": "done"} and ending.problem == ""
    assert "system calls" in ending.held
    assert ("namespaces" in ending.held) != sandbox.without_namespaces


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("os._exit(0)", "without an answer"),
        ("os._exit(7)", "exit code 7"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("raise RuntimeError", "without an answer"),
        ("while True: pass", "longer than 1 s"),
        ("import time; time.sleep(3600)", "longer than 1 s"),
    ],
)
def test_work_that_ends_or_never_ends_is_reported(sandbox: Sandbox, body: str, problem: str) -> None:
    ending = sandbox.run(body, **({"seconds": 1.0} if "longer" in problem else {}))
    assert ending.answer is None
    assert problem in ending.problem


def command_line(process: psutil.Process) -> str:
    """Empty where the process, anybody's, has just ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def test_processes_that_it_leaves_behind_end_with_it(sandbox: Sandbox) -> None:
    body = """
    import time
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
    """
    assert sandbox.run(body).answer == {"said": "done"}
    # Its scratch folder is in its command line, and in that of whatever it has forked.
    assert ended([p for p in psutil.process_iter() if str(sandbox.scratch) in command_line(p)])


def test_it_does_not_run_when_the_process_that_watches_it_is_gone_already(tmp_path: Path) -> None:
    scratch, ran = tmp_path / "scratch", tmp_path / "ran"
    script = f"""
import os, signal, time
from gpu_forecasters_plugin.screen.sandbox import SandboxLimits, confinement, linux, supervise

def refuse():
    raise OSError(1, "not allowed")

def too_late(number):
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    in_time(number)

parent, in_time = os.getpid(), linux.die_with_parent
linux.new_namespaces, linux.die_with_parent = refuse, too_late
supervise(lambda: {{"said": open({str(ran)!r}, "w").write("x")}}, SandboxLimits(), {str(scratch)!r})
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    wait_until(lambda: ended([p for p in psutil.process_iter() if str(scratch) in command_line(p)]))
    assert not ran.exists()


def test_a_fork_bomb_is_ended(sandbox: Sandbox) -> None:
    ending = sandbox.run(
        "import time\nfor _ in range(400):\n    if os.fork() == 0: time.sleep(3600)\ntime.sleep(3600)",
        processes=32,
    )
    assert ending.answer is None and "more than 32 processes" in ending.problem


def test_it_cannot_signal_the_process_that_watches_it(sandbox: Sandbox) -> None:
    body = """
    import signal
    for number in (os.getppid(), %d):
        try:
            os.kill(number, signal.SIGKILL) if number else None
        except OSError:
            pass
    """
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert sandbox.run(body % bystander.pid).answer == {"said": "done"}
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_too_much_memory_is_refused_or_ended(sandbox: Sandbox) -> None:
    ending = sandbox.run("blocks = [bytearray(b'x' * 2**26) for _ in range(100)]", memory_mib=512)
    assert ending.answer is None and ending.problem


def test_a_file_larger_than_the_scratch_folder_is_refused(sandbox: Sandbox) -> None:
    body = """
    file = open(os.path.join(%r, 'large'), 'wb')
    try:
        for _ in range(64):
            file.write(bytes(2**20))
        file.flush()
    except OSError:
        return {"said": "refused"}
    """
    ending = sandbox.run(body % str(sandbox.scratch), scratch_mib=16)
    assert ending.answer == {"said": "refused"}


def test_it_cannot_connect_to_anybody(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = str(sandbox.outside / "socket")
        with socket.socket(socket.AF_UNIX) as local:
            local.bind(path)
            local.listen()
            body = f"""
            import socket
            for family, address in ((socket.AF_INET, {server.getsockname()!r}), (socket.AF_UNIX, {path!r})):
                try:
                    socket.socket(family).connect(address)
                except OSError:
                    continue
                return {{"said": "connected"}}
            """
            assert sandbox.run(body).answer == {"said": "done"}


def test_it_cannot_trace_mount_or_make_namespaces(sandbox: Sandbox) -> None:
    body = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    results = [
        libc.ptrace(16, os.getpid(), 0, 0),
        libc.mount(None, b"/", None, ctypes.c_ulong(0x20), None),
        libc.unshare(0x10000000),
    ]
    assert results == [-1, -1, -1], results
    """
    assert sandbox.run(body).answer == {"said": "done"}


def test_what_it_writes_into_the_channel_is_no_answer(sandbox: Sandbox) -> None:
    body = """
    for number in range(3, 64):
        try:
            os.write(number, b'{"status": "valid"}' * 10)
        except OSError:
            pass
    """
    ending = sandbox.run(body)
    assert ending.answer is None and "channel" in ending.problem


def test_an_endless_answer_is_cut_off(sandbox: Sandbox) -> None:
    body = """
    for number in range(3, 64):
        try:
            while True:
                os.write(number, bytes(65536))
        except OSError:
            pass
    """
    ending = sandbox.run(body, answer_bytes=2**20)
    assert ending.answer is None and "too long" in ending.problem


def test_it_can_write_to_its_scratch_folder_only(closed: Sandbox) -> None:
    precious = closed.outside / "precious"
    precious.write_text("kept")
    body = f"""
    open({str(closed.scratch / "own")!r}, "w").write("x")
    for path in ({str(precious)!r}, {str(closed.outside / "new")!r}, "/etc/passwd", "/proc/sys/kernel/core_pattern"):
        try:
            open(path, "a").write("x")
        except OSError:
            continue
        return {{"said": path}}
    try:
        os.remove({str(precious)!r})
    except OSError:
        pass
    """
    ending = closed.run(body)
    assert ending.answer == {"said": "done"} and "read-only files" in ending.held
    assert precious.read_text() == "kept" and os.listdir(closed.outside) == ["precious"]
    assert os.listdir(closed.scratch) == []  # its own folder went with it


def test_it_sees_no_process_but_its_own(closed: Sandbox) -> None:
    ending = closed.run('return {"said": [name for name in os.listdir("/proc") if name.isdigit()]}')
    assert "processes" in ending.held
    assert ending.answer == {"said": ["1"]}


def test_scratch_files_of_all_sizes_together_are_limited(closed: Sandbox) -> None:
    body = """
    try:
        for number in range(64):
            open(os.path.join(%r, str(number)), 'wb').write(bytes(2**20))
    except OSError:
        return {"said": "refused"}
    """
    assert closed.run(body % str(closed.scratch), scratch_mib=16).answer == {"said": "refused"}


def test_an_unknown_processor_gets_no_filter_rather_than_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        linux.forbid_calls(signals=True)
