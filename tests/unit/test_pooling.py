from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from helpers import candidate

from gpu_forecasters_plugin import pooling
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Action, Decision, Reason
from gpu_forecasters_plugin.errors import LedgerWriteError
from gpu_forecasters_plugin.pooling import PooledGate

LONG_S = 600.0
PATIENCE_S = 120.0


class RecordingGate:
    """Skips everything, remembers each pool, and can be held up."""

    def __init__(self) -> None:
        self.pools: list[list[str]] = []
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.busy = threading.Lock()

    def ask(self, candidates: Sequence[Candidate]) -> list[Decision]:
        assert self.busy.acquire(blocking=False), "two pools are decided at once"
        try:
            self.pools.append([c.id for c in candidates])
            self.asked.set()
            assert self.may_answer.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            number = len(self.pools)
            return [Decision(0, c.id, c.key, number, Action.SKIP, Reason.NOT_SELECTED) for c in candidates]
        finally:
            self.busy.release()


class Workers:
    """Threads that each want one candidate decided."""

    def __init__(self, pooled: PooledGate, threads: ThreadPoolExecutor) -> None:
        self._pooled = pooled
        self._threads = threads
        self._count = 0

    def arrive(self, alive: Callable[[], bool] = lambda: True) -> Future[Decision | None]:
        """One more worker comes; returns when it is waiting (or served)."""
        waits = threading.Event()

        def is_alive() -> bool:
            waits.set()  # asked only of those that wait
            return alive()

        future = self.send(is_alive)
        future.add_done_callback(lambda _: waits.set())
        assert waits.wait(PATIENCE_S)
        return future

    def send(self, alive: Callable[[], bool] = lambda: True) -> Future[Decision | None]:
        """One more worker comes; returns at once."""
        self._count += 1
        return self._threads.submit(self._pooled.decide, candidate(self._count), alive)


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_POLL_S", 0.01)


@pytest.fixture
def gate() -> RecordingGate:
    return RecordingGate()


@pytest.fixture
def start(gate: RecordingGate) -> Iterator[Callable[..., tuple[PooledGate, Workers]]]:
    threads = ThreadPoolExecutor(16)
    made: list[PooledGate] = []

    def open_pool(
        size: int, workers: int, max_wait_s: float = LONG_S, **more: Any
    ) -> tuple[PooledGate, Workers]:
        made.append(PooledGate(gate, size=size, workers=workers, max_wait_s=max_wait_s, **more))  # type: ignore[arg-type]
        return made[-1], Workers(made[-1], threads)

    yield open_pool
    for pooled in made:
        pooled.close()
    threads.shutdown()


Start = Callable[..., tuple[PooledGate, Workers]]


def results(*futures: Future[Decision | None]) -> list[Decision | None]:
    return [future.result(PATIENCE_S) for future in futures]


def test_a_full_pool_is_released(gate: RecordingGate, start: Start) -> None:
    _, workers = start(size=3, workers=5)
    waiting = [workers.arrive(), workers.arrive()]
    assert not any(future.done() for future in waiting)
    decisions = results(*waiting, workers.arrive())
    assert gate.pools == [["c1", "c2", "c3"]]
    assert [decision and decision.candidate_id for decision in decisions] == ["c1", "c2", "c3"]


def test_a_pool_is_released_when_every_worker_waits(gate: RecordingGate, start: Start) -> None:
    _, workers = start(size=16, workers=2)
    results(workers.arrive(), workers.arrive())
    assert gate.pools == [["c1", "c2"]]


def test_a_single_worker_never_waits(gate: RecordingGate, start: Start) -> None:
    _, workers = start(size=4, workers=1)
    results(workers.arrive())
    results(workers.arrive())
    assert gate.pools == [["c1"], ["c2"]]


def test_a_pool_that_cannot_fill_is_released_at_its_deadline(gate: RecordingGate, start: Start) -> None:
    _, workers = start(size=4, workers=4, max_wait_s=0.05)
    results(workers.arrive())
    assert gate.pools == [["c1"]]


