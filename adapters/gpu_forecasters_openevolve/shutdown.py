"""Tells an orderly end of OpenEvolve's run from the death of one of its workers, and from an interruption."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from openevolve.process_parallel import ProcessParallelController

__all__ = ["watch_end"]


def watch_end(*, on_request: Callable[[], None], on_stopping: Callable[[bool], None]) -> Callable[[], None]:
    """Have functions called as the host's run comes to its end.

    Args:
        on_request: called when a signal asks the host to end its run.
        on_stopping: called just before the host ends its worker processes, with whether one of them had died.

    Returns:
        A function that ends the watch.
    """
    restore = [
        _call_before("request_shutdown", lambda controller: on_request()),
        _call_before("stop", lambda controller: on_stopping(_worker_died(controller))),
    ]

    def end_watch() -> None:
        for put_back in restore:
            put_back()

    return end_watch


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
