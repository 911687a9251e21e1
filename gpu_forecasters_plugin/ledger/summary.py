"""What a run did, in numbers and in words: for the end of a run and for whoever looks at its ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_forecasters_plugin.decision import Action, Outcome
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.ledger.standing import COSTS

__all__ = ["best_over_time", "expected_speedup", "summarise", "summary_lines"]

Row = Mapping[str, Any]


def summarise(ledger: LedgerReader) -> dict[str, Any]:
    """What the run of this ledger did so far, for ``summary.json``."""
    run = ledger.run()
    budget = run["config"].get("budget", {})
    use = ledger.budget_use()
    decisions = ledger.decisions()
    best = best_over_time(decisions)
    return {
        "run": run["name"],
        "task": run["task"],
        "device": run["device"],
        "forecaster": run["forecaster"],
        "seed": run["seed"],
        "anchor": run["config"].get("anchor"),
        "budget": budget.get("measurements"),
        "budget_gpu_seconds": budget.get("gpu_seconds"),
        "budget_counts_forecasting": budget.get("count_forecasting", False),
        "measurements_used": use.measurements,
        "gpu_seconds": use.gpu_seconds,
        "candidates_considered": len(decisions),
        "best_speedup": best[-1]["speedup"] if best else None,
        "decisions": dict(Counter(f"{row['action']}/{row['reason']}" for row in decisions)),
        "outcomes": dict(Counter(row["outcome"] for row in decisions if row["outcome"] is not None)),
        "forecasting": _forecasting(decisions),
        "deferral": _deferral(ledger.pool_rows()),
        "best": best,
        "ledger": ledger.url,
    }


def _deferral(pools: Sequence[Row]) -> dict[str, Any]:
    """The threshold of the last pool, and how many pools each source of a threshold has decided."""
    return {
        "threshold": pools[-1]["threshold"] if pools else None,
        "pools": dict(
            Counter(pool["threshold_from"] for pool in pools if pool["threshold_from"] is not None)
        ),
    }


def _forecasting(decisions: Sequence[Row]) -> dict[str, Any]:
    """What was asked of the forecaster, what it answered, and what that cost."""
    costs = {name: name for name in COSTS} | {"gpu_seconds": "forecast_gpu_seconds"}
    return {
        "answered": sum(row["probabilities"] is not None for row in decisions),
        "failures": dict(Counter(row["failure"] for row in decisions if row["failure"] is not None)),
        "suspicious": sum(bool(row["suspicions"]) for row in decisions),
        **{name: sum(row[column] or 0 for row in decisions) for name, column in costs.items()},
    }


def best_over_time(decisions: Sequence[Row]) -> list[dict[str, Any]]:
    """Each kernel that was the fastest so far when its measurement ended, first to last.

    A kernel that was measured again, and faster, is listed once: with its best measurement.

    Args:
        decisions: as :meth:`~gpu_forecasters_plugin.ledger.Ledger.decisions` returns them.
    """
    ended = sorted((row for row in decisions if row["finished_at"] is not None), key=_by_end)
    found: list[dict[str, Any]] = []
    for number, row in enumerate(ended, start=1):
        if row["outcome"] == Outcome.OK and (not found or row["speedup"] > found[-1]["speedup"]):
            if found and found[-1]["candidate_key"] == row["candidate_key"]:
                found.pop()
            names = ("speedup", "time_us", "reason", "candidate_key", "finished_at")
            found.append(
                {"measurement": number, "decision": row["id"], **{name: row[name] for name in names}}
            )
    return found


def _by_end(row: Row) -> tuple[float, int]:
    return row["finished_at"], row["id"]


def expected_speedup(decision: Row) -> float | None:
    """Speed-up over the reference that was forecast; ``None`` without a forecast."""
    forecast = forecast_from_row(decision)
    if not isinstance(forecast, Forecast):
        return None
    return float(2 ** forecast.expected_log2() * decision["anchor_speedup"])


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


def _deferral_lines(deferral: Row) -> list[str]:
    """Nothing where the configured threshold was in force throughout."""
    if set(deferral["pools"]) <= {"configured"}:
        return []
    last = "none" if deferral["threshold"] is None else f"{deferral['threshold']:g}"
    return [
        _counted("pools by the source of their deferral threshold", deferral["pools"]) + f"; the last {last}"
    ]


def _counted(title: str, counts: Mapping[str, int]) -> str:
    """A number and what it is made of, the most frequent first."""
    parts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{count} {name}" for name, count in parts)
    return f"{title} {sum(counts.values())}" + (f": {text}" if text else "")
