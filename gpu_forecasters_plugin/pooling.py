"""Gathers the candidates of concurrent workers into pools, for hosts that evaluate one candidate at a time.

A pool is released when it is full, when every live worker waits, at a deadline, or at shutdown: it never needs more
waiters than there are live workers. A worker that dies frees its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Decision
from gpu_forecasters_plugin.gate import Gate

__all__ = ["PooledGate"]

_POLL_S = 0.25


@dataclass
class _Ticket:
    candidate: Candidate
    arrived_at: float
    done: threading.Event = field(default_factory=threading.Event)
    decision: Decision | None = None
    error: BaseException | None = None


class PooledGate:
    """Blocks each caller until its pool has been decided.

    Thread-safe. One caller of a pool, the one that completes it or whose wait ends first, decides for all.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        size: int,
        workers: int,
        max_wait_s: float,
        may_release: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start gathering.

        Args:
            gate: who decides.
            size: candidates of a full pool, at least 1.
            workers: live workers of the host; see :meth:`worker_lost`.
            max_wait_s: longest wait of a pool's first candidate before a smaller pool is decided, in seconds.
            may_release: whether measuring could begin at all; while it says no, an incomplete pool goes on
                gathering past its deadline.
        """
        if size < 1 or workers < 1:
            raise ValueError(f"size and workers are at least 1, got {size!r} and {workers!r}")
        self._gate = gate
        self._size = size
        self._workers = self._all_workers = workers
        self._max_wait_s = max_wait_s
        self._may_release = may_release
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._closed = False

    def decide(self, candidate: Candidate, is_alive: Callable[[], bool] = lambda: True) -> Decision | None:
        """Wait for the decision about one candidate.

        Args:
            candidate: what a worker wants evaluated.
            is_alive: whether that worker still exists; asked a few times a second.

        Returns:
            The decision; ``None`` when the worker died before its pool was decided.
        """
        ticket = _Ticket(candidate, time.monotonic())
        with self._lock:
            self._waiting.append(ticket)
        while not ticket.done.is_set():
            batch = self._take_if_due()
            if batch:
                self._settle(batch)
                continue
            if ticket.done.wait(_POLL_S):
                break
            if not is_alive() and self._withdraw(ticket):
                return None
        if ticket.error is not None:
            raise ticket.error
        return ticket.decision

    def worker_lost(self) -> None:
        """A worker of the host has died: pools need one waiter less."""
        with self._lock:
            self._workers = max(1, self._workers - 1)

    def worker_found(self) -> None:
        """A worker has taken the place of one that was lost."""
        with self._lock:
            self._workers = min(self._all_workers, self._workers + 1)

    def close(self) -> None:
        """Release whoever waits, and from now on everybody at once."""
        with self._lock:
            self._closed = True

    def _take_if_due(self) -> list[_Ticket]:
        with self._lock:
            waiting = len(self._waiting)
            if not waiting:
                return []
            complete = waiting >= min(self._size, self._workers) or self._closed
            overdue = time.monotonic() - self._waiting[0].arrived_at >= self._max_wait_s
            if not complete and not (overdue and self._may_release()):
                return []
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            return batch

    def _withdraw(self, ticket: _Ticket) -> bool:
        with self._lock:
            if ticket not in self._waiting:
                return False  # its pool is being decided right now
            self._waiting.remove(ticket)
            return True

    def _settle(self, batch: list[_Ticket]) -> None:
        try:
            with self._deciding:
                decisions = self._gate.ask([ticket.candidate for ticket in batch])
            for ticket, decision in zip(batch, decisions, strict=True):
                ticket.decision = decision
        except BaseException as error:
            # Whoever waits must learn of it, and not only the thread that happened to decide.
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.done.set()
