"""Real OpenEvolve runs for the tests: a small task, an evaluator that logs its calls, and runs in processes.

A run starts in a process that a fork server has ready, with OpenEvolve imported: a second instead of four.
"""

from __future__ import annotations

import atexit
import faulthandler
import hashlib
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from helpers import complete_lines, ended, wait_until

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.recorded.evaluator import write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "gpu_forecasters_openevolve.runner",
        "gpu_forecasters_shinka.runner",
        "gpu_forecasters_plugin",
        "sqlalchemy.dialects.sqlite",
    ]
)

EVALUATOR = """
import hashlib, json, os, re, sys, time
from pathlib import Path

LOG = Path(__file__).with_name("calls.jsonl")
SECONDS = float(os.environ.get("TOY_SECONDS", "0"))


def log(event, path, **more):
    data = Path(path).read_bytes()
    row = dict(event=event, path=str(path), sha=hashlib.sha256(data).hexdigest(), pid=os.getpid(), **more)
    line = json.dumps(row | {"code": data.decode("utf-8", "replace"), "time": time.time()}) + "\\n"
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def time_us(path):
    numbers = re.findall(r"(?:BLOCK|num_\\w+) ?= ?(\\d+)", Path(path).read_text("utf-8", "replace"))
    return 100.0 / (1.0 + sum(int(number).bit_length() for number in numbers))


def measure(path, **more):
    log("start", path, **more)
    time.sleep(SECONDS)
    found = time_us(path)
    log("end", path)
    return {"time_us": found, "combined_score": 10.0 / found, "correct": 1.0}
"""
"""Start of an evaluator: ``measure(path)`` logs the call's start and end and answers with a made-up time."""

PLAIN = EVALUATOR + "\n\ndef evaluate(program_path):\n    return measure(program_path)\n"

HOLDING = (
    EVALUATOR
    + """

HOLD = LOG.with_name("hold")


def evaluate(program_path):
    is_reference = not LOG.exists()
    found = measure(program_path)
    if not is_reference:
        log("held", program_path)
        while HOLD.exists():
            time.sleep(0.01)
    return found
"""
)
"""Lets go of the reference, and of every other program only once the file ``hold`` beside it has gone."""


class CodeProposer(RecordedProposer):
    """A language model that answers with these programs, in this order, whatever the parent is."""

    def __init__(self, pool: RecordedPool, answers: Callable[[int], str]) -> None:
        super().__init__(ProposalGraph.from_pool(pool))
        self._answers = answers
        self._number = -1
        self.graph.find = lambda code: "any"  # type: ignore[method-assign]

    def propose(self, *arguments: Any, **more: Any) -> tuple[str, str]:
        with self._lock:
            self._number += 1
            number = self._number
        return f"answer {number}", self._answers(number)


