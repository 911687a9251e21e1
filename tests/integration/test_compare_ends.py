"""How ``gpu-forecasters compare`` ends when it is not let go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers import ended, wait_until, write_pool

# Whoever runs the tests in the background may have Ctrl-C ignored.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gpu_forecasters_plugin.cli import main
main()
"""


class Comparison:
    """A long comparison in a process group of its own, with its first search finished."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        pool = write_pool(folder / "pool.jsonl")
        arguments = ["compare", "--pool", str(pool), "--host", "inprocess", "--budget", "40"]
        self.arguments = [*arguments, "--seeds", "500", "--arms", "surrogate", "--out", str(self.out)]
        self.process = self.start()
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        self.searchers = [child for child in self.children if "spawn_main" in " ".join(child.cmdline())]

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAIN, *self.arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def end(self) -> list[str]:
        """Wait for the end of all its processes; what it said last."""
        _, said = self.process.communicate(timeout=180)
        wait_until(lambda: ended(self.children))
        assert "Traceback" not in said
        return [line for line in said.splitlines() if " measurements: " not in line]

    def kept(self) -> int:
        return len(list((self.out / "unfinished").glob("*.json")))


@pytest.fixture
def comparison(tmp_path: Path) -> Iterator[Comparison]:
    going = Comparison(tmp_path)
    yield going
    if going.process.poll() is None:
        os.killpg(going.process.pid, signal.SIGKILL)
        going.process.communicate()


def test_a_second_comparison_in_the_folder_is_refused_and_ctrl_c_ends_the_first(
    comparison: Comparison,
) -> None:
    second = comparison.start()
    _, said = second.communicate(timeout=180)
    assert second.returncode == 1
    assert said.startswith("error: folder ") and said.count("\n") == 1
    assert f"in use by another run (process {comparison.process.pid})" in said

    os.killpg(comparison.process.pid, signal.SIGINT)  # as a terminal does
    assert comparison.end() == [
        "interrupted; finished searches are kept: start the same command again to go on"
    ]
    assert comparison.process.returncode == 130
    before = comparison.kept()
    assert before >= 1

    resumed = comparison.start()
    assert resumed.stderr is not None
    assert resumed.stderr.readline() == f"{40 * before}/40000 measurements: finished before\n"
    os.kill(resumed.pid, signal.SIGTERM)
    assert "terminated; finished searches are kept" in resumed.communicate(timeout=180)[1]
    assert resumed.returncode == 143


def test_a_search_that_is_killed_ends_the_comparison_with_one_line(comparison: Comparison) -> None:
    comparison.searchers[0].kill()
    (line,) = comparison.end()
    assert line.startswith("error: a process of the comparison was killed, or the machine ran out of memory")
    assert comparison.process.returncode == 1 and comparison.kept() >= 1


def test_the_searches_of_a_comparison_that_is_killed_end_with_it(comparison: Comparison) -> None:
    comparison.process.kill()
    comparison.process.communicate()
    wait_until(lambda: ended(comparison.searchers))
