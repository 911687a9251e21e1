"""When a run is over: its budget is spent and the host has seen every result, or nothing new is proposed any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_forecasters_plugin.decision import Decision, Reason
from gpu_forecasters_plugin.gate import Gate

__all__ = ["RunEnd"]

_MOST_REPEATS = 40
"""So many pools of nothing but repeated sources end a run."""


class RunEnd:
    """Announces the end of a run, once. Thread-safe.

    Attributes:
        exhausted: whether it ends because every proposal repeats a source that is known.
    """

    def __init__(self, gate: Gate, pool_size: int, announce: Callable[[], None]) -> None:
        self._gate = gate
        self._most_repeats = _MOST_REPEATS * pool_size
        self._announce = announce
        self._lock = threading.Lock()
        self._measuring = 0
        self._repeats = 0
        self._announced = False
        self.exhausted = False

    @property
    def measuring(self) -> bool:
        """Whether any measurement runs."""
        return self._measuring > 0

    @contextmanager
    def measurement(self) -> Iterator[None]:
        """While a measurement runs, the run goes on."""
        with self._lock:
            self._measuring += 1
        try:
            yield
        finally:
            with self._lock:
                self._measuring -= 1

    def program_processed(self, is_awaited: Callable[[], bool]) -> None:
        """The host has dealt with a program.

        Args:
            is_awaited: whether the result of another one is on its way to the host.
        """
        # In this order: what has been started by now is among those that are measured or awaited.
        if not self._gate.budget_spent() or self._gate.has_unstarted():
            return
        with self._lock:
            if self._announced or self._measuring or is_awaited():
                return
            self._announced = True
        self._announce()

    def decided(self, decision: Decision) -> None:
        """Count repeated sources: of those alone no budget would ever be spent."""
        with self._lock:
            self._repeats = self._repeats + 1 if decision.reason is Reason.DUPLICATE else 0
            if self._repeats < self._most_repeats or self._announced:
                return
            self._announced = self.exhausted = True
        self._announce()