@dataclass
class Task:
    """The files of a task in one folder."""

    folder: Path
    program: Path
    evaluator: Path
    config: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def arguments(self) -> list[str]:
        """What ``gpu-forecasters`` takes."""
        files = [str(self.program), str(self.evaluator)]
        return ["openevolve", *files, "--config", str(self.config), "--out", str(self.out)]

    @property
    def hold(self) -> Path:
        """The file for which :data:`HOLDING` waits."""
        return self.folder / "hold"

    def log(self) -> list[dict[str, Any]]:
        """The evaluator's own log, first event first."""
        return [json.loads(line) for line in complete_lines(self.folder / "calls.jsonl")]

    def calls(self, event: str = "start") -> list[dict[str, Any]]:
        """The evaluator's calls, first call first."""
        return [row for row in self.log() if row["event"] == event]

    def ledger(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the ledger, which a run may be writing, or may have left when it was killed."""
        with closing(sqlite3.connect(self.out / "ledger.sqlite3", timeout=120.0)) as connection:
            return connection.execute(query).fetchall()

    def outcomes(self) -> dict[str, str]:
        """Outcome by source key of every measurement."""
        return dict(self.ledger("select candidate_key, outcome from measurement"))

    def charges(self) -> int:
        return int(self.ledger("select count(*) from measurement")[0][0])

    def programs(self) -> Iterator[dict[str, Any]]:
        """Every program of every checkpoint that a kill has not torn."""
        for path in self.out.glob("checkpoints/*/programs/*.json"):
            with suppress(ValueError):
                yield json.loads(path.read_text())

    def best(self) -> dict[str, Any]:
        """The best program as OpenEvolve saved it, with its source."""
        info: dict[str, Any] = json.loads((self.out / "best" / "best_program_info.json").read_text())
        return info | {"code": next((self.out / "best").glob("best_program.*")).read_text()}

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def change(self, **sections: Any) -> None:
        """Merge settings into the configuration."""
        document = yaml.safe_load(self.config.read_text())
        _merge(document, sections)
        self.config.write_text(yaml.safe_dump(document))


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def write_task(
    folder: Path,
    pool: Path | str,
    api_base: str,
    *,
    evaluator: str = PLAIN,
    budget: int = 10,
    diff: bool = True,
    workers: int = 2,
    forecaster: str = "climatology",
    **sections: Any,
) -> Task:
    """A task whose configuration holds a ``surrogate:`` section; ``sections`` are merged into it."""
    files = write_openevolve_task(
        pool,
        folder,
        api_base=api_base,
        seed=3,
        iterations=60,
        diff=diff,
        workers=workers,
        checkpoint_interval=3,
        timeout=600,  # nothing is to run out of time because a machine is slow
    )
    files.evaluator.write_text(evaluator)
    task = Task(folder, files.initial_program, files.evaluator, files.config)
    task.change(surrogate={"forecaster": {"kind": forecaster}, "budget": {"measurements": budget}})
    task.change(**sections)
    return task


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    code: int | None
    stdout: str
    stderr: str


def _main(command: str, arguments: list[str], environment: dict[str, str], output: str) -> None:
    os.setsid()
    # What it starts itself is started as a command started by hand would: no fork server imports all of it again.
    multiprocessing.set_start_method(None, force=True)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(environment)
    sys.argv = [command, *arguments]
    code: int | str | None = 0
    try:
        if command == "gpu-forecasters":
            from gpu_forecasters_plugin.cli.app import main

            main()
        else:
            from openevolve.cli import main as host_main

            code = host_main()
    except SystemExit as end:
        code = end.code
    finally:
        # A process of multiprocessing skips what a program of its own would do here.
        atexit._run_exitfuncs()
        sys.stdout.flush()
    sys.exit(code)


def _session(process: psutil.Process) -> int | None:
    """Number of the session that a process is in; ``None`` when it has gone."""
    with suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


class Run:
    """A run in a process of its own."""

    def __init__(
        self, arguments: Sequence[str], output: Path, command: str = "gpu-forecasters", **environment: str
    ) -> None:
        self._output = output
        target = (command, list(arguments), environment, str(output))
        self._process = _processes.Process(target=_main, args=target)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def signal(self) -> int | None:
        """Number of the signal that has ended it, if one has."""
        code = self._process.exitcode
        return -code if code is not None and code < 0 else None

    def finish(self, timeout: float = 240.0) -> Finished:
        """Wait for the end; a run that does not end is killed, and the test fails."""
        self._process.join(timeout)
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGUSR1)  # where it hangs
            self._process.join(2.0)
            self.kill()
            raise AssertionError(f"still running after {timeout:.0f} s:\n{self.text('stderr')[-6000:]}")
        return Finished(self._process.exitcode, self.text("stdout"), self.text("stderr"))

    def text(self, name: str) -> str:
        path = Path(f"{self._output}.{name}")
        return path.read_text() if path.exists() else ""

    def children(self, recursive: bool = True) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=recursive)
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """OpenEvolve's worker processes: children that are in the run's own session."""
        return [
            child
            for child in self.children(False)
            if _session(child) == self.pid and "resource_tracker" not in " ".join(child.cmdline())
        ]

    def evaluators(self) -> list[psutil.Process]:
        """Processes that call the user's evaluator: each leads a session of its own."""
        return [child for child in self.children(False) if _session(child) == child.pid]

    def kill(self, *, evaluators: bool = True) -> list[psutil.Process]:
        """kill -9 for everything at once, or for everything but the evaluators: those are returned.

        Whoever is killed has ended when this returns.
        """
        spared = [] if evaluators else self.evaluators()
        doomed = [child for child in self.children() if child not in spared]
        for pid in [self.pid, *(child.pid for child in doomed)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.join()
        wait_until(lambda: ended(doomed))
        return spared


def run(task: Task, *more: str, timeout: float = 240.0, **environment: str) -> Finished:
    """Run a task with the filter to its end."""
    return start(task, *more, **environment).finish(timeout)


def start(task: Task, *more: str, **environment: str) -> Run:
    """Start a task with the filter."""
    return Run([*task.arguments, *more], task.folder / "run", **environment)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def assert_only_measured_programs(task: Task) -> None:
    """What the filter promises about OpenEvolve's population, checkpoints and best program."""
    measured = set(task.outcomes())
    programs = [*task.programs(), task.best()]
    assert len(programs) > 1
    for program in programs:
        assert source_key(program["code"]) in measured
        assert "surrogate_not_admitted" not in program["metrics"]
        assert not [name for name in program["metrics"] if "surrogate" in name or "forecast" in name]


def fixed(codes: Sequence[str]) -> Callable[[int], str]:
    """Answers for a :class:`CodeProposer`: these programs, over and over, as full rewrites."""
    return lambda number: f"```python\n{codes[number % len(codes)]}\n```\n"
