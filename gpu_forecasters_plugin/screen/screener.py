"""Screens candidates: many at once, each only once, and never longer than a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.screen.cache import VerdictCache
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.verdict import LATE, Status, Verdict, undecided
from gpu_forecasters_plugin.screen.workshop import ScreenError, Workshop

__all__ = ["Screener"]

_PASSING = ("the candidate did not behave: it took longer", "no verdict", "the process that screens")
"""How verdicts begin that say more about this machine's load than about the candidate: they are not filed."""


class Screener:
    """Screens candidates of one task. Thread-safe; :meth:`close` ends its processes.

    Promises: a candidate is called ``invalid`` only if the task's reference came out ``valid`` in the same way, so
    that an evaluator that cannot be run dry makes everything ``undecided``; verdicts come by the deadline, and at once
    when it is closed; nothing is raised whatever a candidate does.
    """

    def __init__(
        self,
        job: ScreenJob,
        *,
        reference: str | None = None,
        folder: Path | None = None,
        workers: int | None = None,
    ) -> None:
        """Make a screener; processes start with the first candidate, or with :meth:`start`.

        Args:
            job: how candidates are called; its code does not matter.
            reference: text of the kernel that must come out valid; ``None`` trusts the caller.
            folder: where verdicts are kept for the next time; ``None`` keeps them in this process.
            workers: candidates at once; as many as there are cores when left out.
        """
        self._job = job
        self._reference = reference
        self._cache = VerdictCache(folder)
        self._workshop = Workshop()
        cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(workers or cores, thread_name_prefix="gpu-forecasters-screen")
        self._lock = threading.Lock()
        self._running: dict[str, Future[Verdict]] = {}
        self._end: Future[None] = Future()
        self.problem: str | None = None

    def start(self) -> None:
        """Start the process that screens, and wait until it is ready.

        Raises:
            ScreenError: nothing can be screened here.
        """
        self._workshop.start()

    def reference_verdict(self, deadline_s: float) -> Verdict | None:
        """What the reference came out as; ``None`` without one."""
        if self._reference is None:
            return None
        return self._screened([self._reference], deadline_s)[0]

    def screen(
        self, codes: Sequence[str], deadline_s: float, *, seen: Callable[[int], None] = lambda done: None
    ) -> list[Verdict]:
        """One verdict per text, in order.

        Args:
            codes: candidates' texts; the same one twice is screened once.
            deadline_s: how long to wait for all of them, in seconds. Late ones are ``undecided``; their screening goes
                on, and answers when the same text is asked for again.
            seen: told how many have a verdict, now and then.
        """
        started = time.monotonic()
        trust = self.reference_verdict(deadline_s)
        left = max(0.0, deadline_s - (time.monotonic() - started))
        if trust is not None and trust.status is not Status.VALID:
            reason = (
                f"the reference cannot be run dry, so nothing can be told of candidates: {trust.headline()}"
            )
            if not trust.is_late and not self._end.done():
                self.problem = reason
            return [undecided(reason) for _ in codes]
        return self._screened(codes, left, seen)

    def _screened(
        self, codes: Sequence[str], deadline_s: float, seen: Callable[[int], None] = lambda done: None
    ) -> list[Verdict]:
        deadline = time.monotonic() + deadline_s
        found: list[Verdict | Future[Verdict]] = [self._known_or_begun(code) for code in codes]
        waiting: set[Future[Any]] = {entry for entry in found if isinstance(entry, Future)}
        while waiting and not self._end.done() and (left := deadline - time.monotonic()) > 0:
            # The end is waited for as well: nobody is told of futures that a pool's shutdown cancels.
            done, _ = wait(waiting | {self._end}, timeout=left, return_when=FIRST_COMPLETED)
            waiting -= done
            seen(len(codes) - len(waiting))
        return [_settled(entry) for entry in found]

    def _known_or_begun(self, code: str) -> Verdict | Future[Verdict]:
        job = replace(self._job, code=code)
        try:
            key = self._cache.key(job)
        except OSError as error:
            return undecided(f"cannot read what calls the candidate: {error}")
        known = self._cache.get(key)
        if known is not None:
            return known
        with self._lock:
            if self._end.done():
                return undecided(LATE)
            if key not in self._running:
                self._running[key] = self._threads.submit(self._screen_one, key, job)
            return self._running[key]

    def _screen_one(self, key: str, job: ScreenJob) -> Verdict:
        try:
            verdict = self._workshop.screen(job)
        except ScreenError as error:
            if not self._end.done():
                self.problem = str(error)
            verdict = undecided(str(error))
        else:
            if not verdict.message.startswith(_PASSING):
                self._cache.put(key, verdict)
        with self._lock:
            self._running.pop(key, None)
        return verdict

    def close(self) -> None:
        """End the processes, for good; what is being screened, or asked for later, comes out undecided."""
        with self._lock:
            if not self._end.done():
                self._end.set_result(None)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workshop.close()
        self._threads.shutdown(wait=True)


def _settled(entry: Verdict | Future[Verdict]) -> Verdict:
    if isinstance(entry, Verdict):
        return entry
    return entry.result() if entry.done() and not entry.cancelled() else undecided(LATE)
