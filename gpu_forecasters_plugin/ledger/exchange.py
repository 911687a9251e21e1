"""Measured rows out of a ledger, and rows of elsewhere into it.

A row is one measured candidate beside its reference: what a forecaster is trained and evaluated on. Imported rows go
into a table of their own, which no run reads: they never answer for a candidate, never enter a budget and never count
as best, whatever task or device they name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from sqlalchemy import Column, ColumnElement, Connection, Engine, Select, func, select

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.errors import RowFileError
from gpu_forecasters_plugin.language import source_language
from gpu_forecasters_plugin.ledger import models
from gpu_forecasters_plugin.ledger.bulk import BulkInsert
from gpu_forecasters_plugin.ledger.engine import reading, writing
from gpu_forecasters_plugin.ledger.records import escape_text, unescape_text
from gpu_forecasters_plugin.validation import first_problem

__all__ = [
    "ImportCount",
    "PairRow",
    "check_row",
    "export_rows",
    "import_rows",
    "rows_without_reference",
]

_BATCH = 500
_TEXTS = ("task", "language", "hardware", "reference_code", "candidate_code")
_Positive = Annotated[float, Field(gt=0)]


@lru_cache(maxsize=64)  # every row of a task has the same reference
def _identity(code: str) -> tuple[str, str | None]:
    """Key of a source, and why it cannot be a kernel."""
    found = Candidate("imported", code)
    return found.key, found.problem


_SPEEDUPS = (1e-6, 1e6)
"""What lies beyond is a slip of a unit or of a pen, and one such row would decide every mean."""


class PairRow(BaseModel):
    """A measured candidate beside its reference.

    Attributes:
        id: name of the row; for a row of a run, unique among all ledgers.
        key: identity of the candidate's normalised source. Computed; what a file says is not believed.
        task: what the kernels compute.
        language: ``cuda``, ``triton``, ``pytorch`` or another.
        hardware: the device that both were measured on.
        reference_code: source that the speed-up is relative to.
        candidate_code: source that was measured.
        outcome: how the measurement ended.
        speedup: reference time / candidate time, 1e-6 to 1e6, above 1 is faster; null unless ``ok``.
        time_us: the candidate's time in microseconds, where it is known.
        reason: why it was measured, where a surrogate decided.
        sampling_probability: chance with which a row chosen at random was drawn: rows that a forecaster chose say
            little about how good the forecaster is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    id: Annotated[str, Field(min_length=1)] | None = None
    key: str | None = None
    task: str
    language: Annotated[str, Field(min_length=1)]
    hardware: str
    reference_code: str
    candidate_code: str
    outcome: Annotated[Outcome, Field(strict=False)]
    speedup: Annotated[float, Field(ge=_SPEEDUPS[0], le=_SPEEDUPS[1])] | None
    time_us: _Positive | None = None
    reason: Annotated[Reason, Field(strict=False)] | None = None
    sampling_probability: Annotated[float, Field(gt=0, le=1)] | None = None

    @field_validator("reference_code", "candidate_code")
    @classmethod
    def _is_source(cls, code: str) -> str:
        _, problem = _identity(code)
        if problem is not None:
            raise ValueError(problem)
        return code

    @field_validator("speedup", "time_us")
    @classmethod
    def _fits_outcome(cls, value: float | None, info: ValidationInfo) -> float | None:
        outcome = info.data.get("outcome")
        if value is not None and outcome not in (None, Outcome.OK):
            raise ValueError(f"must be null, since the outcome is {outcome}")
        if value is None and outcome is Outcome.OK and info.field_name == "speedup":
            raise ValueError("must be a number, since the outcome is ok")
        return value

    def named(self) -> PairRow:
        """The row with a name: its own, or one made of all that it says."""
        return self if self.id is not None else self.model_copy(update={"id": self._hash()[:32]})

    def digest(self) -> str:
        """Hash of all that the row says: the same row twice is one."""
        return self.named()._hash()

    def _hash(self) -> str:
        document = json.dumps(self.model_dump(mode="json", exclude={"key"}), sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()


@dataclass(frozen=True)
class ImportCount:
    """How many rows an import has added, and how many were in the ledger already."""

    added: int
    known: int


def check_row(document: Mapping[str, Any], where: str) -> PairRow:
    """A row as it was read from a file.

    Raises:
        RowFileError: it is not one; says where, and names the column.
    """
    try:
        return PairRow.model_validate(document)
    except ValidationError as error:
        raise RowFileError(f"{where}: {first_problem(error, PairRow)}") from None


def export_rows(
    engine: Engine, *, since: float | None = None, before: float | None = None
) -> Iterator[dict[str, Any]]:
    """Every finished measurement of every run, then every imported row, as columns of :class:`PairRow`.

    Args:
        engine: of the ledger.
        since: leave out what had ended, or been imported, before this moment, in seconds since 1970.
        before: leave out what ended, or was imported, at this moment or later.
    """
    measured = _measured_rows().where(*_within(models.measurement.c.finished_at, since, before))
    imported = select(models.imported).where(*_within(models.imported.c.imported_at, since, before))
    with reading(engine) as connection:
        streaming = connection.execution_options(yield_per=_BATCH)
        for row in streaming.execute(measured).mappings():
            yield _exported(row, f"{_run_token(row)}-{row['decision_id']}")
        for row in streaming.execute(imported.order_by(models.imported.c.id)).mappings():
            yield _exported(row, unescape_text(row["row_id"]))


def rows_without_reference(engine: Engine) -> int:
    """How many measurements :func:`export_rows` leaves out: their run never saw its reference's source."""
    run, m, c = models.run, models.measurement, models.candidate
    has_reference = select(c.c.key).where(c.c.run_id == run.c.id, c.c.key == run.c.reference_key).exists()
    query = select(func.count()).join(run, run.c.id == m.c.run_id).where(_is_finished(), ~has_reference)
    with reading(engine) as connection:
        return connection.execute(query).scalar_one()


def import_rows(engine: Engine, rows: Iterable[PairRow]) -> ImportCount:
    """Write rows of elsewhere, all or none; those that the ledger has already are left alone.

    Raises:
        LedgerWriteError: they could not be written; none was.
    """
    values = [_values(row.named()) for row in rows]  # before the ledger is locked for others
    with writing(engine) as connection:
        own = {_run_token(run) for run in connection.execute(select(models.run)).mappings()}
        before = _count(connection)
        # What was exported from this very ledger is in it as the measurement of a run.
        news = [row for row in values if row["row_id"].rpartition("-")[0] not in own]
        if news:
            BulkInsert(models.imported, engine.dialect)(connection, news)
        added = _count(connection) - before
    return ImportCount(added, len(values) - added)


def _within(moment: Column[Any], since: float | None, before: float | None) -> list[ColumnElement[bool]]:
    return ([] if since is None else [moment >= since]) + ([] if before is None else [moment < before])


def _is_finished() -> ColumnElement[bool]:
    return models.measurement.c.outcome.is_not(None) & ~models.measurement.c.provisional


def _measured_rows() -> Select[Any]:
    run, m, d, c = models.run, models.measurement, models.decision, models.candidate
    reference = c.alias("reference")
    return (
        select(
            *(run.c[name] for name in ("name", "created_at", "task", "reference_key")),
            run.c.device.label("hardware"),
            *(m.c[name] for name in ("decision_id", "candidate_key", "outcome", "speedup", "time_us")),
            *(d.c[name] for name in ("reason", "sampling_probability")),
            c.c.code.label("candidate_code"),
            reference.c.code.label("reference_code"),
        )
        .join_from(m, run, run.c.id == m.c.run_id)
        .join(d, d.c.id == m.c.decision_id)
        .join(c, (c.c.run_id == m.c.run_id) & (c.c.key == m.c.candidate_key))
        .join(reference, (reference.c.run_id == m.c.run_id) & (reference.c.key == run.c.reference_key))
        .where(_is_finished())
        .order_by(m.c.id)
    )


def _exported(row: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """The columns of :class:`PairRow`, in its order."""
    values = {column: row[column] for column in PairRow.model_fields if column in row}
    values |= {column: unescape_text(row[column]) for column in _TEXTS if column in row}
    values |= {"id": name, "key": row["candidate_key"]}
    values.setdefault("language", source_language(values["candidate_code"]))
    return {column: values[column] for column in PairRow.model_fields}


def _values(row: PairRow) -> dict[str, Any]:
    """Column values of an imported row that has a name."""
    values = row.model_dump(mode="json", exclude={"id", "key"})
    return (
        values
        | {name: escape_text(values[name]) for name in _TEXTS}
        | {
            "digest": row.digest(),
            "row_id": escape_text(row.id or ""),
            "candidate_key": _identity(row.candidate_code)[0],
            "imported_at": time.time(),
        }
    )


def _run_token(run: Mapping[Any, Any]) -> str:
    """A name for a run that no other ledger has."""
    parts = [run["name"], repr(run["created_at"]), run["task"], run["reference_key"]]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(models.imported)).scalar_one()
