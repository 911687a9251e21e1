"""What no version of this package writes: rows that another program has changed, or that a damaged file gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Engine, Table, func, or_, select

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import LedgerError
from gpu_forecasters_plugin.ledger import models
from gpu_forecasters_plugin.ledger.engine import reading

__all__ = ["check_run", "check_runs", "sound_rows"]

_ADVICE = "another program has changed the ledger, or it is damaged: use a copy of it from before"


def check_runs(engine: Engine) -> None:
    """:func:`check_run` of every run in a database."""
    with reading(engine) as connection:
        for run in connection.execute(select(models.run)).mappings().all():
            check_run(connection, run)


def check_run(connection: Connection, run: Mapping[Any, Any]) -> None:
    """Look for numbers that cannot be, before anything is counted or drawn from them.

    Args:
        connection: a connection to read with.
        run: row of the run.

    Raises:
        LedgerError: names the first row.
    """
    with sound_rows(f"the configuration of run {run['name']!r}"):
        limits = run["config"].get("budget", {})
        for name in ("measurements", "gpu_seconds"):
            if not isinstance(limits.get(name), int | float | None):
                raise TypeError(f"budget.{name} is {limits[name]!r}")
    m, p = models.measurement, models.pool
    is_ok = m.c.outcome == Outcome.OK.value
    _check(connection, m, run, is_ok & (m.c.speedup.is_(None) | _is_odd(m.c.speedup)), "a speed-up")
    _check(connection, m, run, or_(_is_odd(m.c.time_us), _is_odd(m.c.gpu_seconds, may_be_0=True)), "a time")
    _check(connection, p, run, _is_odd(p.c.anchor_speedup), "an anchor")
    d, c = models.decision, models.candidate
    its_candidate = select(c.c.key).where(c.c.run_id == d.c.run_id, c.c.key == d.c.candidate_key)
    _check(connection, d, run, ~its_candidate.exists(), "a candidate")


def _is_odd(column: Column[Any], *, may_be_0: bool = False) -> ColumnElement[bool]:
    # Whatever is no number counts as larger than every number: text in SQLite, NaN in PostgreSQL.
    too_small = column < 0.0 if may_be_0 else column <= 0.0
    return too_small | (column > sys.float_info.max)


def _check(
    connection: Connection, table: Table, run: Mapping[Any, Any], is_odd: ColumnElement[bool], what: str
) -> None:
    query = select(func.min(table.c.id)).where(table.c.run_id == run["id"], is_odd)
    first = connection.execute(query).scalar_one()
    if first is not None:
        raise LedgerError(f"{table.name} {first} of run {run['name']!r} has {what} that cannot be: {_ADVICE}")


@contextmanager
def sound_rows(what: str) -> Iterator[None]:
    """Around what takes stored values apart: values that cannot be are the ledger's fault.

    Raises:
        LedgerError: in place of what values that make no sense have raised.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LedgerError(f"{what} makes no sense ({reason}): {_ADVICE}") from error
