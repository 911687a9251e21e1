"""The end of a filtered run on whichever host: what it did, on the terminal and in ``summary.json``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_forecasters_plugin.files import write_json
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.summary import summarise, summary_lines

__all__ = ["RunEnding", "close_run"]


@dataclass(frozen=True)
class RunEnding:
    """How a run has ended.

    Attributes:
        failure: why it could not go on.
        exhausted: nothing new was proposed any more.
        interrupted: number of the signal that ended it.
        reason: why the host ended it before the budget was spent, where it says.
        host_code: the host's own exit code.
    """

    failure: str | None = None
    exhausted: bool = False
    interrupted: int | None = None
    reason: str | None = None
    host_code: int = 0


def close_run(gate: Gate, ledger: Ledger, folder: Path, ending: RunEnding) -> int:
    """Say what a run did, and what is left to do.

    Args:
        gate: the run's gate.
        ledger: its ledger.
        folder: where ``summary.json`` goes; created if missing.
        ending: how it has ended.

    Returns:
        Exit code: 0 done, 1 failed, 130 or 143 interrupted by Ctrl-C or SIGTERM with measurements left.
    """
    summary = summarise(ledger)
    folder.mkdir(parents=True, exist_ok=True)  # a run whose ledger is elsewhere has left nothing there yet
    write_json(folder / "summary.json", summary)
    print("\nsurrogate filter: " + "\n  ".join([*summary_lines(summary), f"ledger: {ledger.url}"]))
    if ending.failure is not None:
        print(f"error: {ending.failure}", file=sys.stderr)
        return 1
    left = gate.remaining()
    if left and ending.exhausted:
        print(
            f"warning: {left} measurements are left, but the host proposes nothing new any more: "
            "every proposal repeats a source that was measured",
            file=sys.stderr,
        )
    elif left and ending.reason is not None:
        print(f"{left} measurements are left: {ending.reason}", file=sys.stderr)
    elif left and ending.host_code == 0:
        print(f"{left} measurements are left: start the same command again to go on", file=sys.stderr)
        if ending.interrupted is not None:
            return 128 + ending.interrupted
    return ending.host_code
