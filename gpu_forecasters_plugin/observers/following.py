"""A run's ledger as a stream of events, read beside whoever writes it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, select

from gpu_forecasters_plugin.decision import Action, Decision, Outcome, Reason
from gpu_forecasters_plugin.ledger import models, statements
from gpu_forecasters_plugin.ledger.engine import reading
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.records import forecast_from_row, measurement_from_row, unescape_text
from gpu_forecasters_plugin.observers.events import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    RunEnded,
)

__all__ = ["RunFollower"]

_d, _m, _p = models.decision, models.measurement, models.pool
_RUN: BindParameter[int] = bindparam("run")
_ENDED = (_m.c.run_id == _RUN) & _m.c.outcome.is_not(None)

_DECISIONS_SINCE = (
    select(_d, _p.c.number.label("pool_number"), _p.c.anchor_speedup, _p.c.trust)
    .join(_p, _p.c.id == _d.c.pool_id)
    .where(_d.c.run_id == _RUN, _d.c.id > bindparam("after"))
    .order_by(_d.c.id)
)
_LAST_DECISION = select(func.coalesce(func.max(_d.c.id), 0)).where(_d.c.run_id == _RUN)
_SO_FAR = select(
    func.coalesce(func.max(_m.c.revision), 0),
    func.count().filter(~_m.c.provisional),
    func.max(_m.c.speedup).filter(_m.c.outcome == Outcome.OK.value, ~_m.c.provisional),
).where(_ENDED)

_Timed = tuple[float, int, Event]


class RunFollower(LedgerReader):
    """Reads what a run writes from now on.

    Not for several threads at once.

    Args:
        target: the ledger, as its :attr:`~gpu_forecasters_plugin.ledger.Ledger.target` says.
        run_id: number of the run.
    """

    def __init__(self, target: str, run_id: int) -> None:
        super().__init__(target)
        self.follow_run(run_id)
        with reading(self._engine) as connection:
            self._decision: int = connection.execute(_LAST_DECISION, {"run": run_id}).scalar_one()
            self._revision, self._ended, self._best = connection.execute(_SO_FAR, {"run": run_id}).one()

    def new_events(self) -> list[Event]:
        """What was written since the last call, in the order in which it was written."""
        values = {"run": self.run_id}
        with reading(self._engine) as connection:
            # Results first: the decisions that they follow were written before them.
            since = values | {"after": self._revision}
            results = connection.execute(statements.RESULTS_SINCE, since).mappings().all()
            since = values | {"after": self._decision}
            decisions = connection.execute(_DECISIONS_SINCE, since).mappings().all()
        taken_at = {row["id"]: row["created_at"] for row in decisions}
        if decisions:
            self._decision = decisions[-1]["id"]
        if results:
            self._revision = results[-1]["revision"]
        streams = self._decided(decisions), self._measured(results, taken_at)
        return [event for _, _, event in merge(*streams, key=lambda timed: timed[:2])]

    def ended(self) -> RunEnded:
        """The last event."""
        return RunEnded(time.time(), self._ended, self._best)

    @staticmethod
    def _decided(rows: Any) -> Iterator[_Timed]:
        at = 0.0
        for row in rows:
            at = max(at, row["created_at"])  # a clock that was set back reorders nothing
            forecast = forecast_from_row(row)
            name = unescape_text(row["candidate_id"])
            if forecast is not None:
                made = ForecastMade(
                    row["created_at"],
                    row["pool_number"],
                    name,
                    row["candidate_key"],
                    forecast,
                    row["anchor_speedup"],
                )
                yield at, 0, made
            decision = Decision(
                row["id"],
                name,
                row["candidate_key"],
                row["pool_id"],
                Action(row["action"]),
                Reason(row["reason"]),
                row["score"],
                row["confidence"],
                forecast,
                row["sampling_probability"],
            )
            yield at, 0, DecisionTaken(row["created_at"], row["pool_number"], decision, row["trust"])

    def _measured(self, rows: Any, taken_at: Mapping[int, float]) -> Iterator[_Timed]:
        at = 0.0
        for row in rows:
            at = max(at, row["finished_at"], taken_at.get(row["decision_id"], 0.0))
            if row["provisional"]:
                continue  # more follows
            measurement = measurement_from_row(row)
            # What is late has been counted when it was given up.
            self._ended += measurement.outcome is not Outcome.LATE
            if measurement.speedup is not None:
                self._best = max(self._best or 0.0, measurement.speedup)
            ended = MeasurementEnded(
                row["finished_at"],
                row["decision_id"],
                row["candidate_key"],
                row["number"],
                row["reason"],
                measurement,
                self._ended,
                self._best,
            )
            yield at, 1, ended
