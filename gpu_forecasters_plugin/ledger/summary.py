"""What a run did, in numbers and in words: for the end of a run and for whoever looks at its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from gpu_forecasters_plugin.decision import Action
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.reading import improvements, snapshot
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.ledger.screenings import screen_totals
from gpu_forecasters_plugin.ledger.standing import COSTS, DECISIONS, numbers_by
from gpu_forecasters_plugin.ledger.totals import outcome_costs, pool_deferral

__all__ = ["expected_speedup", "summarise", "summary_lines"]

Row = Mapping[str, Any]


def summarise(ledger: LedgerReader) -> dict[str, Any]:
    """What the run of this ledger did so far, for ``summary.json``; however long it is, the database counts."""
    with snapshot(ledger) as run:
        groups = run.connection.execute(DECISIONS, {"run": run.run_id}).mappings().all()
        measurements, deferral = outcome_costs(run), pool_deferral(run)
        screened = screen_totals(run.connection, run.run_id)
        best = [_improvement(row) for row in _once_each(improvements(run))]
    row = run.run
    budget = row["config"].get("budget", {})
    return {
        "run": row["name"],
        "task": row["task"],
        "device": row["device"],
        "forecaster": row["forecaster"],
        "seed": row["seed"],
        "anchor": row["config"].get("anchor"),
        "budget": budget.get("measurements"),
        "budget_gpu_seconds": budget.get("gpu_seconds"),
        "budget_counts_forecasting": budget.get("count_forecasting", False),
        "measurements_used": sum(group["count"] for group in measurements),
        "gpu_seconds": float(sum(group["gpu_seconds"] for group in measurements)),
        "candidates_considered": sum(group["number"] for group in groups),
        "best_speedup": best[-1]["speedup"] if best else None,
        "decisions": numbers_by(groups, lambda group: f"{group['action']}/{group['reason']}"),
        "outcomes": {g["outcome"]: g["count"] for g in measurements if g["outcome"] is not None},
        "forecasting": _forecasting(groups),
        "deferral": deferral,
        "screening": None if screened is None else screened.summary(row["config"].get("keep_fraction")),
        "best": best,
        "ledger": ledger.url,
    }


def _forecasting(groups: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """What was asked of the forecaster, what it answered, and what that cost."""
    names = ("answered", "suspicious", *COSTS, "gpu_seconds")
    failed = [group for group in groups if group["failure"] is not None]
    failures = numbers_by(failed, lambda group: str(group["failure"]))
    return {name: sum(group[name] for group in groups) for name in names} | {"failures": failures}


def _once_each(best: Sequence[Row]) -> list[Row]:
    """Of a kernel that was measured again, and faster, its best measurement alone."""
    return [list(rows)[-1] for _, rows in groupby(best, itemgetter("candidate_key"))]


def _improvement(row: Row) -> dict[str, Any]:
    names = ("decision", "speedup", "time_us", "reason", "candidate_key", "finished_at")
    return {"measurement": row["number"], **{name: row[name] for name in names}}


def expected_speedup(decision: Row) -> float | None:
    """Speed-up over the reference that was forecast; ``None`` without a forecast."""
    forecast = forecast_from_row(decision)
    if not isinstance(forecast, Forecast):
        return None
    return float(2 ** forecast.expected_log2() * decision["anchor_speedup"])


def anchor_in_words(anchor: str | None) -> str:
    """The kernel that a run's bins are relative to, by the setting ``anchor``."""
    return {"incumbent": "the best kernel so far", "reference": "the reference"}.get(
        anchor or "", "its anchor"
    )


def summary_lines(summary: Row) -> list[str]:
    """The same in words: measured, skipped, why, and the best."""
    best = summary["best_speedup"]
    limit = "" if summary["budget"] is None else f" of {summary['budget']}"
    lines = [
        f"{summary['measurements_used']}{limit} measurements for {summary['candidates_considered']} candidates; "
        + ("no speed-up measured" if best is None else f"best speed-up {best:.3f}x")
    ]
    for title, action in (("decided to measure", Action.MEASURE), ("decided to skip", Action.SKIP)):
        prefix = f"{action}/"
        counts = {k.removeprefix(prefix): n for k, n in summary["decisions"].items() if k.startswith(prefix)}
        lines.append(_counted(title, counts))
    lines.append(_counted("outcomes", summary["outcomes"]))
    lines += _screening_lines(summary["screening"])
    return [*lines, *_forecasting_lines(summary["forecasting"]), *_deferral_lines(summary["deferral"])]


def _forecasting_lines(forecasting: Row) -> list[str]:
    """Nothing where all went well and cost nothing."""
    lines = []
    if forecasting["failures"]:
        lines.append(_counted("failed forecasts", forecasting["failures"]))
    if forecasting["suspicious"]:
        lines.append(f"candidates whose forecast was not to be trusted: {forecasting['suspicious']}")
    if forecasting["prompt_tokens"]:
        tokens = {name.removesuffix("_tokens"): forecasting[name] for name in COSTS if "tokens" in name}
        lines.append("forecast tokens: " + ", ".join(f"{count} {name}" for name, count in tokens.items()))
    if forecasting["gpu_seconds"]:
        lines.append(f"forecasting took {forecasting['gpu_seconds']:.1f} GPU-seconds")
    return lines


def _screening_lines(screening: Row | None) -> list[str]:
    """Nothing where no screen was in force."""
    if screening is None:
        return []
    lines = [_counted("candidates screened", screening["candidates"])]
    if screening["faults"]:
        lines.append(_counted("cannot run", screening["faults"]))
    if screening["missed"]:
        lines.append(f"not called invalid, and did not build or run: {screening['missed']}")
    return lines


def _deferral_lines(deferral: Row) -> list[str]:
    """Nothing where the configured threshold was in force throughout, as it was meant to be."""
    last = "none" if deferral["threshold"] is None else f"{deferral['threshold']:g}"
    if set(deferral["pools"]) <= {"configured"}:
        if deferral["target_risk"] is None or not deferral["pools"]:
            return []
        return [
            f"no deferral threshold had the guarantee of target_risk {deferral['target_risk']:g} in any of the "
            f"{sum(deferral['pools'].values())} pools: the configured one was in force, {last}"
        ]
    return [
        _counted("pools by the source of their deferral threshold", deferral["pools"]) + f"; the last {last}"
    ]


def _counted(title: str, counts: Mapping[str, int]) -> str:
    """A number and what it is made of, the most frequent first."""
    parts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{count} {name}" for name, count in parts)
    return f"{title} {sum(counts.values())}" + (f": {text}" if text else "")
