"""What ShinkaEvolve holds in place of a job of its scheduler: one proposal from its submission to its end."""

from __future__ import annotations

import itertools
import os
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.decision import Decision

__all__ = ["FilteredJob", "JobState"]

_numbers = itertools.count(1)


class JobState(StrEnum):
    """How far a job is. The last three are ends."""

    WAITING = "waiting"
    MEASURING = "measuring"
    MEASURED = "measured"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class FilteredJob:
    """One submitted proposal. Thread-safe; ends once.

    Attributes:
        program: the proposal's source file.
        results_dir: where the user's evaluation leaves its files.
        state: how far it is.
        decision: what was decided, once it was.
        results: what the host is to read, once measured; as ``JobScheduler.get_job_results`` returns it.
        measuring_since: when the user's evaluation began, in seconds since the epoch; ``None`` before.
        cancelled: set when the host has given the job up.
        ended: set at its end.
        reported: whether the host has been told of its end.
        collected: whether the host has asked for the results.
    """

    def __init__(self, program: str, results_dir: str) -> None:
        self.program = Path(program)
        self.results_dir = results_dir
        self.state = JobState.WAITING
        self.decision: Decision | None = None
        self.results: dict[str, Any] | None = None
        self.measuring_since: float | None = None
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self.reported = False
        self.collected = False
        # The host takes this text for the job's identity, in its database too: unique across resumed runs.
        self._name = f"gpu-forecasters-{self.program.parent.name}-{os.getpid()}-{next(_numbers)}"
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._name

    __repr__ = __str__

    def end(self, state: JobState, results: dict[str, Any] | None = None) -> None:
        """Come to an end; a second one changes nothing."""
        with self._lock:
            if self.ended.is_set():
                return
            self.results, self.state = results, state
            self.ended.set()
