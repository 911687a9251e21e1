"""Tells an orderly end of OpenEvolve's run from the death of one of its workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from openevolve.process_parallel import ProcessParallelController

__all__ = ["watch_stop"]


def watch_stop(on_stopping: Callable[[], None]) -> Callable[[], None]:
    """Have a function called just before the host ends its worker processes.

    Returns:
        A function that ends the watch.
    """
    original: Callable[..., Any] = ProcessParallelController.stop

    @wraps(original)
    def stop(self: ProcessParallelController) -> None:
        on_stopping()
        original(self)

    ProcessParallelController.stop = stop  # type: ignore[method-assign]

    def restore() -> None:
        ProcessParallelController.stop = original  # type: ignore[method-assign]

    return restore
