"""The host's side of a run: what it is told of jobs, and when it is made to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.decision import Decision
from gpu_forecasters_plugin.errors import GpuForecastersError
from gpu_forecasters_plugin.notes import decision_note
from gpu_forecasters_shinka.costs import ATTEMPT_STAGE, SkippedCosts
from gpu_forecasters_shinka.jobs import FilteredJob
from gpu_forecasters_shinka.unfinished import DATABASE

if TYPE_CHECKING:
    from gpu_forecasters_shinka.filtering import FilteredRun

__all__ = ["HostRun"]

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.2
_IDLE_LOOKS = 5
_NOTE = "surrogate"
"""Name of our words among a program's metadata."""


class HostRun:
    """Looks after a runner while it runs. Used in its event loop only."""

    def __init__(self, run: FilteredRun) -> None:
        self._run = run
        self._costs = SkippedCosts(run.folder / DATABASE)
        self._proposals_over = False

    # -- jobs -----------------------------------------------------------------------------------------------

    async def skipped(self, job: Any, decision: Decision) -> None:
        """The host forgets this program: it is recorded among its attempts, and never among its programs."""
        self._costs.carry_over(self._run.runner)
        details = {
            "note": decision_note(decision),
            "parent_id": job.parent_id,
            "cost": self._costs.skipped(job),
        }
        await self._run.runner.async_db.record_attempt_event_async(
            generation=job.generation, stage=ATTEMPT_STAGE, status="not_measured", details=details
        )

    def measured(self, job: Any) -> None:
        """The host is about to store this program."""
        self._costs.carry_over(self._run.runner)
        if job.meta_patch_data is None:
            return
        self._costs.book(job)
        if job.job_id.decision is not None:
            job.meta_patch_data[_NOTE] = decision_note(job.job_id.decision)

    # -- the run --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the host runs, see to it that it ends."""
        watch = asyncio.create_task(self._watch(), name="gpu-forecasters-watch")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self) -> None:
        idle = 0
        while idle < _IDLE_LOOKS and not await asyncio.to_thread(self._is_over):
            if self._no_more_proposals() and not self._proposals_over:
                self._proposals_over = True
                self._run.pool.close()
            idle = idle + 1 if self._is_left_idle() else 0
            await asyncio.sleep(_WATCH_EVERY_S)
        # The host's own way out: it gives up what it has in flight, and saves its state.
        runner = self._run.runner
        runner.evo_config.num_generations = max(1, runner.completed_generations)

    def _is_left_idle(self) -> bool:
        """Whether the host neither proposes nor ends.

        It stops to propose when it expects to reach its cost limit, and ends when it has: what came cheaper than it
        had expected leaves it between the two.
        """
        runner = self._run.runner
        busy = runner.running_jobs or runner.active_proposal_tasks or runner.failed_jobs_for_retry
        return runner.cost_limit_reached and not busy and not runner.processing_lock.locked()

    def _no_more_proposals(self) -> bool:
        """Whether those that wait are all that will ever wait."""
        runner = self._run.runner
        last = runner.cost_limit_reached or runner.next_generation_to_submit >= self._run.generations
        return last and not runner.active_proposal_tasks

    def _is_over(self) -> bool:
        run = self._run
        try:
            run.end.program_processed(self._is_awaited)
        except GpuForecastersError as error:  # the ledger cannot be read
            run.scheduler.fail(error)
        return run.over.is_set() or run.failure is not None

    def _is_awaited(self) -> bool:
        """Whether the host has yet to store a result."""
        unsettled = self._run.scheduler.unsettled()
        waiting = [job for job in unsettled if not self._is_stored(job)]
        for job in unsettled.difference(waiting):
            self._run.scheduler.settled(job)
        return bool(waiting)

    def _is_stored(self, job: FilteredJob) -> bool:
        runner = self._run.runner
        if not job.collected:
            return False
        # In this order: the host goes on meanwhile, and forgets a job before it is no longer busy with it.
        busy = str(job) in runner.failed_jobs_for_retry or runner.processing_lock.locked()
        if str(job) not in runner.submitted_jobs:
            return True
        if not busy:
            logger.warning("ShinkaEvolve could not store the result of %s; the ledger has it", job)
        return not busy
