"""The end of a run of ShinkaEvolve."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gpu_forecasters_plugin.closing import RunEnding, close_run

if TYPE_CHECKING:
    from gpu_forecasters_shinka.filtering import FilteredRun

__all__ = ["conclude"]


def conclude(run: FilteredRun) -> int:
    """Say what a run did, and what is left to do.

    Args:
        run: a run that has ended and is closed.

    Returns:
        Exit code: 0 done, 1 failed, 130 interrupted with measurements left.
    """
    failure = None if run.failure is None else str(run.failure)
    reason = None
    if not run.interrupted:
        if run.runner.cost_limit_reached:
            reason = (
                "the run has reached evo.max_api_costs; raise it and start the same command again to go on"
            )
        elif run.runner.next_generation_to_submit >= run.generations:
            reason = (
                f"{run.generations} proposals have not filled the budget; raise surrogate.max_proposals and start "
                "the same command again to go on"
            )
    ending = RunEnding(failure, run.exhausted, signal.SIGINT if run.interrupted else None, reason)
    return close_run(run.gate, run.ledger, run.folder, ending)
