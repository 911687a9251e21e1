"""The processes that measure: when they start, and that none is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil
import pytest
from helpers import candidate, open_gate

pytest.importorskip("openevolve")

from gpu_forecasters_openevolve.evaluator_process import LoadRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorPool, one_started_ahead

from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.ledger import Ledger

# Says on the pipe that it is being loaded, and where it is told to, waits there.
EVALUATOR = """
import os
with open({pipe!r}, "w") as pipe:
    print(os.getpid(), file=pipe)
{then}
def evaluate(program_path):
    return {{"speedup": 1.0}}
"""
ALL_BUT_THE_FIRST_HANG = """
try:
    os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    import time
    time.sleep(600)
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[TextIO]:
    """A line with its number for each process that loads the evaluator."""
    os.mkfifo(tmp_path / "pipe")
    # Open for both: reading waits for the next line, and never ends.
    with open(os.open(tmp_path / "pipe", os.O_RDWR), encoding="utf-8") as pipe:
        yield pipe


@pytest.fixture
def request_for(tmp_path: Path, ledger: Ledger) -> LoadRequest:
    open_gate(ledger).ask([candidate(1)])
    write_evaluator(tmp_path)
    return LoadRequest(str(tmp_path / "evaluator.py"), ledger.target, ledger.run_id)


def write_evaluator(folder: Path, then: str = "") -> None:
    text = EVALUATOR.format(pipe=str(folder / "pipe"), then=then)
    (folder / "evaluator.py").write_text(text)


def ends(pid: int) -> bool:
    """Whether a process ends; our own children are waited for by the pool itself."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        pass
    return not psutil.pid_exists(pid)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_all_start_before_anybody_needs_them(request_for: LoadRequest, loaded: TextIO) -> None:
    pool = EvaluatorPool(request_for, 3)
    started = {int(loaded.readline()) for _ in range(3)}
    acquired = {pool.acquire().worker.pid for _ in range(3)}
    assert acquired == started and not pool.has_room
    pool.close()
    assert all(ends(pid) for pid in started)


def test_one_that_died_leaves_its_place_to_another(request_for: LoadRequest, loaded: TextIO) -> None:
    pool = EvaluatorPool(request_for, 1)
    first = pool.acquire()
    first.kill()
    pool.release(first)
    assert pool.has_room
    second = pool.acquire()
    assert second.alive and second.worker.pid != first.worker.pid
    pool.close()
    assert ends(second.worker.pid)


def test_closing_ends_those_that_still_start(
    request_for: LoadRequest, loaded: TextIO, tmp_path: Path
) -> None:
    write_evaluator(tmp_path, ALL_BUT_THE_FIRST_HANG.format(marker=str(tmp_path / "first")))
    pool = EvaluatorPool(request_for, 3)
    started = [int(loaded.readline()) for _ in range(3)]
    pool.close()
    assert all(ends(pid) for pid in started)


def test_one_that_cannot_load_the_evaluator_later_fails_the_call_that_needs_it(
    request_for: LoadRequest, loaded: TextIO, tmp_path: Path
) -> None:
    pool = EvaluatorPool(request_for, 1)
    evaluator = pool.acquire()
    write_evaluator(tmp_path, "raise ValueError('no GPU left')")
    evaluator.kill()
    pool.release(evaluator)
    with pytest.raises(HostError, match="no GPU left"):
        pool.acquire()
    assert pool.has_room
    pool.close()


def test_a_process_started_ahead_is_the_first_of_the_pool(request_for: LoadRequest, loaded: TextIO) -> None:
    before = children()
    with one_started_ahead():
        (ahead,) = children() - before
        pool = EvaluatorPool(request_for, 1)
    assert pool.acquire().worker.pid == ahead
    pool.close()


def test_a_process_started_ahead_that_nobody_takes_ends() -> None:
    before = children()
    with pytest.raises(HostError), one_started_ahead():
        (ahead,) = children() - before
        raise HostError("no such evaluator")
    assert ends(ahead)
