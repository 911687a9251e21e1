"""Stands in for the runner's scheduler: a job waits for its pool's decision before the user's scheduler gets it.

Waiting happens in a thread per job, never in the host's event loop. The host sees an ordinary job that takes a
while; one that was not selected is marked so that the host forgets it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from shinka.launch import JobScheduler

from gpu_forecasters_plugin.candidate import Candidate, decode_source
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Reason
from gpu_forecasters_plugin.ending import RunEnd
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.pooling import PooledGate
from gpu_forecasters_shinka.cluster import ClusterJobs
from gpu_forecasters_shinka.jobs import FilteredJob, JobState
from gpu_forecasters_shinka.measurer import Measurer
from gpu_forecasters_shinka.results import failed_results, results_in

__all__ = ["FilteredScheduler"]

logger = logging.getLogger(__name__)

_DUPLICATE_POLL_S = 0.2
_COLLECT_S = 20.0
"""The host itself waits 30 seconds for the results of a job that it has ended."""


class FilteredScheduler:
    """Takes ShinkaEvolve's jobs: its methods are those of ``JobScheduler``; everything else is the user's own.

    Attributes:
        failure: why the run cannot go on; ``None`` while it can.
    """

    def __init__(
        self,
        scheduler: JobScheduler,
        gate: Gate,
        pool: PooledGate,
        measurer: Measurer,
        end: RunEnd,
        *,
        on_skipped: Callable[[Any, Decision], Any],
        on_measured: Callable[[Any], None],
    ) -> None:
        """Stand in for a scheduler.

        Args:
            scheduler: the user's own.
            gate: who decides.
            pool: gathers proposals.
            measurer: runs evaluations.
            end: is told of decisions and measurements.
            on_skipped: coroutine function; the host's record of a job whose program is not measured.
            on_measured: the host's record of a job that has results, before the host stores them.
        """
        self._scheduler = scheduler
        self._gate = gate
        self._pool = pool
        self._measurer = measurer
        self._end = end
        self._on_skipped = on_skipped
        self._on_measured = on_measured
        self._lock = threading.Lock()
        self._jobs: set[FilteredJob] = set()
        self._threads: set[threading.Thread] = set()
        self.failure: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    # -- what the host calls --------------------------------------------------------------------------------

    def run(self, exec_fname_t: str, results_dir_t: str) -> tuple[dict[str, Any], float]:
        """Evaluate a program that the search starts from; the initial one has been measured already."""
        job = FilteredJob(exec_fname_t, results_dir_t)
        self._guarded(job, self._evaluate_seed)
        seconds = 0.0 if job.measuring_since is None else time.time() - job.measuring_since
        return job.results or failed_results("the run cannot go on"), seconds

    def submit_async(self, exec_fname_t: str, results_dir_t: str) -> FilteredJob:
        """Take a proposal; returns at once."""
        job = FilteredJob(exec_fname_t, results_dir_t)
        thread = threading.Thread(
            target=self._guarded, args=(job, self._evaluate), name=f"gpu-forecasters-{job}", daemon=True
        )
        with self._lock:
            self._jobs.add(job)
            self._threads = {known for known in self._threads if known.is_alive()} | {thread}
            thread.start()
        return job

    async def submit_async_nonblocking(self, exec_fname_t: str, results_dir_t: str) -> FilteredJob:
        """Take a proposal."""
        return self.submit_async(exec_fname_t, results_dir_t)

    def check_job_status(self, job: Any) -> bool:
        """Whether a job goes on."""
        ours: FilteredJob = job.job_id
        # Waiting for a pool or a place is not the evaluation's time.
        job.evaluation_started_at = ours.measuring_since or time.time()
        return not ours.ended.is_set()

    async def check_job_status_async(self, job: Any) -> bool:
        """Whether a job goes on; its end is recorded the first time that it is seen."""
        if self.check_job_status(job):
            return True
        ours: FilteredJob = job.job_id
        if not ours.reported:
            ours.reported = True
            if ours.state is JobState.MEASURED:
                self._on_measured(job)
            else:
                job.discard_if_completed = True
                if ours.state is JobState.SKIPPED and ours.decision is not None:
                    await self._on_skipped(job, ours.decision)
        return False

    async def batch_check_status_async(self, jobs: Sequence[Any]) -> list[bool]:
        """Whether each of these goes on."""
        return [await self.check_job_status_async(job) for job in jobs]

    def get_job_results(self, job_id: FilteredJob, results_dir: str) -> dict[str, Any] | None:
        """What an evaluation said; waits for a job that is being ended."""
        job_id.ended.wait(_COLLECT_S)
        job_id.collected = True
        return job_id.results

    async def get_job_results_async(self, job_id: FilteredJob, results_dir: str) -> dict[str, Any] | None:
        """What an evaluation said."""
        return await asyncio.to_thread(self.get_job_results, job_id, results_dir)

    async def cancel_job_async(self, job_id: FilteredJob) -> bool:
        """End a job."""
        job_id.cancelled.set()
        return True

    def shutdown(self) -> None:
        """The host is done; the user's scheduler is needed until :meth:`close`."""

    # -- the run --------------------------------------------------------------------------------------------

    def collect_left(self, jobs: ClusterJobs) -> None:
        """Wait for what a killed run has left on the cluster: it was paid for, and is not measured again.

        Raises:
            HostError: the cluster cannot be asked.
        """
        left = [job for job in jobs.left() if self._gate.in_flight(job.candidate_key)]
        cancelled = jobs.cancel_others(left)
        if left or cancelled:
            names = ", ".join(job.job_id for job in left) or "none"
            logger.warning(
                "of a run that was killed, %d evaluations on the cluster were cancelled; waiting for %d: %s",
                cancelled,
                len(left),
                names,
            )
            with ThreadPoolExecutor(len(left) or 1) as each:
                list(each.map(self._measurer.collect, left))

    def unsettled(self) -> set[FilteredJob]:
        """Jobs that were measured and whose results the host may still have to store."""
        with self._lock:
            ended = {job for job in self._jobs if job.ended.is_set() and job.state is not JobState.MEASURED}
            self._jobs -= ended
            return {job for job in self._jobs if job.state is JobState.MEASURED}

    def settled(self, job: FilteredJob) -> None:
        """The host has stored a job's results."""
        with self._lock:
            self._jobs.discard(job)

    def close(self) -> None:
        """End whatever runs or waits, and wait for it to be written down."""
        with self._lock:
            jobs, threads = list(self._jobs), list(self._threads)
        self._measurer.give_up()
        for job in jobs:
            job.cancelled.set()
        self._gate.close()
        for thread in threads:
            thread.join(_COLLECT_S)
        self._scheduler.shutdown()
        self._gate.finish()

    def fail(self, error: BaseException) -> None:
        """The run cannot go on: nothing more is measured."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        self._measurer.give_up()
        logger.critical("the run cannot go on: %s", error)

    # -- one job --------------------------------------------------------------------------------------------

    def _guarded(self, job: FilteredJob, evaluate: Callable[[FilteredJob], None]) -> None:
        try:
            evaluate(job)
        except Exception as error:
            # Not only our own errors: whatever it is, the run must say so.
            self.fail(error)
        finally:
            job.end(JobState.CANCELLED)

    @staticmethod
    def _candidate(job: FilteredJob) -> Candidate:
        # The host keeps the program that it has changed beside the new one.
        parent = job.program.with_stem("original")
        parent_code = decode_source(parent.read_bytes()) if parent.exists() else None
        return Candidate(str(job), decode_source(job.program.read_bytes()), parent_code)

    def _evaluate_seed(self, job: FilteredJob) -> None:
        """Nothing to choose: a program that the population starts from is no proposal."""
        candidate = self._candidate(job)
        answer = self._gate.answer(candidate.key)
        if answer is not None:
            return job.end(JobState.MEASURED, results_in(answer))
        (decision,) = self._gate.ask([candidate], measure_all=True)
        if decision.measure:
            self._measure(job, decision)

    def _evaluate(self, job: FilteredJob) -> None:
        candidate = self._candidate(job)
        while True:
            decision = self._pool.decide(candidate, lambda: not job.cancelled.is_set())
            if decision is None:
                return
            self._end.decided(decision)
            job.decision = decision
            if decision.reason is Reason.DUPLICATE:
                answer = decision.answer or self._await_answer(candidate.key, job)
                if answer is not None:
                    return job.end(JobState.MEASURED, results_in(answer))
                if job.cancelled.is_set():
                    return
                continue  # its measurement came to nothing: decide anew
            if decision.detail is not None and not decision.measure:
                # It cannot run: what the evaluation would have said of it, for the model that is to mend it.
                return job.end(JobState.MEASURED, failed_results(decision.detail))
            if not decision.measure:
                return job.end(JobState.SKIPPED)
            return self._measure(job, decision)

    def _await_answer(self, key: str, job: FilteredJob) -> Measurement | None:
        """The result of the same source that is being measured right now."""
        while not job.cancelled.wait(_DUPLICATE_POLL_S):
            answer = self._gate.answer(key)
            if answer is not None or not self._gate.in_flight(key):
                return answer
        return None

    def _measure(self, job: FilteredJob, decision: Decision) -> None:
        with self._end.measurement(), self._measurer.place(job) as has_place:
            if not has_place:
                self._gate.release(decision.id)
                return
            if not self._gate.start(decision.id):
                job.decision = replace(decision, action=Action.SKIP, reason=Reason.BUDGET_SPENT)
                job.end(JobState.SKIPPED)
                return
            job.state = JobState.MEASURING
            results = self._measurer.measure(job, decision)
            # Before the measurement counts as over: the run waits for what the host has not seen.
            job.end(JobState.MEASURED, results)
