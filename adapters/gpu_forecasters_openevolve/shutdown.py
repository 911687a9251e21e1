"""Tells an orderly end of OpenEvolve's run from the death of one of its workers, and from an interruption."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from openevolve.process_parallel import ProcessParallelController

__all__ = ["watch_end"]


def watch_end(*, on_request: Callable[[], None], on_stopping: Callable[[], None]) -> Callable[[], None]:
    """Have functions called as the host's run comes to its end.

    Args:
        on_request: called when a signal asks the host to end its run.
        on_stopping: called just before the host ends its worker processes.

    Returns:
        A function that ends the watch.
    """
    restore = [_call_before("request_shutdown", on_request), _call_before("stop", on_stopping)]

    def end_watch() -> None:
        for put_back in restore:
            put_back()

    return end_watch


def _call_before(name: str, function: Callable[[], None]) -> Callable[[], None]:
    original: Callable[..., Any] = getattr(ProcessParallelController, name)

    @wraps(original)
    def replacement(self: ProcessParallelController) -> None:
        function()
        original(self)

    setattr(ProcessParallelController, name, replacement)
    return lambda: setattr(ProcessParallelController, name, original)
