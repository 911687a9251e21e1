"""What a run's screen caught, and what became of the candidates that it let pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.ledger import models
from gpu_forecasters_plugin.ledger.records import unescape_text
from gpu_forecasters_plugin.screen.profile import SourceProfile
from gpu_forecasters_plugin.screen.verdict import Status, telling_line

__all__ = ["Fate", "ScreenReason", "ScreenTotals", "profiles_of", "screen_totals", "summed_totals"]

_MOST_REASONS = 10
_LONGEST_REASON = 200
_PARTICULARS = re.compile(r"""'[^']*'|"[^"]*"|\d+""")
_NOT_RUN = (Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR)

_s, _d, _m = models.screening, models.decision, models.measurement


@dataclass(frozen=True)
class Fate:
    """Decisions on screened candidates that went the same way.

    Attributes:
        status: of the verdict.
        action: ``measure`` or ``skip``.
        reason: why.
        outcome: of the measurement; ``None`` without one, or before it has ended.
        count: how many.
    """

    status: str
    action: str
    reason: str
    outcome: str | None
    count: int


@dataclass(frozen=True)
class ScreenReason:
    """Why candidates cannot run.

    Attributes:
        fault: kind of the fault.
        message: what the compiler said of one of them, in one line, with text of the candidate's in it.
        count: candidates of which it said the same but for names and numbers.
    """

    fault: str
    message: str
    count: int


@dataclass(frozen=True)
class ScreenTotals:
    """What a screen came to.

    Attributes:
        sources: distinct candidates by status of their verdict.
        faults: the invalid ones by fault.
        reasons: the most frequent faults, at most ten.
        fates: what became of all of them.
        cpu_seconds: processor time of the screening.
    """

    sources: Mapping[str, int]
    faults: Mapping[str, int]
    reasons: Sequence[ScreenReason]
    fates: Sequence[Fate]
    cpu_seconds: float

    @property
    def kept_from_gpu(self) -> int:
        """Candidates that were skipped because they cannot run."""
        return sum(f.count for f in self.fates if f.reason == Reason.INVALID_SOURCE)

    @property
    def missed(self) -> int:
        """Measurements of candidates that were not called invalid, and did not build or run."""
        return sum(f.count for f in self.fates if f.status != Status.INVALID and f.outcome in _NOT_RUN)

    @property
    def wrongly_invalid(self) -> int:
        """Measurements that were ``ok`` although the candidate was called invalid: only ``defer`` makes any."""
        return sum(f.count for f in self.fates if f.status == Status.INVALID and f.outcome == Outcome.OK)

    def summary(self, keep_fraction: float | None) -> dict[str, Any]:
        """The same as plain values; ``measurements_saved`` is what a filter that chooses blindly would have made.

        Args:
            keep_fraction: share of a pool that is measured.
        """
        saved = None if keep_fraction is None else self.kept_from_gpu * keep_fraction
        return {
            "candidates": dict(self.sources),
            "faults": dict(self.faults),
            "reasons": [asdict(reason) for reason in self.reasons],
            "kept_from_gpu": self.kept_from_gpu,
            "measurements_saved": saved,
            "missed": self.missed,
            "wrongly_invalid": self.wrongly_invalid,
            "cpu_seconds": self.cpu_seconds,
        }


def screen_totals(connection: Connection, run_id: int) -> ScreenTotals | None:
    """What the screen of a run came to; ``None`` where none was in force.

    Args:
        connection: to the ledger.
        run_id: number of the run.
    """
    of_run = _s.c.run_id == run_id
    counted = select(_s.c.status, _s.c.fault, func.count(), func.sum(_s.c.cpu_seconds)).where(of_run)
    groups = connection.execute(counted.group_by(_s.c.status, _s.c.fault)).all()
    if not groups:
        return None
    sources: dict[str, int] = {}
    for status, _, count, _ in groups:
        sources[status] = sources.get(status, 0) + count
    faults = {fault: count for _, fault, count, _ in groups if fault is not None}
    return ScreenTotals(
        sources,
        dict(sorted(faults.items(), key=lambda item: (-item[1], item[0]))),
        _reasons(connection, run_id),
        _fates(connection, run_id),
        float(sum(seconds for *_, seconds in groups)),
    )


def _fates(connection: Connection, run_id: int) -> list[Fate]:
    columns = (_s.c.status, _d.c.action, _d.c.reason, _m.c.outcome)
    query = (
        select(*columns, func.count())
        .join_from(_s, _d, (_d.c.run_id == _s.c.run_id) & (_d.c.candidate_key == _s.c.candidate_key))
        .join(_m, _m.c.decision_id == _d.c.id, isouter=True)
        # A duplicate's candidate is counted where it was decided on first.
        .where(_s.c.run_id == run_id, _d.c.reason != Reason.DUPLICATE.value)
        .group_by(*columns)
    )
    found = [Fate(*row) for row in connection.execute(query)]
    return sorted(found, key=lambda fate: (fate.status, -fate.count, fate.action, fate.outcome or ""))


def _reasons(connection: Connection, run_id: int) -> list[ScreenReason]:
    query = (
        select(_s.c.fault, _s.c.message)
        .where(_s.c.run_id == run_id, _s.c.fault.is_not(None))
        .order_by(_s.c.created_at, _s.c.candidate_key)
        .execution_options(yield_per=500)
    )
    rows = (
        ScreenReason(fault, telling_line(unescape_text(message))[:_LONGEST_REASON], 1)
        for fault, message in connection.execute(query)
    )
    return _most_frequent(rows)


def _most_frequent(reasons: Iterable[ScreenReason]) -> list[ScreenReason]:
    """Reasons that differ in names and numbers alone as one, in the words of the first."""
    found: dict[tuple[str, str], ScreenReason] = {}
    for reason in reasons:
        key = (reason.fault, _PARTICULARS.sub("…", reason.message))
        first = found.get(key)
        count = reason.count + (0 if first is None else first.count)
        found[key] = ScreenReason(reason.fault, (first or reason).message, count)
    return sorted(found.values(), key=lambda reason: -reason.count)[:_MOST_REASONS]


def profiles_of(connection: Connection, run_id: int, keys: Sequence[str]) -> dict[str, SourceProfile]:
    """What the compiler made of a few candidates, by key, as far as it was asked.

    Args:
        connection: to the ledger.
        run_id: number of the run.
        keys: the candidates.
    """
    query = select(_s.c.candidate_key, _s.c.profile).where(
        _s.c.run_id == run_id, _s.c.candidate_key.in_(keys)
    )
    return {
        key: SourceProfile.from_json(fields)
        for key, fields in connection.execute(query)
        if fields is not None
    }


def summed_totals(totals: Sequence[ScreenTotals | None]) -> ScreenTotals | None:
    """Those of several runs as one; ``None`` where no run was screened."""
    known = [entry for entry in totals if entry is not None]
    if not known:
        return None
    fates: dict[tuple[str, str, str, str | None], int] = {}
    for fate in (fate for entry in known for fate in entry.fates):
        place = (fate.status, fate.action, fate.reason, fate.outcome)
        fates[place] = fates.get(place, 0) + fate.count
    return ScreenTotals(
        _added([entry.sources for entry in known]),
        _added([entry.faults for entry in known]),
        _most_frequent(reason for entry in known for reason in entry.reasons),
        [Fate(*place, count) for place, count in fates.items()],
        sum(entry.cpu_seconds for entry in known),
    )


def _added(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}
