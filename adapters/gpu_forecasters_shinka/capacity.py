"""How many proposals and evaluations a run has in flight."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shinka.core import ShinkaEvolveRunner
from shinka.core.runtime_slots import LogicalSlotPool

from gpu_forecasters_plugin.config import SurrogateConfig

__all__ = ["Capacity"]


@dataclass(frozen=True)
class Capacity:
    """Sizes of a run.

    Attributes:
        measure_jobs: real evaluations at once.
        proposal_jobs: proposals that are being made at once.
        pool_size: candidates of a full pool, which is also the number of jobs that the host may have submitted.
        max_wait_s: longest wait for a pool to fill, in seconds.
    """

    measure_jobs: int
    proposal_jobs: int
    pool_size: int
    max_wait_s: float

    @classmethod
    def of(
        cls,
        runner: ShinkaEvolveRunner,
        section: SurrogateConfig,
        measure_jobs: int | None,
        proposal_jobs: int | None,
    ) -> Capacity:
        """Sizes for a runner.

        Args:
            runner: the user's.
            section: the ``surrogate:`` section.
            measure_jobs: real evaluations at once; ``None``: the runner's ``max_evaluation_jobs``.
            proposal_jobs: proposals at once; ``None``: the runner's ``max_proposal_jobs``, oversampled.
        """
        measure_jobs = measure_jobs or runner.max_evaluation_jobs
        # With everything kept there is nothing to wait for.
        everything = section.keep_fraction == 1.0
        pool_size = 1 if everything else measure_jobs * section.oversample
        slots = measure_jobs if everything else pool_size
        oversampled = runner.max_proposal_jobs * (1 if everything else section.oversample)
        proposal_jobs = proposal_jobs or min(slots, oversampled)
        # Proposals come in so many rounds.
        rounds = math.ceil(pool_size / proposal_jobs)
        return cls(measure_jobs, proposal_jobs, pool_size, section.pool.max_wait_s * rounds)

    def apply(self, runner: ShinkaEvolveRunner) -> None:
        """Let a runner that has not started have so much in flight.

        Its constructor bounds both numbers by the processors of this machine, since there each is a process that
        computes; a job that waits for its pool is none.
        """
        slots = max(self.pool_size, self.measure_jobs)
        runner.max_evaluation_jobs = slots
        runner.evaluation_slot_pool = LogicalSlotPool(slots, "evaluation")
        runner.max_proposal_jobs = self.proposal_jobs
        runner.sampling_slot_pool = LogicalSlotPool(self.proposal_jobs, "sampling")
