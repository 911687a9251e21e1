"""What a comparison starts ends with it, whatever ends the comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers import ended, wait_until, write_pool

from gpu_forecasters_plugin.guardian import guarded_process

# A child, a grandchild in a session of its own, and one whose parent has gone.
FAMILY = """
import json, os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeper)
apart = subprocess.Popen(sleeper, start_new_session=True)
if os.fork() == 0:
    orphan = subprocess.Popen(sleeper, start_new_session=True)
    with open(sys.argv[1], "w") as file:
        json.dump([os.getppid(), child.pid, apart.pid, orphan.pid], file)
    os._exit(0)
os.wait()
open(sys.argv[1] + ".complete", "w").close()
while not os.path.exists(sys.argv[1] + ".leave"):
    time.sleep(0.01)
sys.exit(7)
"""


def family(folder: Path) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(folder / "pids")]


def members(folder: Path) -> list[psutil.Process]:
    """All that :func:`family` has started, once it has."""
    wait_until((folder / "pids.complete").exists)
    pids = json.loads((folder / "pids").read_text())
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def test_the_exit_code_is_the_commands_and_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    with guarded_process(family(tmp_path)) as process:
        left = members(tmp_path)
        (tmp_path / "pids.leave").touch()
        assert process.wait() == 7
    assert len(left) == 4 and ended(left)


def test_the_end_of_the_block_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), guarded_process(family(tmp_path)):
        left = members(tmp_path)
        raise KeyboardInterrupt
    assert len(left) == 4 and ended(left)


def test_a_kill_of_whoever_asked_ends_everything(tmp_path: Path) -> None:
    asking = f"""
from gpu_forecasters_plugin.guardian import guarded_process
with guarded_process({family(tmp_path)!r}) as process:
    process.wait()
"""
    with subprocess.Popen([sys.executable, "-c", asking]) as asker:
        left = members(tmp_path)
        asker.kill()
    assert len(left) == 4
    wait_until(lambda: ended(left))


@pytest.fixture
def comparison(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A comparison through a real host."""
    pool = write_pool(tmp_path / "pool.jsonl")
    command = [sys.executable, "-m", "gpu_forecasters_plugin", "compare", "--pool", str(pool)]
    command += ["--host", request.param, "--budget", "48", "--seeds", "2", "--arms", "surrogate"]
    with subprocess.Popen([*command, "--out", str(tmp_path / "out")], stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("comparison", ["openevolve", "shinka"], indirect=True)
def test_a_search_through_a_real_host_ends_with_its_killed_comparison(
    tmp_path: Path, comparison: subprocess.Popen[bytes]
) -> None:
    pytest.importorskip("openevolve")
    pytest.importorskip("shinka")
    log = tmp_path / "out" / "runs" / "baseline-0" / "measurements.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size, 240)
    started = psutil.Process(comparison.pid).children(recursive=True)
    assert len(started) >= 2
    comparison.kill()
    wait_until(lambda: ended(started))
