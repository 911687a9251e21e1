"""An event loop of our own in a thread of its own, so that synchronous callers can ask concurrently."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread", "loop_thread", "quieten"]

T = TypeVar("T")

_THREAD_NAME = "gpu-forecasters-loop"


class LoopThread:
    """Runs coroutines for other threads. Its thread is a daemon: it keeps no process alive."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name=_THREAD_NAME, daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What the coroutine returns.

        Raises:
            TimeoutError: it takes longer, although it should keep a deadline itself; it is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:  # an interrupt as well: nobody waits for the answer any more
            future.cancel()
            raise


_lock = threading.Lock()
_threads: dict[int, LoopThread] = {}


def loop_thread() -> LoopThread:
    """The loop of this process. A forked child gets one of its own: threads do not survive a fork."""
    with _lock:
        process = os.getpid()
        if process not in _threads:
            _threads[process] = LoopThread()
        return _threads[process]


class _NotEveryRequest(logging.Filter):
    """Leaves out what an HTTP client says about each single request that comes from our loop."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.INFO or record.threadName != _THREAD_NAME


_not_every_request = _NotEveryRequest()


def quieten(*loggers: str) -> None:
    """Keep loggers from a line per request of ours; warnings and what others log stay."""
    for name in loggers:
        logging.getLogger(name).addFilter(_not_every_request)
