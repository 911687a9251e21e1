"""Statements that a run executes again and again, built once: building one costs more than running it.

Their parameter ``run`` is the run's number.
"""

from __future__ import annotations

from sqlalchemy import BindParameter, bindparam, func, insert, literal, select

from gpu_forecasters_plugin.ledger import models

__all__ = [
    "AUDIT_RESULTS",
    "BUDGET_USE",
    "CONFIDENCES",
    "DECISION_NUMBERS",
    "FIRST_POOL",
    "FORECAST_GPU_SECONDS",
    "INSERT_POOL",
    "LAST_POOL_MISCALIBRATED",
    "MEASUREMENTS",
    "NEXT_REVISION",
    "OPEN_CHARGES",
    "PAYLOAD",
    "POOLS",
    "RESULTS_SINCE",
]

_RUN: BindParameter[int] = bindparam("run")
_decision, _measurement, _pool, _candidate = (
    models.decision,
    models.measurement,
    models.pool,
    models.candidate,
)

_UNFINISHED = _measurement.c.outcome.is_(None) | _measurement.c.provisional
"""Paid for, and a result is still to come."""

POOLS = select(func.count()).select_from(_pool).where(_pool.c.run_id == _RUN)
"""How many pools the run has decided."""

MEASUREMENTS = select(func.count()).select_from(_measurement).where(_measurement.c.run_id == _RUN)
"""How many measurements the run has paid for."""

INSERT_POOL = insert(_pool)

DECISION_NUMBERS = (
    select(_decision.c.id).where(_decision.c.pool_id == bindparam("pool")).order_by(_decision.c.id)
)
"""Numbers of the decisions of one ``pool``, in the order of their insert."""

FIRST_POOL = (
    select(func.min(_pool.c.number))
    .join(_decision, _decision.c.pool_id == _pool.c.id)
    .where(_decision.c.id.in_(bindparam("decisions", expanding=True)))
)
"""Number of the first pool that any of these ``decisions`` is of."""

LAST_POOL_MISCALIBRATED = (
    select(_pool.c.miscalibrated).where(_pool.c.run_id == _RUN).order_by(_pool.c.number.desc()).limit(1)
)
"""Whether the run's last pool was decided after an alarm of the drift test."""

BUDGET_USE = select(
    func.count(),
    func.count().filter(_UNFINISHED),
    func.coalesce(func.sum(_measurement.c.gpu_seconds), 0.0),
).where(_measurement.c.run_id == _RUN)
"""Measurements paid for, how many of them still run, and the seconds of those that ended."""

FORECAST_GPU_SECONDS = select(func.coalesce(func.sum(_decision.c.forecast_gpu_seconds), 0.0)).where(
    _decision.c.run_id == _RUN
)
"""GPU-seconds of the run's forecasts; reads every decision."""

OPEN_CHARGES = (
    select(
        _measurement.c.decision_id,
        _measurement.c.candidate_key,
        _measurement.c.charged_at,
        _measurement.c.worker_host,
        _measurement.c.worker_pid,
        _measurement.c.worker_started_at,
    )
    .where(_measurement.c.run_id == _RUN, _UNFINISHED)
    .order_by(_measurement.c.id)
)
"""Measurements that were paid for and have not ended, and who makes them."""

NEXT_REVISION = select(func.coalesce(func.max(_measurement.c.revision), 0) + 1).where(
    _measurement.c.run_id == _RUN
)
"""The number of the next result."""

_FORECAST_COLUMNS = [
    _decision.c[name]
    for name in (
        "probabilities components raw_sum source failure failure_detail seconds prompt_tokens "
        "cached_tokens completion_tokens reasoning_tokens forecast_gpu_seconds covered_mass suspicions "
        "disagrees p_invalid p_incorrect reason sampling_probability"
    ).split()
]

# All but what an evaluator said at length: a search keeps its results in memory, and asks for that when it is needed.
_RESULT_COLUMNS = [column for column in _measurement.c if column.name != "payload"]

PAYLOAD = select(_measurement.c.payload).where(
    _measurement.c.run_id == _RUN, _measurement.c.decision_id == bindparam("decision")
)
"""What the host wants back of the measurement of one ``decision``."""

RESULTS_SINCE = (
    select(*_RESULT_COLUMNS, _pool.c.number, _pool.c.anchor_speedup, _candidate.c.code, *_FORECAST_COLUMNS)
    .join(_decision, _decision.c.id == _measurement.c.decision_id)
    .join(_pool, _pool.c.id == _decision.c.pool_id)
    .join(
        _candidate,
        (_candidate.c.run_id == _measurement.c.run_id) & (_candidate.c.key == _measurement.c.candidate_key),
    )
    .where(
        _measurement.c.run_id == _RUN,
        _measurement.c.outcome.is_not(None),
        _measurement.c.revision > bindparam("after"),
    )
    .order_by(_measurement.c.revision)
)
"""Results written after revision ``after``, with what led to them, in the order in which they were written."""

AUDIT_RESULTS = (
    select(
        *_RESULT_COLUMNS,
        _pool.c.number,
        _pool.c.anchor_speedup,
        literal("").label("code"),
        *_FORECAST_COLUMNS,
    )
    .join(_decision, _decision.c.id == _measurement.c.decision_id)
    .join(_pool, _pool.c.id == _decision.c.pool_id)
    .where(
        _measurement.c.run_id == _RUN,
        _measurement.c.outcome.is_not(None),
        _decision.c.sampling_probability.is_not(None),
    )
    .order_by(_decision.c.id)
)
"""Results of candidates that were drawn at random, without their sources, in the order of their decisions."""

CONFIDENCES = select(_decision.c.confidence).where(
    _decision.c.run_id == _RUN, _decision.c.confidence.is_not(None)
)
"""Confidence of every forecast."""