def test_past_the_deadline_a_pool_gathers_while_nothing_can_be_measured(
    gate: RecordingGate, start: Start
) -> None:
    room, looked = threading.Event(), threading.Event()

    def may_release() -> bool:
        looked.set()
        return room.is_set()

    _, workers = start(size=4, workers=4, max_wait_s=0.01, may_release=may_release)
    one = workers.arrive()
    assert looked.wait(PATIENCE_S)
    two = workers.arrive()
    assert gate.pools == []
    room.set()
    results(one, two)
    assert gate.pools == [["c1", "c2"]]


def test_a_complete_pool_asks_nobody_for_room(gate: RecordingGate, start: Start) -> None:
    _, workers = start(size=2, workers=4, may_release=lambda: False)
    results(workers.arrive(), workers.arrive())
    assert gate.pools == [["c1", "c2"]]


def test_closing_releases_whoever_waits_and_everybody_after(gate: RecordingGate, start: Start) -> None:
    pooled, workers = start(size=4, workers=4)
    waiting = [workers.arrive(), workers.arrive()]
    pooled.close()
    results(*waiting)
    results(workers.arrive())
    assert gate.pools == [["c1", "c2"], ["c3"]]


def test_a_dead_worker_frees_its_place(gate: RecordingGate, start: Start) -> None:
    pooled, workers = start(size=3, workers=3)
    alive = threading.Event()
    alive.set()
    doomed, other = workers.arrive(alive.is_set), workers.arrive()
    alive.clear()
    assert results(doomed) == [None]
    pooled.worker_lost()
    results(other, workers.arrive())
    assert gate.pools == [["c2", "c3"]]


def test_no_more_waiters_are_needed_than_workers_live(gate: RecordingGate, start: Start) -> None:
    pooled, workers = start(size=4, workers=4)
    waiting = [workers.arrive(), workers.arrive()]
    pooled.worker_lost()
    pooled.worker_lost()
    results(*waiting)
    for _ in range(5):
        pooled.worker_lost()
    results(workers.arrive())
    assert gate.pools == [["c1", "c2"], ["c3"]]


def test_an_error_reaches_every_waiter(gate: RecordingGate, start: Start) -> None:
    gate.error = LedgerWriteError("disk full")
    _, workers = start(size=3, workers=3)
    for future in [workers.arrive() for _ in range(3)]:
        with pytest.raises(LedgerWriteError, match="disk full"):
            future.result(PATIENCE_S)
    gate.error = None
    results(*[workers.arrive() for _ in range(3)])
    assert len(gate.pools) == 2


def test_whoever_comes_while_a_pool_is_decided_is_in_the_next(gate: RecordingGate, start: Start) -> None:
    gate.may_answer.clear()
    _, workers = start(size=2, workers=4)
    first = [workers.arrive(), workers.send()]
    assert gate.asked.wait(PATIENCE_S)
    second = [workers.arrive(), workers.send()]
    gate.may_answer.set()
    decisions = results(*first, *second)
    assert [sorted(pool) for pool in gate.pools] == [["c1", "c2"], ["c3", "c4"]]
    assert [decision and decision.pool_id for decision in decisions] == [1, 1, 2, 2]


def test_a_worker_that_dies_while_its_pool_is_decided_still_has_its_decision(
    gate: RecordingGate, start: Start
) -> None:
    gate.may_answer.clear()
    _, workers = start(size=2, workers=2)
    alive = threading.Event()
    alive.set()
    doomed, other = workers.arrive(alive.is_set), workers.send()
    assert gate.asked.wait(PATIENCE_S)
    alive.clear()
    gate.may_answer.set()
    assert None not in results(doomed, other)


@pytest.mark.parametrize(("size", "workers"), [(0, 1), (1, 0)])
def test_sizes_are_at_least_one(gate: RecordingGate, size: int, workers: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PooledGate(gate, size=size, workers=workers, max_wait_s=1.0)  # type: ignore[arg-type]


def test_a_worker_that_replaces_a_lost_one_is_waited_for_again() -> None:
    gate = RecordingGate()
    pooled = PooledGate(gate, size=8, workers=2, max_wait_s=LONG_S)  # type: ignore[arg-type]
    pooled.worker_lost()
    assert pooled.decide(candidate(1, "alone")) is not None
    pooled.worker_found()
    pooled.worker_found()  # never more than there were
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(pooled.decide, [candidate(2, "a"), candidate(3, "b")]))
    assert [sorted(pool) for pool in gate.pools] == [["alone"], ["a", "b"]]
