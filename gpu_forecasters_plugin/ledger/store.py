"""The ledger: the durable record of forecasts, decisions, charges and measurements.

It is the truth. What has not been written has not happened: decisions are written before they are handed out, a
charge before the evaluator is called, a result when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome
from gpu_forecasters_plugin.errors import LedgerIdentityError, UnknownDecisionError
from gpu_forecasters_plugin.ledger import models, statements
from gpu_forecasters_plugin.ledger.bulk import BulkInsert
from gpu_forecasters_plugin.ledger.engine import open_engine, writing
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.records import (
    DecisionDraft,
    PoolDraft,
    RunIdentity,
    Worker,
    decision_values,
    escape_text,
    measurement_values,
    screening_values,
)
from gpu_forecasters_plugin.screen.verdict import Status, Verdict

__all__ = ["Ledger"]

_MEANINGS = {
    "task": "the name of the program's folder, or surrogate.task",
    "reference_key": "the initial program",
    "evaluator_hash": "the evaluator file, its arguments or surrogate.metric",
}
"""What fields stand for whose names do not say it."""
_QUESTION = ("shapes",)
"""Settings of a run that are part of what its forecaster is asked, and stand in no other field or pool."""


class Ledger(LedgerReader):
    """One run's view of a ledger database, to write to.

    Promises: safe for many processes and threads at once (on one host with SQLite, on many with PostgreSQL);
    every method is one transaction; nothing is cached.
    """

    def __init__(self, target: str | Path, *, base: Path | None = None, durable: bool = True) -> None:
        """Open the database; create it where there is none, and upgrade one of an older version.

        Args:
            target: SQLAlchemy URL, or path of an SQLite file.
            base: folder that a relative path is relative to.
            durable: a charge or a result is on the disk before it counts. Without, it survives the end of any
                process, but not a power cut: for what can be done again at no cost.

        Raises:
            LedgerError: it cannot be opened, or was written by a newer version.
        """
        super().__init__(target, base=base)
        self._durable = durable
        self._insert_candidates = BulkInsert(models.candidate, self._engine.dialect)
        self._insert_decisions = BulkInsert(models.decision, self._engine.dialect)
        self._insert_screenings = BulkInsert(models.screening, self._engine.dialect)

    @staticmethod
    def _open(target: str | Path, base: Path | None) -> Engine:
        return open_engine(target, base)

    def begin_run(
        self, identity: RunIdentity, *, name: str = "run", config: dict[str, Any] | None = None
    ) -> bool:
        """Start a run, or resume the one of that name.

        Returns:
            Whether an earlier run is resumed.

        Raises:
            LedgerIdentityError: the run of that name has another identity, or its configuration asked another
                question of its forecaster; names the field.
        """
        with writing(self._engine, flush=self._durable) as connection:
            stored = (
                connection.execute(select(models.run).where(models.run.c.name == name)).mappings().first()
            )
            if stored is None:
                values = {"name": name, "created_at": time.time(), "package_version": __version__}
                values |= asdict(identity) | {"config": config or {}}
                self._run_id = connection.execute(insert(models.run).values(values)).inserted_primary_key[0]  # type: ignore[index]
                return False
            difference = identity.first_difference(dict(stored)) or _other_question(stored["config"], config)
            if difference is None and config not in (None, stored["config"]):
                # A larger budget, say: what a resume may change.
                changed = update(models.run).where(models.run.c.id == stored["id"]).values(config=config)
                connection.execute(changed)
        if difference is not None:
            field, old, new = difference
            meaning = f" ({_MEANINGS[field]})" if field in _MEANINGS else ""
            raise LedgerIdentityError(
                f"ledger {self.url} belongs to another run: {field}{meaning} was {old!r} and is now {new!r}; "
                "use a new output folder, or another ledger"
            )
        self._run_id = stored["id"]
        return True

    def record_pool(
        self,
        pool: PoolDraft,
        drafts: Sequence[DecisionDraft],
        candidates: Iterable[Candidate],
        verdicts: Mapping[str, Verdict] = MappingProxyType({}),
    ) -> list[Decision]:
        """Write a pool with its decisions, and the sources and verdicts that are new, in one transaction.

        Args:
            pool: the pool.
            drafts: its decisions.
            candidates: its candidates.
            verdicts: what the compiler said, by candidate key, where it was asked.

        Returns:
            The decisions under their numbers, in the order of the drafts.
        """
        now = time.time()
        sources = {c.key: escape_text(c.code) for c in candidates}
        # Not flushed: the charge that makes a decision count is, and takes it along.
        with writing(self._engine, flush=False) as connection:
            rows = [
                {"run_id": self.run_id, "key": key, "code": code, "created_at": now}
                for key, code in sources.items()
            ]
            self._insert_candidates(connection, rows)
            number = connection.execute(statements.POOLS, {"run": self.run_id}).scalar_one()
            pool_values = asdict(pool) | {"run_id": self.run_id, "number": number, "created_at": now}
            pool_id = connection.execute(statements.INSERT_POOL, pool_values).inserted_primary_key[0]  # type: ignore[index]
            shared = {"run_id": self.run_id, "pool_id": pool_id, "created_at": now}
            self._insert_decisions(connection, [decision_values(draft) | shared for draft in drafts])
            self._record_verdicts(connection, verdicts, now)
            # Numbers rise in the order of the insert; reading them back costs less than RETURNING for each.
            ids = connection.execute(statements.DECISION_NUMBERS, {"pool": pool_id}).scalars()
            return [draft.numbered(i, pool_id) for draft, i in zip(drafts, ids, strict=True)]

    def _record_verdicts(self, connection: Connection, verdicts: Mapping[str, Verdict], now: float) -> None:
        """Write verdicts; one that is there already stays, unless it left things undecided."""
        if not verdicts:
            return
        table = models.screening
        connection.execute(
            delete(table).where(
                table.c.run_id == self.run_id,
                table.c.candidate_key.in_(list(verdicts)),
                table.c.status == Status.UNDECIDED.value,
            )
        )
        shared = {"run_id": self.run_id, "created_at": now}
        rows = [{"candidate_key": key} | screening_values(v) | shared for key, v in verdicts.items()]
        self._insert_screenings(connection, rows)

    def charge(self, decision_id: int, worker: Worker, *, limit: int | None = None) -> bool:
        """Charge the budget for one measurement, before the evaluator is called.

        Args:
            decision_id: a decision to measure.
            worker: the process that will call the evaluator.
            limit: measurements that the run may make in all.

        Returns:
            Whether it may go on: False when the budget is spent, the decision was charged already, or somebody
            else has measured the same source meanwhile, or does right now.

        Raises:
            UnknownDecisionError: no such decision to measure in this run.
        """
        table = models.decision
        with writing(self._engine, flush=self._durable) as connection:
            row = connection.execute(
                select(table.c.candidate_key, table.c.action).where(
                    table.c.id == decision_id, table.c.run_id == self.run_id
                )
            ).first()
            if row is None or row.action != Action.MEASURE.value:
                raise UnknownDecisionError(f"decision {decision_id!r} is not one to measure in this run")
            used = connection.execute(statements.MEASUREMENTS, {"run": self.run_id}).scalar_one()
            if limit is not None and used >= limit:
                return False
            if self._is_paid_for(connection, row.candidate_key):
                return False
            values = {
                "run_id": self.run_id,
                "decision_id": decision_id,
                "candidate_key": row.candidate_key,
                "charged_at": time.time(),
                "worker_host": worker.host,
                "worker_pid": worker.pid,
                "worker_started_at": worker.started_at,
                "provisional": False,
            }
            try:
                with connection.begin_nested():
                    connection.execute(insert(models.measurement).values(values))
            except IntegrityError:
                return False
            return True

    def _is_paid_for(self, connection: Connection, candidate_key: str) -> bool:
        """Whether a source has its time, or is being measured by a process that may still live."""
        table = models.measurement
        rows = connection.execute(
            select(table).where(table.c.run_id == self.run_id, table.c.candidate_key == candidate_key)
        ).mappings()
        for row in rows:
            worker = Worker(row["worker_host"], row["worker_pid"], row["worker_started_at"])
            if row["outcome"] == Outcome.OK.value or (row["outcome"] is None and worker.may_be_alive()):
                return True
        return False

    def record_result(self, decision_id: int, result: Measurement, *, provisional: bool = False) -> bool:
        """Write how a charged measurement ended.

        A result replaces one that was provisional; the seconds of both are summed. After a ``timeout`` or an
        ``infrastructure`` verdict the evaluator's own answer is kept as ``late``, without its time.

        Returns:
            Whether it was written; False when a final result stands already.

        Raises:
            UnknownDecisionError: the decision was never charged.
        """
        table = models.measurement
        with writing(self._engine, flush=self._durable) as connection:
            query = select(table).where(table.c.decision_id == decision_id, table.c.run_id == self.run_id)
            row = connection.execute(query).mappings().first()
            if row is None:
                raise UnknownDecisionError(f"decision {decision_id!r} was not charged in this run")
            if row["outcome"] is not None and not row["provisional"]:
                if row["outcome"] not in (Outcome.TIMEOUT.value, Outcome.INFRASTRUCTURE.value):
                    return False
                result = Measurement(
                    Outcome.LATE,
                    gpu_seconds=max(result.gpu_seconds, row["gpu_seconds"]),
                    error=f"answered {result.outcome} after it was given up as {row['outcome']}",
                )
                provisional = False
            elif row["provisional"]:
                result = replace(result, gpu_seconds=row["gpu_seconds"] + result.gpu_seconds)
            revision = connection.execute(statements.NEXT_REVISION, {"run": self.run_id}).scalar_one()
            values = measurement_values(result) | {
                "revision": revision,
                "provisional": provisional,
                "finished_at": time.time(),
            }
            connection.execute(update(table).where(table.c.id == row["id"]).values(values))
            return True


def _other_question(
    stored: Mapping[str, Any], present: Mapping[str, Any] | None
) -> tuple[str, Any, Any] | None:
    """Name, stored and present value of the first setting by which two configurations ask different questions.

    What either does not say, as an older version may not have, makes no difference.
    """
    for name in _QUESTION:
        if present is not None and name in stored and name in present and stored[name] != present[name]:
            return f"surrogate.{name}", stored[name], present[name]
    return None
