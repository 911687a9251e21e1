"""How a run stands right now: a few sums over its ledger, quick enough to be asked again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, bindparam, func, select

from gpu_forecasters_plugin.budget import Budget
from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.ledger import BudgetUse, LedgerReader, models

__all__ = ["COSTS", "DECISIONS", "FORECASTS", "RunStanding", "numbers_by", "standing"]

Row = Mapping[str, Any]
K = TypeVar("K")

COSTS = ("seconds", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
"""Columns of a decision that say what its forecast cost; GPU-seconds apart."""

_NEEDS_NO_FORECAST = (Reason.DUPLICATE, Reason.INVALID_SOURCE, Reason.WARM_UP, Reason.BUDGET_SPENT)
_POOLS_LOOKED_AT = 100

_d, _m, _p = models.decision, models.measurement, models.pool
_run = bindparam("run", type_=_d.c.run_id.type)


@dataclass(frozen=True)
class RunStanding:
    """How a run stands.

    Attributes:
        run: its row: name, identity, configuration.
        use: what it has spent.
        still_measuring: whether a process that may still live is measuring.
        decisions: how many by action and reason.
        outcomes: measurements that have ended, by outcome.
        failures: forecasts that failed, by kind.
        answered: forecasts that were given.
        suspicious: candidates whose forecast was not to be trusted.
        costs: sums of :data:`COSTS`, and ``gpu_seconds``, over all forecasts.
        silent_pools: how many of the latest pools in a row, up to a hundred, got no forecast though they needed one.
        pool: the latest pool; ``None`` before the first.
        best: the fastest measurement; ``None`` before the first that is ``ok``.
        last: the latest measurements that have ended, oldest first.
    """

    run: Row
    use: BudgetUse
    still_measuring: bool
    decisions: Mapping[tuple[str, str], int]
    outcomes: Mapping[str, int]
    failures: Mapping[str, int]
    answered: int
    suspicious: int
    costs: Mapping[str, float]
    silent_pools: int
    pool: Row | None
    best: Row | None
    last: Sequence[Row]

    @property
    def budget(self) -> Budget:
        """What it may spend."""
        limits = self.run["config"].get("budget", {})
        return Budget(
            limits.get("measurements"), limits.get("gpu_seconds"), limits.get("count_forecasting", False)
        )

    @property
    def gpu_seconds(self) -> float:
        """What counts against the budget's GPU-seconds."""
        forecasts = self.use.forecast_gpu_seconds if self.budget.count_forecasting else None
        return self.use.gpu_seconds + (forecasts or 0.0)

    @property
    def budget_spent(self) -> bool:
        """Whether no measurement may be made any more, and none is being made."""
        return self.budget.remaining(self.use) == 0 and not self.still_measuring


_SUMS = {name: _d.c[name] for name in COSTS} | {"gpu_seconds": _d.c.forecast_gpu_seconds}
_FORECAST_SUMS = (
    func.count(_d.c.probabilities).label("answered"),
    func.count(_d.c.suspicions).label("suspicious"),
    *(func.coalesce(func.sum(column), 0).label(name) for name, column in _SUMS.items()),
)

FORECASTS = select(*_FORECAST_SUMS).where(_d.c.run_id == _run)
"""Forecasts given and not to be trusted, and what all of them cost."""

# One walk over the decisions: there may be a million.
DECISIONS = (
    select(_d.c.action, _d.c.reason, _d.c.failure, func.count().label("number"), *_FORECAST_SUMS)
    .where(_d.c.run_id == _run)
    .group_by(_d.c.action, _d.c.reason, _d.c.failure)
)
"""Decisions by action, reason and kind of failure: their ``number``, and what :data:`FORECASTS` has of each."""

_OUTCOMES = (
    select(_m.c.outcome, func.count())
    .where(_m.c.run_id == _run, _m.c.outcome.is_not(None))
    .group_by(_m.c.outcome)
)
_LAST_POOL = select(_p).where(_p.c.run_id == _run).order_by(_p.c.number.desc()).limit(1)
_ANSWERS_OF_POOLS = (
    select(_p.c.number, func.count(_d.c.probabilities))
    .join(_d, _d.c.pool_id == _p.c.id)
    .where(
        _p.c.run_id == _run,
        _p.c.number > bindparam("after", type_=_p.c.number.type),
        _d.c.reason.not_in([reason.value for reason in _NEEDS_NO_FORECAST]) | _d.c.probabilities.is_not(None),
    )
    .group_by(_p.c.number)
    .order_by(_p.c.number.desc())
)
_RESULTS = (
    select(
        _d,
        _p.c.anchor_speedup,
        *(_m.c[name] for name in ("outcome", "speedup", "time_us", "gpu_seconds", "finished_at")),
    )
    .join(_d, _d.c.id == _m.c.decision_id)
    .join(_p, _p.c.id == _d.c.pool_id)
    .where(_m.c.run_id == _run, _m.c.outcome.is_not(None))
)
_BEST = (
    _RESULTS.where(_m.c.outcome == Outcome.OK.value)
    .order_by(_m.c.speedup.desc(), _m.c.finished_at, _m.c.id)
    .limit(1)
)
_LAST = _RESULTS.order_by(_m.c.finished_at.desc(), _m.c.id.desc()).limit(
    bindparam("limit", type_=_d.c.id.type)
)


def standing(ledger: LedgerReader, *, last: int = 10) -> RunStanding:
    """How the run of a ledger stands.

    Args:
        ledger: follows the run.
        last: how many of the latest measurements to return.
    """
    use = ledger.budget_use()
    still_measuring = any(charge.worker.may_be_alive() for charge in ledger.open_charges())
    values = {"run": ledger.run_id}
    with ledger.connection() as connection:
        groups = connection.execute(DECISIONS, values).mappings().all()
        costs = {name: sum(group[name] for group in groups) for name in _SUMS}
        pool = _first(connection, _LAST_POOL, values)
        results = connection.execute(_LAST, values | {"limit": last}).mappings()
        return RunStanding(
            ledger.run(),
            replace(use, forecast_gpu_seconds=costs["gpu_seconds"]),
            still_measuring,
            numbers_by(groups, lambda group: (group["action"], group["reason"])),
            {outcome: n for outcome, n in connection.execute(_OUTCOMES, values)},
            numbers_by([g for g in groups if g["failure"] is not None], lambda group: group["failure"]),
            sum(group["answered"] for group in groups),
            sum(group["suspicious"] for group in groups),
            costs,
            0 if pool is None else _silent_pools(connection, values, pool["number"]),
            pool,
            _first(connection, _BEST, values),
            [dict(row) for row in results][::-1],
        )


def numbers_by(groups: Iterable[Any], key: Callable[[Any], K]) -> dict[K, int]:
    """How many decisions there are of each kind, from the rows of :data:`DECISIONS`."""
    found: Counter[K] = Counter()
    for group in groups:
        found[key(group)] += group["number"]
    return dict(found)


def _first(connection: Connection, query: Select[Any], values: Row) -> Row | None:
    row = connection.execute(query, values).mappings().first()
    return None if row is None else dict(row)


def _silent_pools(connection: Connection, values: Row, latest: int) -> int:
    silent = 0
    after = {"after": latest - _POOLS_LOOKED_AT}
    for _, answered in connection.execute(_ANSWERS_OF_POOLS, {**values, **after}):
        if answered:
            break
        silent += 1
    return silent
