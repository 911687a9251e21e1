"""A whole run out of its ledger, however long: counted by the database, or streamed into arrays.

Of a million decisions only the measured rows' numbers and a few sources are ever held; what there is to count,
:mod:`totals` lets the database count. Everything is read from one snapshot, so that the numbers agree with each other
while other processes go on writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, case, func, select

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.ledger import models
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.records import unescape_text
from gpu_forecasters_plugin.ledger.soundness import sound_rows

__all__ = [
    "MEASURED_REASONS",
    "MeasuredRows",
    "RunSnapshot",
    "foreseen_risks",
    "improvements",
    "measured_rows",
    "repeated_speedups",
    "snapshot",
]

Row = Mapping[str, Any]

MEASURED_REASONS = tuple(Reason)
"""What :attr:`MeasuredRows.reason` is an index into."""

_BATCH = 2000
_SUM_TOLERANCE = 1e-6

_d, _m, _p, _c = models.decision, models.measurement, models.pool, models.candidate


@dataclass(frozen=True)
class RunSnapshot:
    """One run as its ledger was at one moment.

    Attributes:
        connection: reads; nobody else's writes are seen through it.
        run: the run's row: name, identity, configuration.
    """

    connection: Connection
    run: Row

    @property
    def run_id(self) -> int:
        """Number of the run in its ledger."""
        return int(self.run["id"])

    def rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        """All rows of a query that has few."""
        return [dict(row) for row in self.connection.execute(query).mappings()]

    def stream(self, query: Select[Any]) -> Iterator[Sequence[Any]]:
        """The rows of a query that may have very many, in batches of a bounded size."""
        return self.connection.execute(query.execution_options(yield_per=_BATCH)).partitions(_BATCH)

    def sources(self, keys: Iterable[str]) -> dict[str, str]:
        """Source text by candidate key, of a few candidates."""
        query = select(_c.c.key, _c.c.code).where(_c.c.run_id == self.run_id, _c.c.key.in_(sorted(set(keys))))
        return {key: unescape_text(code) for key, code in self.connection.execute(query)}

    def candidate_keys(self, decisions: Iterable[int]) -> dict[int, str]:
        """Candidate key by number of a decision, of a few decisions."""
        query = select(_d.c.id, _d.c.candidate_key).where(_d.c.id.in_(sorted(decisions)))
        return {number: key for number, key in self.connection.execute(query)}


@contextmanager
def snapshot(ledger: LedgerReader) -> Iterator[RunSnapshot]:
    """The run that a ledger follows, as it is now; writers are not held up meanwhile."""
    run = next(row for row in ledger.runs() if row["id"] == ledger.run_id)
    with ledger.connection() as connection:
        if connection.dialect.name == "sqlite":
            # The driver begins no transaction by itself; from its first read on, one sees a single state.
            connection.exec_driver_sql("BEGIN")
        else:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        yield RunSnapshot(connection, run)


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Every finished measurement that is ``ok``, by decision; n rows.

    Attributes:
        decision: number of its decision; shape (n,).
        pool: number of its pool; shape (n,).
        reason: why it was measured, as an index into :data:`MEASURED_REASONS`; shape (n,).
        speedup: over the reference; shape (n,).
        anchor_speedup: of the kernel that its forecast's bins are relative to, over the reference; shape (n,).
        sampling_probability: of rows drawn at random; NaN for others; shape (n,).
        probabilities: its forecast; NaN without one, or with one that was not to be trusted; shape (n, 8).
    """

    decision: NDArray[np.int64]
    pool: NDArray[np.int64]
    reason: NDArray[np.int8]
    speedup: NDArray[np.float64]
    anchor_speedup: NDArray[np.float64]
    sampling_probability: NDArray[np.float64]
    probabilities: NDArray[np.float64]


def measured_rows(run: RunSnapshot, on_rows: Callable[[int], None] = lambda count: None) -> MeasuredRows:
    """The numbers of every finished measurement that is ``ok``.

    Args:
        run: the run.
        on_rows: told how many were read, now and then.
    """
    query = (
        select(
            _d.c.id,
            _p.c.number,
            _d.c.reason,
            _m.c.speedup,
            _p.c.anchor_speedup,
            _d.c.sampling_probability,
            _d.c.probabilities,
            _d.c.suspicions,
        )
        .join_from(_m, _d, _d.c.id == _m.c.decision_id)
        .join(_p, _p.c.id == _d.c.pool_id)
        .where(_m.c.run_id == run.run_id, _m.c.outcome == Outcome.OK.value, ~_m.c.provisional)
        .order_by(_d.c.id)
    )
    indices = {reason.value: index for index, reason in enumerate(MEASURED_REASONS)}
    unknown = (float("nan"),) * N_BINS
    numbers, forecasts = [np.empty((0, 6))], [np.empty((0, N_BINS))]
    count = 0
    for batch in run.stream(query):
        with sound_rows(f"one of the decisions {batch[0][0]} to {batch[-1][0]}"):
            # A decision's number stays exact in a float up to 2**53.
            numbers.append(
                np.array([(i, pool, indices[why], s, a, _chance(p)) for i, pool, why, s, a, p, *_ in batch])
            )
            forecasts.append(
                _distributions([unknown if given is None or odd else given for *_, given, odd in batch])
            )
        count += len(batch)
        on_rows(count)
    decision, pool, reason, speedup, anchor, probability = np.concatenate(numbers).T
    return MeasuredRows(
        decision.astype(np.int64),
        pool.astype(np.int64),
        reason.astype(np.int8),
        speedup,
        anchor,
        probability,
        np.concatenate(forecasts),
    )


