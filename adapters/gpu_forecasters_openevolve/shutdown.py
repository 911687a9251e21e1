"""Tells an orderly end of OpenEvolve's run from the death of one of its workers, and from an interruption."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from openevolve.process_parallel import ProcessParallelController

__all__ = ["RunWatch"]


class RunWatch:
    """Follows the host's run from its start to its end, and ends it when asked to."""

    def __init__(self, *, on_request: Callable[[], None], on_stopping: Callable[[bool], None]) -> None:
        """Watch from now on.

        Args:
            on_request: called when the host is asked to end its run, by a signal or by :meth:`end_run`.
            on_stopping: called just before the host ends its worker processes, with whether one of them had died.
        """
        self._running: ProcessParallelController | None = None
        self._restore = [
            _call_before("start", self._started),
            _call_before("request_shutdown", lambda controller: on_request()),
            _call_before("stop", lambda controller: on_stopping(_worker_died(controller))),
        ]

    def _started(self, controller: ProcessParallelController) -> None:
        self._running = controller

    def end_run(self) -> None:
        """Have the host stop in good order and save its best program; before its run begins, do nothing.

        From any thread, and not by a signal: the host writes to its log in the handler, and Python refuses that
        when the signal strikes in the middle of another line.
        """
        if self._running is not None:
            self._running.request_shutdown()

    def close(self) -> None:
        """Watch no longer."""
        for put_back in self._restore:
            put_back()
        self._restore = []


def _worker_died(controller: ProcessParallelController) -> bool:
    """Whether the pool of worker processes is broken, which the death of a single one makes it.

    The standard library tells it to nobody who does not submit work. It is set before the host learns of the death,
    and so before its run can end of it.
    """
    return bool(getattr(controller.executor, "_broken", False))


def _call_before(name: str, function: Callable[[ProcessParallelController], None]) -> Callable[[], None]:
    original: Callable[..., Any] = getattr(ProcessParallelController, name)

    @wraps(original)
    def replacement(self: ProcessParallelController) -> None:
        function(self)
        original(self)

    setattr(ProcessParallelController, name, replacement)
    return lambda: setattr(ProcessParallelController, name, original)
