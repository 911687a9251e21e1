"""The processes that measure: when they start, and that none is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import psutil
import pytest
from helpers import candidate, ended, open_gate, source, surrogate, wait_until

pytest.importorskip("openevolve")

from gpu_forecasters_openevolve.client import evaluation_functions
from gpu_forecasters_openevolve.evaluator_process import LoadRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorPool, EvaluatorsClosed, one_started_ahead
from gpu_forecasters_openevolve.service import GateService
from gpu_forecasters_openevolve.sessions import ServiceLimits

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


# Starts an evaluator and a process that has inherited the connection to it, and calls the evaluator.
CALLS = """
import os, sys, time
from gpu_forecasters_openevolve.evaluator_process import CallRequest, LoadRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorPool
from gpu_forecasters_plugin.config import MetricConfig
evaluator, ledger, run, decision = sys.argv[1:]
process = EvaluatorPool(LoadRequest(evaluator, ledger, int(run)), 1).acquire()
heir = os.fork()
if heir == 0:
    time.sleep(600)
print(process.worker.pid, heir, flush=True)
process.call(CallRequest("evaluate", evaluator, {}, int(decision), MetricConfig(), None), 600.0)
"""
HELD = """
import os, time
def evaluate(program_path):
    open(program_path + ".called", "w").close()
    while not os.path.exists(program_path + ".release"):
        time.sleep(0.01)
    return {"speedup": 1.0}
"""


def ends(pid: int) -> bool:
    """Whether a process ends; our own children are waited for by the pool itself."""
    try:
        psutil.Process(pid).wait(120)
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


def test_closing_turns_away_those_that_wait_for_one(request_for: LoadRequest, loaded: TextIO) -> None:
    pool = EvaluatorPool(request_for, 1)
    pool.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire)
        pool.close()
        with pytest.raises(EvaluatorsClosed):
            waiting.result()


def test_one_that_closing_ends_while_it_starts_is_no_failure(
    request_for: LoadRequest, loaded: TextIO, tmp_path: Path
) -> None:
    pool = EvaluatorPool(request_for, 1)
    first = pool.acquire()
    write_evaluator(tmp_path, ALL_BUT_THE_FIRST_HANG.format(marker=str(tmp_path / "first")))
    (tmp_path / "first").touch()
    first.kill()
    pool.release(first)
    with ThreadPoolExecutor(1) as threads:
        loaded.readline()
        starting = threads.submit(pool.acquire)
        loaded.readline()
        pool.close()
        with pytest.raises(EvaluatorsClosed):
            starting.result()


def test_a_program_whose_turn_does_not_come_before_the_end_of_the_run_costs_nothing(
    request_for: LoadRequest, loaded: TextIO, ledger: Ledger, tmp_path: Path
) -> None:
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 3}))
    evaluators = EvaluatorPool(request_for, 1)
    evaluators.close()
    service = GateService(gate, evaluators, ServiceLimits(1, 1, 60.0, 60.0, 1.0))
    service.start()
    program = tmp_path / "program.py"
    program.write_text(source(2))
    try:
        with pytest.raises(HostError, match="has ended"):
            evaluation_functions(service.address)["evaluate"](str(program))
        assert gate.remaining() == 3 and service.failure is None
    finally:
        service.close()


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


def test_one_whose_run_is_killed_during_a_call_writes_the_result_and_ends(
    tmp_path: Path, ledger: Ledger
) -> None:
    gate = open_gate(ledger)
    (decision,) = gate.ask([candidate(1)])
    gate.start(decision.id)
    evaluator = tmp_path / "evaluator.py"
    evaluator.write_text(HELD)
    arguments = [str(evaluator), ledger.target, str(ledger.run_id), str(decision.id)]
    with subprocess.Popen([sys.executable, "-c", CALLS, *arguments], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        measuring, heir = (psutil.Process(int(pid)) for pid in run.stdout.readline().split())
        wait_until((tmp_path / "evaluator.py.called").exists)
        run.kill()
        run.wait()
        (tmp_path / "evaluator.py.release").touch()
        try:
            wait_until(lambda: ended([measuring]))
            assert not ended([heir])
        finally:
            heir.kill()
    assert gate.best_speedup == 1.0
