"""One evaluation by the user's own scheduler for a decision that was charged, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shinka.launch import JobScheduler
from shinka.launch.local import ProcessWithLogging
from shinka.utils import parse_time_to_seconds

from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.errors import LedgerWriteError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.measuring import payload_of
from gpu_forecasters_shinka.jobs import FilteredJob
from gpu_forecasters_shinka.processes import ProcessFamily
from gpu_forecasters_shinka.results import (
    FUNCTION,
    answer_of,
    failed_results,
    host_results,
    load,
    measurement_of,
)

__all__ = ["Measurer"]

logger = logging.getLogger(__name__)

_LOCAL_POLL_S, _CLUSTER_POLL_S = 0.05, 1.0
_LOOK_EVERY_S = 1.0
_WRITE_ATTEMPTS = 60
_INTERRUPTED = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


@dataclass
class _HostJob:
    """What the user's scheduler wants to know of a job; without a start, it leaves the time limit to us."""

    job_id: Any
    generation: str
    start_time: float | None = None


class Measurer:
    """Runs evaluations, as many at once as there are places; every charged one ends with a result in the ledger."""

    def __init__(self, gate: Gate, scheduler: JobScheduler, places: int) -> None:
        """Measure by a scheduler.

        Args:
            gate: who is told.
            scheduler: the user's own.
            places: evaluations at once.
        """
        self._gate = gate
        self._scheduler = scheduler
        self._places = threading.Semaphore(places)
        self._free = places
        self._lock = threading.Lock()
        self._giving_up = threading.Event()
        self._local = scheduler.job_type == "local"
        limit = getattr(scheduler.config, "time", None)
        # A cluster enforces its own limit, which begins when it gives the job a machine.
        self.limit_s = float(parse_time_to_seconds(limit)) if limit and self._local else None

    @property
    def has_room(self) -> bool:
        """Whether an evaluation could begin at once."""
        return self._free > 0

    def give_up(self) -> None:
        """The run ends: end what runs, and do not wait for a ledger that cannot be written."""
        self._giving_up.set()

    @contextmanager
    def place(self, job: FilteredJob) -> Iterator[bool]:
        """A place to measure in; False when the job was cancelled, or the run ended, before there was one."""
        while not self._places.acquire(timeout=_LOCAL_POLL_S * 4):
            if self._unwanted(job):
                yield False
                return
        with self._lock:
            self._free -= 1
        try:
            yield not self._unwanted(job)
        finally:
            with self._lock:
                self._free += 1
            self._places.release()

    def _unwanted(self, job: FilteredJob) -> bool:
        return job.cancelled.is_set() or self._giving_up.is_set()

    def measure(self, job: FilteredJob, decision: Decision) -> dict[str, Any]:
        """Evaluate a program whose decision was charged.

        Returns:
            What the host is to store.
        """
        for name in ("metrics.json", "correct.json"):  # of an evaluation that was cut short
            (Path(job.results_dir) / name).unlink(missing_ok=True)
        job.measuring_since = time.time()
        started = time.monotonic()
        lost = self._run(job, started)
        seconds = time.monotonic() - started
        if isinstance(lost, Measurement):
            measurement = replace(lost, gpu_seconds=seconds)
            self.tell(decision, measurement)
            return failed_results(f"{measurement.outcome}: {measurement.error}")
        is_reference = decision.candidate_key == self._gate.reference.key
        reference = None if is_reference else self._gate.reference_measurement()
        value = None if reference is None else reference.value
        measurement = measurement_of(lost, self._gate.config.metric, value, seconds)
        measurement = replace(measurement, payload=payload_of({FUNCTION: answer_of(lost)}))
        self.tell(decision, measurement)
        return host_results(lost, measurement)

    def _run(self, job: FilteredJob, started: float) -> dict[str, Any] | Measurement:
        """The results of an evaluation, or how it was lost."""
        try:
            handle = self._scheduler.submit_async(str(job.program), job.results_dir)
        except Exception as error:  # sbatch refuses, conda is missing: whatever the host lets through
            return Measurement(Outcome.INFRASTRUCTURE, error=f"cannot submit the evaluation: {error}")
        family = ProcessFamily(handle.pid) if isinstance(handle, ProcessWithLogging) else None
        lost = self._follow(job, handle, family, started)
        if lost is not None:
            if family is not None:
                family.look()
                family.end()
            # The host's own cancelling: scancel, or an end to a local process and its logs.
            asyncio.run(self._scheduler.cancel_job_async(handle))
            if self._local:
                load(lambda: self._scheduler.get_job_results(handle, job.results_dir), job.results_dir)
            return lost
        results = load(lambda: self._scheduler.get_job_results(handle, job.results_dir), job.results_dir)
        if getattr(handle, "returncode", 0) in _INTERRUPTED:
            # Ctrl-C reaches the whole process group: that says nothing about the kernel.
            return Measurement(Outcome.INFRASTRUCTURE, error="interrupted before it had a result")
        return results

    def _follow(
        self, job: FilteredJob, handle: Any, family: ProcessFamily | None, started: float
    ) -> Measurement | None:
        """Wait for an evaluation to end by itself; how it was lost, if it does not."""
        view = _HostJob(handle, job.program.parent.name)
        poll_s = _LOCAL_POLL_S if self._local else _CLUSTER_POLL_S
        looked = started
        while self._scheduler.check_job_status(view):
            now = time.monotonic()
            if family is not None and now - looked >= _LOOK_EVERY_S:
                family.look()
                looked = now
            if self.limit_s is not None and now - started > self.limit_s:
                return Measurement(Outcome.TIMEOUT, error=f"evaluation took longer than {self.limit_s:g} s")
            cancelled = job.cancelled.wait(poll_s)
            if self._giving_up.is_set():
                return Measurement(Outcome.INFRASTRUCTURE, error="ended with the run")
            if cancelled:
                return Measurement(Outcome.TIMEOUT, error="given up by the host as hung")
        return None

    def tell(self, decision: Decision, measurement: Measurement) -> None:
        """Write a result that was paid for; a ledger that cannot be written gets a minute to recover."""
        for _ in range(_WRITE_ATTEMPTS - 1):
            try:
                self._gate.tell(decision.id, measurement)
                return
            except LedgerWriteError:
                if self._giving_up.wait(1.0):
                    break
        self._gate.tell(decision.id, measurement)
