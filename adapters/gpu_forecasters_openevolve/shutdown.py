"""Tells an orderly end of OpenEvolve's run from the death of one of its workers, and from an interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial, wraps
from types import FrameType
from typing import Any

from openevolve.process_parallel import ProcessParallelController

__all__ = ["RunWatch"]

_Original = Callable[[ProcessParallelController], None]


class RunWatch:
    """Follows the host's run from its start to its end, and ends it when asked to."""

    def __init__(
        self, *, on_request: Callable[[int | None], None], on_stopping: Callable[[bool], None]
    ) -> None:
        """Watch from now on.

        Args:
            on_request: called when the host is asked to end its run, with the number of the signal that asks, if any.
            on_stopping: called just before the host ends its worker processes, with whether one of them had died.
        """
        self._running: ProcessParallelController | None = None
        self._signal: int | None = None
        self._on_request = on_request
        self._on_stopping = on_stopping
        self._restore = [
            _replace("start", self._start),
            _replace("request_shutdown", self._request_shutdown),
            _replace("stop", self._stop),
        ]

    def _start(self, controller: ProcessParallelController, original: _Original) -> None:
        self._running = controller
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):  # the host has just set its handlers
                handler = signal.getsignal(number)
                if callable(handler):
                    signal.signal(number, partial(self._noted, handler))
        original(controller)

    def _noted(
        self, handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None
    ) -> None:
        self._signal = number
        handler(number, frame)

    def _request_shutdown(self, controller: ProcessParallelController, original: _Original) -> None:
        self._on_request(self._signal)
        original(controller)

    def _stop(self, controller: ProcessParallelController, original: _Original) -> None:
        self._on_stopping(_worker_died(controller))
        results = getattr(controller.executor, "_result_queue", None)
        original(controller)
        if results is not None:
            _end_what_is_half_written(results)

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


def _end_what_is_half_written(results: Any) -> None:
    """Let the pool's own thread see that no more comes of a result over whose writing a worker was ended.

    The host kills its workers whatever they are doing. Its main process holds the writing end of their pipe too: until
    that is closed, the thread waits for the rest of the result, and the process for its thread, for ever.
    """
    results._writer.close()


def _replace(
    name: str, replacement: Callable[[ProcessParallelController, _Original], None]
) -> Callable[[], None]:
    original: Callable[..., Any] = getattr(ProcessParallelController, name)

    @wraps(original)
    def replaced(self: ProcessParallelController) -> None:
        replacement(self, original)

    setattr(ProcessParallelController, name, replaced)
    return lambda: setattr(ProcessParallelController, name, original)
