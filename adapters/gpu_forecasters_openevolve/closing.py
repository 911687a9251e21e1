"""The end of a run of OpenEvolve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_forecasters_plugin.closing import RunEnding, close_run

if TYPE_CHECKING:
    from gpu_forecasters_openevolve.filtered_run import FilteredRun

__all__ = ["conclude"]


def conclude(run: FilteredRun, host_code: int = 0) -> int:
    """Say what a run did, and what is left to do.

    Args:
        run: a run that has ended and is closed.
        host_code: the host's own exit code.

    Returns:
        Exit code: 0 done, 1 failed, 130 or 143 interrupted by Ctrl-C or SIGTERM with measurements left.
    """
    ending = RunEnding(_failure(run), run.service.exhausted, run.interrupted, host_code=host_code)
    return close_run(run.gate, run.ledger, run.settings.folder(), ending)


def _failure(run: FilteredRun) -> str | None:
    """Why the run has not come to its end in good order."""
    if run.service.failure is not None:
        return str(run.service.failure)
    left = run.gate.remaining()
    if left and run.service.worker_died and not (run.service.exhausted or run.interrupted):
        return (
            f"a worker process of OpenEvolve died, which ends its run; {left} measurements are left: "
            "start the same command again to go on"
        )
    return None