def foreseen_risks(run: RunSnapshot) -> Iterator[tuple[float, float, Outcome]]:
    """P(invalid), P(incorrect) and outcome of every finished measurement whose forecast foretold its risk."""
    query = (
        select(_d.c.p_invalid, _d.c.p_incorrect, _m.c.outcome)
        .join_from(_m, _d, _d.c.id == _m.c.decision_id)
        .where(
            _m.c.run_id == run.run_id,
            _m.c.outcome.is_not(None),
            ~_m.c.provisional,
            _d.c.p_invalid.is_not(None),
        )
        .order_by(_d.c.id)
    )
    for batch in run.stream(query):
        for invalid, incorrect, outcome in batch:
            yield invalid, incorrect, Outcome(outcome)


def _chance(sampling_probability: float | None) -> float:
    """NaN where it was not drawn at random."""
    if sampling_probability is None:
        return float("nan")
    if not 0.0 < sampling_probability <= 1.0:
        raise ValueError(f"a sampling probability is above 0 and at most 1, got {sampling_probability!r}")
    return sampling_probability


def _distributions(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Forecasts as an array of shape (n, 8); rows that are unknown are NaN throughout."""
    table = np.array(rows, dtype=np.float64).reshape(len(rows), N_BINS)
    sums = table.sum(axis=1)
    known = ~np.isnan(table).all(axis=1)
    if not ((table[known] >= 0).all() and (np.abs(sums[known] - 1.0) <= _SUM_TOLERANCE).all()):
        raise ValueError("a forecast is eight numbers of at least 0 that sum to 1")
    return table


def improvements(run: RunSnapshot) -> list[dict[str, Any]]:
    """Each measurement that was the fastest so far when it ended, first to last.

    Returns:
        ``number`` (of the measurement, by its end, from 1), ``decision``, ``candidate_key``, ``reason``, ``speedup``,
        ``time_us``, ``finished_at``.
    """
    order = (_m.c.finished_at, _m.c.decision_id)
    speedup = case((_m.c.outcome == Outcome.OK.value, _m.c.speedup))
    ended = (
        select(
            func.row_number().over(order_by=order).label("number"),
            func.max(speedup).over(order_by=order, rows=(None, -1)).label("before"),
            speedup.label("speedup"),
            *(_m.c[name] for name in ("decision_id", "candidate_key", "time_us", "finished_at")),
        )
        .where(_m.c.run_id == run.run_id, _m.c.outcome.is_not(None))
        .subquery()
    )
    faster = ended.c.speedup.is_not(None) & (ended.c.before.is_(None) | (ended.c.speedup > ended.c.before))
    query = (
        select(
            ended.c.number,
            _d.c.id.label("decision"),
            ended.c.candidate_key,
            _d.c.reason,
            *(ended.c[name] for name in ("speedup", "time_us", "finished_at")),
        )
        .join(_d, _d.c.id == ended.c.decision_id)
        .where(faster)
        .order_by(ended.c.number)
    )
    return run.rows(query)


def repeated_speedups(run: RunSnapshot, limit: int) -> list[list[float]]:
    """Speed-ups of kernels that were timed more than once, kernel by kernel; of at most ``limit`` kernels."""
    is_ok = (_m.c.run_id == run.run_id) & (_m.c.outcome == Outcome.OK.value)
    again = (
        select(_m.c.candidate_key)
        .where(is_ok)
        .group_by(_m.c.candidate_key)
        .having(func.count() > 1)
        .order_by(_m.c.candidate_key)
        .limit(limit)
    )
    query = (
        select(_m.c.candidate_key, _m.c.speedup)
        .where(is_ok, _m.c.candidate_key.in_(again))
        .order_by(_m.c.candidate_key, _m.c.id)
    )
    found: dict[str, list[float]] = {}
    for key, speedup in run.connection.execute(query):
        found.setdefault(key, []).append(speedup)
    return list(found.values())
