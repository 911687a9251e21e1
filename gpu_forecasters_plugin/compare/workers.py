"""The processes of an in-process comparison: as many searches at once as there are cores.

They end with the process that started them, whatever ends that one, and at once when it lets go of them.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.hosts import RegisteredHost
from gpu_forecasters_plugin.compare.records import ArmRun, search_folder
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool

__all__ = ["run_searches"]

_pool: RecordedPool | None = None
_host: RegisteredHost | None = None


def _begin(host: str, source: str, lifeline: Connection) -> None:
    """First thing in a worker: tie its life to its parent's, and load the recorded task."""
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    global _pool, _host
    _pool, _host = open_pool(source), RegisteredHost(host)


def _end_with_parent(lifeline: Connection) -> None:
    # Nothing is ever sent: this returns when the other end is closed, by the parent or by its end.
    lifeline.poll(None)
    os._exit(1)


def _run(arm: Arm, seed: int, budget: int, folder: Path) -> ArmRun:
    assert _pool is not None and _host is not None
    # Many searches warn on one terminal, one at a time in this process.
    logging.basicConfig(format=f"{arm.name}, seed {seed}: %(message)s", force=True)
    return _host.run(_pool, arm, seed, budget, folder)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait, and processes started meanwhile never get them: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tell(future: Future[ArmRun], on_finished: Callable[[ArmRun], None]) -> bool:
    """Whether a search has finished, rather than been lost with its process."""
    try:
        finished = future.result()
    except BrokenProcessPool:
        return False
    on_finished(finished)
    return True


def run_searches(
    host: str,
    source: str,
    searches: Sequence[tuple[Arm, int]],
    budget: int,
    folder: Path,
    on_finished: Callable[[ArmRun], None],
) -> None:
    """Run all searches, as many at once as there are cores.

    Args:
        host: name of the host.
        source: name of a recorded task, or path of a pool file.
        searches: arm and seed of each.
        budget: measurements of each, the reference's included.
        folder: where each search has a folder of its own, by :func:`~.records.search_folder`.
        on_finished: told each search when it has ended, in this thread.

    Raises:
        HostError: a process died; what others had finished by then was told.
    """
    if not searches:
        return
    # Small matrices gain nothing from threads, and the searches themselves fill the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = get_context("spawn")
    workers_end, our_end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        min(os.cpu_count() or 1, len(searches)),
        mp_context=context,
        initializer=_begin,
        initargs=(host, source, workers_end),
    )
    try:
        with _signals_held():
            futures = [
                executor.submit(_run, arm, seed, budget, search_folder(folder, arm, seed))
                for arm, seed in searches
            ]
        # Those that finished before a process died are told, in whatever order they come.
        if [future for future in as_completed(futures) if not _tell(future, on_finished)]:
            # Not in good order: a process may have died with the lock of the queue that all others wait for.
            raise BrokenProcessPool
        executor.shutdown()
    except BrokenProcessPool:
        raise HostError(
            "a process of the comparison was killed, or the machine ran out of memory; finished searches "
            "are kept: start the same command again to go on"
        ) from None
    finally:
        our_end.close()
        executor.shutdown(cancel_futures=True)
        workers_end.close()
