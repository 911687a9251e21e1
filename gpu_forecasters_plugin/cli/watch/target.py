"""What is watched: a run, or the latest of a folder of many; and whether it is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.cli.ledger_choice import open_named, runs_below
from gpu_forecasters_plugin.errors import LedgerMissingError
from gpu_forecasters_plugin.folder_lock import is_held
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.standing import RunStanding, standing
from gpu_forecasters_plugin.ledger.summary import summarise

__all__ = ["RunState", "Sight", "WatchTarget"]

_MOST_RESULTS = 50
"""So many of a run's latest measurements are looked at."""


class RunState(StrEnum):
    """Whether a run goes on."""

    RUNNING = "running"
    SPENT = "over: its budget is spent"
    STOPPED = "stopped before its budget was spent"
    UNKNOWN = "its budget is not spent"


@dataclass(frozen=True)
class Sight:
    """A run as it was seen.

    Attributes:
        standing: how it stands.
        state: whether it goes on.
        ledger: where its ledger is.
        name: what it is called among others; empty where it is alone.
        over: whether there is nothing more to see.
    """

    standing: RunStanding
    state: RunState
    ledger: str
    name: str
    over: bool


class WatchTarget:
    """Looks at what a user has named, anew each time: a connection that stays would keep its writers' log.

    Only the copy that a ledger of an older version is read through is kept, as long as that is not written to.
    """

    def __init__(self, target: str, run: str | None) -> None:
        """Watch a run.

        Args:
            target: a run's folder, a ledger file or URL, or a folder of many runs.
            run: which run; the latest when left out.
        """
        self.target = target
        self._run = run
        self._copy: tuple[str | None, LedgerReader] | None = None

    def look(self) -> Sight:
        """How the run stands.

        Raises:
            LedgerMissingError: there is nothing to see yet.
            ConfigError: there is no run of that name.
            LedgerError: the ledger cannot be read.
        """
        # Locks first: what is written before a run lets its folder go is seen, then.
        may_go_on = self._run is None and "://" not in self.target and is_held(Path(self.target))
        with self._opened() as (ledger, name):
            held = _is_worked_on(ledger)
            seen = standing(ledger, last=_MOST_RESULTS)
            state = _state(held, seen.budget_spent)
            # A comparison goes on with its next search.
            over = state in (RunState.SPENT, RunState.STOPPED) and not (name and may_go_on)
            return Sight(seen, state, ledger.url, name, over)

    def summary(self) -> dict[str, Any] | None:
        """What the run did so far, for ``summary.json``; ``None`` when there is nothing to see."""
        try:
            with self._opened() as (ledger, _):
                return summarise(ledger)
        except LedgerMissingError:
            return None

    @contextmanager
    def _opened(self) -> Iterator[tuple[LedgerReader, str]]:
        """The ledger, and its run's name among those of a folder of many; else no name."""
        below = runs_below(self.target)
        name = _latest(below) if below and self._run is None else self._run
        ledger = self._copied(name) or open_named(self.target, name)
        self._copy = (name, ledger) if ledger.reads_copy else None
        try:
            yield ledger, name or "" if below else ""
        finally:
            ledger.close()

    def _copied(self, name: str | None) -> LedgerReader | None:
        """The copy of the same run that was looked at before, if it is still what the ledger says."""
        if self._copy is None or self._copy[0] != name or self._copy[1].is_outdated:
            return None
        return self._copy[1]


def _latest(ledgers: Mapping[str, Path]) -> str:
    """The name of the run that was written to last."""
    return max(ledgers, key=lambda name: _written_at(ledgers[name]))


def _written_at(ledger: Path) -> float:
    times = [0.0]
    for file in (ledger, ledger.with_name(f"{ledger.name}-wal")):
        with suppress(OSError):  # a log comes and goes with its writers
            times.append(file.stat().st_mtime)
    return max(times)


def _is_worked_on(ledger: LedgerReader) -> bool | None:
    """Whether the run's folder is held; ``None`` where nobody can tell."""
    # A run whose ledger is elsewhere is named by its folder.
    folder = Path(ledger.run()["name"])
    if folder.is_absolute():
        return is_held(folder)
    return None if ledger.file is None else is_held(ledger.file.parent)


def _state(held: bool | None, spent: bool) -> RunState:
    if held:
        return RunState.RUNNING
    if spent:
        return RunState.SPENT
    return RunState.UNKNOWN if held is None else RunState.STOPPED
