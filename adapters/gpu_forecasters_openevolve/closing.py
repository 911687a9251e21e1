"""The end of a filtered run: what it did, on the terminal and in ``summary.json``."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.ledger.summary import summarise, summary_lines

if TYPE_CHECKING:
    from gpu_forecasters_openevolve.drop_in import FilteredRun

__all__ = ["conclude"]


def conclude(run: FilteredRun, host_code: int = 0) -> int:
    """Say what a run did, and what is left to do.

    Args:
        run: a run that has ended and is closed.
        host_code: the host's own exit code.

    Returns:
        Exit code: 0 done, 1 failed, 130 interrupted by a signal with measurements left.
    """
    summary = summarise(run.ledger)
    folder = run.settings.folder()
    folder.mkdir(parents=True, exist_ok=True)  # a run whose ledger is elsewhere has left nothing there yet
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    print("\nsurrogate filter: " + "\n  ".join([*summary_lines(summary), f"ledger: {run.ledger.url}"]))
    failure = _failure(run)
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    left = run.gate.remaining()
    if left and run.service.exhausted:
        print(
            f"warning: {left} measurements are left, but the host proposes nothing new any more: "
            "every proposal repeats a source that was measured",
            file=sys.stderr,
        )
    elif left and host_code == 0:
        print(f"{left} measurements are left: start the same command again to go on", file=sys.stderr)
        if run.interrupted:
            return 128 + signal.SIGINT
    return host_code


def _failure(run: FilteredRun) -> str | None:
    """Why the run has not come to its end in good order."""
    if run.service.failure is not None:
        return str(run.service.failure)
    left = run.gate.remaining()
    if left and run.service.workers_lost and not run.service.exhausted:
        return (
            f"a worker process of OpenEvolve died, which ends its run; {left} measurements are left: "
            "start the same command again to go on"
        )
    return None
