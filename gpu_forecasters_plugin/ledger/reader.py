"""What is in a ledger, for whoever looks at it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select

from gpu_forecasters_plugin.errors import LedgerIdentityError
from gpu_forecasters_plugin.ledger import models, statements
from gpu_forecasters_plugin.ledger.engine import reading
from gpu_forecasters_plugin.ledger.read_only import COPIED_AT, open_to_read
from gpu_forecasters_plugin.ledger.records import BudgetUse, Charge, Worker, verdict_from_row
from gpu_forecasters_plugin.ledger.results import Result
from gpu_forecasters_plugin.ledger.sqlite_files import Stamp, write_stamp
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["LedgerReader"]

_BATCH = 2000


class LedgerReader:
    """One run's view of a ledger database that changes nothing in it, whatever version has written it.

    Promises: safe for many threads at once, and beside any number of processes that write; nothing is cached, so
    every answer is the database's; of a ledger of an older version, it is that of the moment when it was opened.
    """

    def __init__(self, target: str | Path, *, base: Path | None = None) -> None:
        """Open a ledger that is there.

        Args:
            target: SQLAlchemy URL, or path of an SQLite file.
            base: folder that a relative path is relative to.

        Raises:
            LedgerError: there is none, or it cannot be read.
        """
        self._engine = self._open(target, base)
        self.url = self._engine.url.render_as_string()
        """Where it is, without a password: for messages."""
        self.target = self._engine.url.render_as_string(hide_password=False)
        """What another process of this run opens it by; never stored or logged."""
        database = self._engine.url.database
        is_file = self._engine.dialect.name == "sqlite" and database is not None
        self.file = Path(str(database)) if is_file else None
        """The file that it is; ``None`` for another database."""
        self._copied_at: Stamp | None = self._engine.get_execution_options().get(COPIED_AT)
        self._run_id: int | None = None

    @staticmethod
    def _open(target: str | Path, base: Path | None) -> Engine:
        return open_to_read(target, base)

    @property
    def reads_copy(self) -> bool:
        """Whether the ledger is of an older version, and is read through a copy, which goes with this reader."""
        return self._copied_at is not None

    @property
    def is_outdated(self) -> bool:
        """Whether it reads a copy of a ledger that has been written to since."""
        return self.reads_copy and (self.file is None or write_stamp(self.file) != self._copied_at)

    def close(self) -> None:
        """Close the connections; the next method to be called opens new ones."""
        self._engine.dispose()

    def connection(self) -> AbstractContextManager[Connection]:
        """A connection to read with, for questions that no method answers."""
        return reading(self._engine)

    @property
    def run_id(self) -> int:
        """Number of the run in this database; :meth:`follow_run` sets it."""
        if self._run_id is None:
            raise LedgerIdentityError("no run was begun in this ledger: call begin_run first")
        return self._run_id

    def follow_run(self, run_id: int) -> None:
        """Work on a run that another process has begun."""
        self._run_id = run_id

    def runs(self) -> list[dict[str, Any]]:
        """Every run in this database, oldest first, as plain columns."""
        with reading(self._engine) as connection:
            query = select(models.run).order_by(models.run.c.id)
            return [dict(row) for row in connection.execute(query).mappings()]

    def run(self) -> dict[str, Any]:
        """The run that is followed, as plain columns."""
        return next(row for row in self.runs() if row["id"] == self.run_id)

    def imported_rows(self) -> int:
        """How many rows of elsewhere were imported into this database."""
        with reading(self._engine) as connection:
            return connection.execute(select(func.count()).select_from(models.imported)).scalar_one()

    def pools(self) -> int:
        """How many pools were decided."""
        with reading(self._engine) as connection:
            return int(connection.execute(statements.POOLS, {"run": self.run_id}).scalar_one())

    def pool_rows(self) -> list[dict[str, Any]]:
        """Every pool of the run, oldest first, as plain columns: trust, and the deferral that was in force."""
        p = models.pool
        query = select(p).where(p.c.run_id == self.run_id).order_by(p.c.number)
        with reading(self._engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def first_pool_of(self, decision_ids: Sequence[int]) -> int | None:
        """Number of the first pool that any of these decisions is of; ``None`` without any."""
        if not decision_ids:
            return None
        with reading(self._engine) as connection:
            values = {"decisions": list(decision_ids)}
            number: int | None = connection.execute(statements.FIRST_POOL, values).scalar_one()
            return number

    def was_miscalibrated(self) -> bool:
        """Whether the run's last pool was decided after an alarm of the drift test."""
        with reading(self._engine) as connection:
            found = connection.execute(statements.LAST_POOL_MISCALIBRATED, {"run": self.run_id})
            return bool(found.scalar_one_or_none())

    def budget_use(self, *, forecasts: bool = False) -> BudgetUse:
        """What the run has spent so far.

        Args:
            forecasts: count their GPU-seconds too, which reads every decision of the run.
        """
        values = {"run": self.run_id}
        with reading(self._engine) as connection:
            total, unfinished, seconds = connection.execute(statements.BUDGET_USE, values).one()
            use = BudgetUse(total, unfinished, float(seconds))
            if not forecasts:
                return use
            price = connection.execute(statements.FORECAST_GPU_SECONDS, values).scalar_one()
        return replace(use, forecast_gpu_seconds=float(price))

    def open_charges(self) -> list[Charge]:
        """Measurements that were paid for and have not ended."""
        with reading(self._engine) as connection:
            rows = connection.execute(statements.OPEN_CHARGES, {"run": self.run_id})
            return [Charge(decision, key, at, Worker(*worker)) for decision, key, at, *worker in rows]

    def results_since(self, revision: int) -> list[Result]:
        """Results written after ``revision``, in the order in which they were written; see also :meth:`payload`."""
        with reading(self._engine) as connection:
            values = {"run": self.run_id, "after": revision}
            return [Result(row) for row in connection.execute(statements.RESULTS_SINCE, values).mappings()]

    def audit_results(self) -> list[Result]:
        """Results of candidates that were drawn at random, in the order of their decisions; without their sources."""
        with reading(self._engine) as connection:
            rows = connection.execute(statements.AUDIT_RESULTS, {"run": self.run_id})
            return [Result(row) for row in rows.mappings()]

    def confidences(self) -> list[float]:
        """Confidence of every forecast of the run, whether or not its candidate was measured."""
        with reading(self._engine) as connection:
            return list(connection.execute(statements.CONFIDENCES, {"run": self.run_id}).scalars())

    def verdicts(self, keys: Collection[str] | None = None) -> dict[str, Verdict]:
        """What the compiler said of each candidate that was screened, by candidate key, the first one first.

        Args:
            keys: of these candidates only.
        """
        s = models.screening
        query = select(s).where(s.c.run_id == self.run_id).order_by(s.c.created_at, s.c.candidate_key)
        if keys is not None:
            query = query.where(s.c.candidate_key.in_(sorted(keys)))
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings()
            return {row["candidate_key"]: verdict_from_row(row) for row in rows}

    def payload(self, decision_id: int) -> str | None:
        """The payload of a decision's measurement: up to a megabyte, so :meth:`results_since` leaves it out."""
        with reading(self._engine) as connection:
            values = {"run": self.run_id, "decision": decision_id}
            return connection.execute(statements.PAYLOAD, values).scalar_one_or_none()

    def decisions(self, *, last: int | None = None) -> list[dict[str, Any]]:
        """Decisions of the run beside their measurements and verdicts, oldest first, as plain columns.

        Args:
            last: only so many of the latest; every one when left out, and :meth:`each_decision` for very many.
        """
        query = self._decision_rows()
        if last is not None:
            query = query.order_by(None).order_by(models.decision.c.id.desc()).limit(last)
        with reading(self._engine) as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return rows if last is None else rows[::-1]

    def each_decision(self) -> Iterator[dict[str, Any]]:
        """What :meth:`decisions` returns, one by one: a run may have a million."""
        with reading(self._engine) as connection:
            query = self._decision_rows().execution_options(yield_per=_BATCH)
            for row in connection.execute(query).mappings():
                yield dict(row)

    def _decision_rows(self) -> Select[Any]:
        d, m, p, s = models.decision, models.measurement, models.pool, models.screening
        result_columns = (m.c.outcome, m.c.time_us, m.c.speedup, m.c.gpu_seconds, m.c.error, m.c.finished_at)
        verdict_columns = [
            s.c[name].label(f"screen_{name}") for name in ("status", "fault", "line", "message")
        ]
        return (
            select(d, p.c.number.label("pool_number"), p.c.anchor_speedup, *result_columns, *verdict_columns)
            .join(p, p.c.id == d.c.pool_id)
            .join(m, m.c.decision_id == d.c.id, isouter=True)
            .join(s, (s.c.run_id == d.c.run_id) & (s.c.candidate_key == d.c.candidate_key), isouter=True)
            .where(d.c.run_id == self.run_id)
            .order_by(d.c.id)
        )
