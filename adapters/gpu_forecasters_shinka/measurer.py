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
from shinka.utils import load_results, parse_time_to_seconds

from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.errors import ConfigError, LedgerWriteError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.measuring import payload_of
from gpu_forecasters_shinka import cluster
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


_Found = dict[str, Any] | Measurement
"""The results of an evaluation, or how it was lost."""


def _limit_s(limit: str | None) -> float | None:
    try:
        return float(parse_time_to_seconds(limit)) if limit else None
    except (ValueError, AttributeError):
        raise ConfigError(f"job.time: must be hh:mm:ss in quotes, got {limit!r}") from None


def _seconds(job: cluster.ClusterJob) -> float:
    """How long ago a job was submitted when it left its last file; with none, until now."""
    files = [
        path for name in ("metrics.json", "correct.json") if (path := Path(job.results_dir) / name).exists()
    ]
    ended = max((path.stat().st_mtime for path in files), default=time.time())
    return max(0.0, ended - job.submitted_at)


class Measurer:
    """Runs evaluations, as many at once as there are places; every charged one ends with a result in the ledger."""

    def __init__(self, gate: Gate, scheduler: JobScheduler, jobs: cluster.ClusterJobs, places: int) -> None:
        """Measure by a scheduler.

        Args:
            gate: who is told.
            scheduler: the user's own.
            jobs: those of the run on a cluster.
            places: evaluations at once.

        Raises:
            ConfigError: the time limit of evaluations cannot be read.
        """
        self._gate = gate
        self._scheduler = scheduler
        self._jobs = jobs
        self._places = threading.Semaphore(places)
        self._free = places
        self._lock = threading.Lock()
        self._giving_up = threading.Event()
        self._local = scheduler.job_type == "local"
        # A cluster enforces its own limit, which begins when it gives the job a machine.
        self.limit_s = _limit_s(getattr(scheduler.config, "time", None)) if self._local else None

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
        found = self._run_here(job, started) if self._local else self._run_on_cluster(job, decision)
        return self._conclude(decision.id, decision.candidate_key, found, time.monotonic() - started)

    def collect(self, left: cluster.ClusterJob) -> None:
        """Wait for an evaluation that a killed run has left on the cluster, and write its result."""
        found = self._follow_on_cluster(left, threading.Event())
        self._conclude(left.decision_id, left.candidate_key, found, _seconds(left))

    def _conclude(
        self, decision_id: int, candidate_key: str, found: _Found, seconds: float
    ) -> dict[str, Any]:
        """Write what came of an evaluation; what the host is to store."""
        if isinstance(found, Measurement):
            measurement = replace(found, gpu_seconds=seconds)
            results = failed_results(f"{measurement.outcome}: {measurement.error}")
        else:
            is_reference = candidate_key == self._gate.reference.key
            reference = None if is_reference else self._gate.reference_measurement()
            value = None if reference is None else reference.value
            measurement = measurement_of(found, self._gate.config.metric, value, seconds)
            measurement = replace(measurement, payload=payload_of({FUNCTION: answer_of(found)}))
            results = host_results(found, measurement)
        self._tell(decision_id, measurement)
        self._jobs.settled(decision_id)
        return results

    # -- a process of this machine --------------------------------------------------------------------------

    def _run_here(self, job: FilteredJob, started: float) -> _Found:
        try:
            handle = self._scheduler.submit_async(str(job.program), job.results_dir)
        except Exception as error:  # conda is missing: whatever the host lets through
            return Measurement(Outcome.INFRASTRUCTURE, error=f"cannot submit the evaluation: {error}")
        family = ProcessFamily(handle.pid) if isinstance(handle, ProcessWithLogging) else None
        lost = self._follow(job, handle, family, started)
        if lost is not None:
            if family is not None:
                family.look()
                family.end()
            asyncio.run(self._scheduler.cancel_job_async(handle))
        results = load(lambda: self._scheduler.get_job_results(handle, job.results_dir), job.results_dir)
        if lost is None and getattr(handle, "returncode", 0) in _INTERRUPTED:
            # Ctrl-C reaches the whole process group: that says nothing about the kernel.
            lost = Measurement(Outcome.INFRASTRUCTURE, error="interrupted before it had a result")
        return results if lost is None else lost

    def _follow(
        self, job: FilteredJob, handle: Any, family: ProcessFamily | None, started: float
    ) -> Measurement | None:
        """Wait for an evaluation to end by itself; how it was lost, if it does not."""
        view = _HostJob(handle, job.program.parent.name)
        looked = started
        while self._scheduler.check_job_status(view):
            now = time.monotonic()
            if family is not None and now - looked >= _LOOK_EVERY_S:
                family.look()
                looked = now
            if self.limit_s is not None and now - started > self.limit_s:
                return Measurement(Outcome.TIMEOUT, error=f"evaluation took longer than {self.limit_s:g} s")
            if (lost := self._given_up(job.cancelled, _LOCAL_POLL_S)) is not None:
                return lost
        return None

    def _given_up(self, cancelled: threading.Event, wait_s: float) -> Measurement | None:
        """Wait a while; why an evaluation has to be ended, if anybody wants it to."""
        hung = cancelled.wait(wait_s)
        if self._giving_up.is_set():
            return Measurement(Outcome.INFRASTRUCTURE, error="ended with the run")
        return Measurement(Outcome.TIMEOUT, error="given up by the host as hung") if hung else None

    # -- a job of a cluster ---------------------------------------------------------------------------------

    def _run_on_cluster(self, job: FilteredJob, decision: Decision) -> _Found:
        def submit() -> str:
            return str(self._scheduler.submit_async(str(job.program), job.results_dir))

        try:
            submitted = self._jobs.submit(submit, decision.id, decision.candidate_key, job.results_dir)
        except Exception as error:  # sbatch refuses: whatever the host lets through
            return Measurement(Outcome.INFRASTRUCTURE, error=f"cannot submit the evaluation: {error}")
        return self._follow_on_cluster(submitted, job.cancelled)

    def _follow_on_cluster(self, job: cluster.ClusterJob, cancelled: threading.Event) -> _Found:
        while cluster.runs(job.job_id):
            if (lost := self._given_up(cancelled, _CLUSTER_POLL_S)) is not None:
                cluster.cancel(job.job_id)
                return lost
        results = load(lambda: load_results(job.results_dir), job.results_dir)
        if "failure" in results and (lost := cluster.verdict(job.job_id)) is not None:
            return lost
        return results

    def _tell(self, decision_id: int, measurement: Measurement) -> None:
        """Write a result that was paid for; a ledger that cannot be written gets a minute to recover."""
        for _ in range(_WRITE_ATTEMPTS - 1):
            try:
                self._gate.tell(decision_id, measurement)
                return
            except LedgerWriteError:
                if self._giving_up.wait(1.0):
                    break
        self._gate.tell(decision_id, measurement)
