"""What a run's decisions and measurements add up to, counted by the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select

from gpu_forecasters_plugin.ledger import models
from gpu_forecasters_plugin.ledger.reading import RunSnapshot
from gpu_forecasters_plugin.ledger.records import unescape_text
from gpu_forecasters_plugin.ledger.standing import FORECASTS

__all__ = [
    "PoolSegment",
    "forecast_costs",
    "forecast_failures",
    "outcome_costs",
    "pool_deferral",
    "pool_segments",
    "pool_trust",
]

_d, _m, _p = models.decision, models.measurement, models.pool


@dataclass(frozen=True)
class PoolSegment:
    """Decisions of one action and reason in one part of a run.

    Attributes:
        segment: which part, from 0; parts hold about equally many pools each.
        action: ``measure`` or ``skip``.
        reason: why.
        count: how many.
    """

    segment: int
    action: str
    reason: str
    count: int


def pool_segments(run: RunSnapshot, parts: int) -> list[PoolSegment]:
    """Decisions by reason over the course of a run.

    Args:
        run: the run.
        parts: into how many parts its pools are divided at most.
    """
    first, last = run.connection.execute(
        select(func.min(_p.c.number), func.max(_p.c.number)).where(_p.c.run_id == run.run_id)
    ).one()
    if first is None:
        return []
    # Whole numbers throughout, and // truncates in both databases.
    part = ((_p.c.number - first) * min(parts, last - first + 1)) // (last - first + 1)
    query = (
        select(part.label("segment"), _d.c.action, _d.c.reason, func.count().label("count"))
        .join_from(_d, _p, _p.c.id == _d.c.pool_id)
        .where(_d.c.run_id == run.run_id)
        .group_by("segment", _d.c.action, _d.c.reason)
        .order_by("segment", _d.c.action, _d.c.reason)
    )
    return [PoolSegment(int(segment), *rest) for segment, *rest in run.connection.execute(query)]


def pool_trust(run: RunSnapshot) -> dict[str, Any]:
    """How far the run's pools trusted its forecasts.

    Returns:
        ``pools``; ``trust``, the sum over pools of the share of slots that the surrogate kept; ``miscalibrated``, in
        how many of them the drift test's alarm was on.
    """
    query = select(
        func.count().label("pools"),
        func.coalesce(func.sum(_p.c.trust), 0.0).label("trust"),
        func.coalesce(func.sum(case((_p.c.miscalibrated, 1), else_=0)), 0).label("miscalibrated"),
    ).where(_p.c.run_id == run.run_id)
    return run.rows(query)[0]


def pool_deferral(run: RunSnapshot) -> dict[str, Any]:
    """How the run's pools were deferred.

    Returns:
        ``target_risk``, for which a threshold was to be fitted (``None``: none was); ``threshold``, that of the last
        pool; ``pools``, how many pools had theirs from each source of a threshold.
    """
    of_run = _p.c.run_id == run.run_id
    counted = select(_p.c.threshold_from, func.count()).where(of_run).group_by(_p.c.threshold_from)
    last = select(_p.c.threshold).where(of_run).order_by(_p.c.number.desc()).limit(1)
    sources = {source: count for source, count in run.connection.execute(counted) if source is not None}
    return {
        "target_risk": run.run["config"].get("deferral", {}).get("target_risk"),
        "threshold": run.connection.execute(last).scalar_one_or_none(),
        "pools": sources,
    }


def outcome_costs(run: RunSnapshot) -> list[dict[str, Any]]:
    """Measurements by outcome: ``outcome`` (``None``: not ended), ``count``, ``gpu_seconds``; the dearest first."""
    seconds = func.coalesce(func.sum(_m.c.gpu_seconds), 0.0)
    query = (
        select(_m.c.outcome, func.count().label("count"), seconds.label("gpu_seconds"))
        .where(_m.c.run_id == run.run_id)
        .group_by(_m.c.outcome)
    )
    return sorted(run.rows(query), key=lambda row: (-row["gpu_seconds"], -row["count"], row["outcome"] or ""))


def forecast_costs(run: RunSnapshot) -> dict[str, Any]:
    """What was asked of the forecaster, and what that cost.

    Returns:
        ``answered``, ``suspicious``, sums of :data:`~gpu_forecasters_plugin.ledger.standing.COSTS` and
        ``gpu_seconds``, and ``waited_seconds``: from the questions of each pool to their answers.
    """
    costs = dict(run.connection.execute(FORECASTS, {"run": run.run_id}).mappings().one())
    waited = select(func.coalesce(func.sum(_p.c.forecast_seconds), 0.0)).where(_p.c.run_id == run.run_id)
    return costs | {"waited_seconds": run.connection.execute(waited).scalar_one()}


def forecast_failures(run: RunSnapshot) -> list[dict[str, Any]]:
    """Forecasts that failed: ``failure`` (its kind), ``count``, and the ``detail`` of one; the most frequent first."""
    query = (
        select(_d.c.failure, func.count().label("count"), func.min(_d.c.id).label("first"))
        .where(_d.c.run_id == run.run_id, _d.c.failure.is_not(None))
        .group_by(_d.c.failure)
        .order_by(func.count().desc(), _d.c.failure)
    )
    found = run.rows(query)
    details = select(_d.c.id, _d.c.failure_detail).where(_d.c.id.in_([row["first"] for row in found]))
    text = {i: unescape_text(detail or "") for i, detail in run.connection.execute(details)}
    return [{"failure": row["failure"], "count": row["count"], "detail": text[row["first"]]} for row in found]
