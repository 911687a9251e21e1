"""A run's facts in sentences and table rows: what the page prints, and what its data block holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gpu_forecasters_plugin.budget import Budget
from gpu_forecasters_plugin.decision import Action
from gpu_forecasters_plugin.report.facts import BestKernel, RunFacts
from gpu_forecasters_plugin.report.selection_gain import FEWEST_POOLS, SelectionGain

__all__ = ["best_sentence", "budget_of", "decision_counts", "gain_sentence", "identity_rows", "run_data"]

Row = Mapping[str, Any]

_IDENTITY = {
    "task": "task",
    "device": "device",
    "driver": "driver",
    "forecaster": "forecaster",
    "model": "model",
    "prompt_hash": "prompt (hash)",
    "reference_key": "reference (hash)",
    "evaluator_hash": "evaluator (hash)",
    "bin_scheme": "bins",
    "seed": "seed",
    "package_version": "package version",
}


def budget_of(facts: RunFacts) -> Budget:
    """What the run may spend."""
    limits = facts.run["config"].get("budget", {})
    return Budget(
        limits.get("measurements"), limits.get("gpu_seconds"), limits.get("count_forecasting", False)
    )


def decision_counts(facts: RunFacts) -> list[tuple[str, str, int]]:
    """Action, reason and how many; measured ones first, then the most frequent."""
    counts: dict[tuple[str, str], int] = {}
    for segment in facts.segments:
        place = (segment.action, segment.reason)
        counts[place] = counts.get(place, 0) + segment.count
    rows = [(action, reason, count) for (action, reason), count in counts.items()]
    return sorted(rows, key=lambda row: (row[0] != Action.MEASURE, -row[2], row[1]))


def _spent(facts: RunFacts) -> str:
    limit = budget_of(facts).measurements
    count = facts.measurements
    of = "" if limit is None or len(facts.names) > 1 else f" of {limit:,}"
    return f"{count:,}{of} measurement{'' if count == 1 and not of else 's'}"


def best_sentence(facts: RunFacts) -> str:
    """The fastest kernel, and what it took."""
    if facts.best is None:
        if not facts.measurements:
            return "Nothing has been measured yet."
        return f"No kernel has got a time, after {_spent(facts)}."
    so_far = " so far" if facts.under_way else ""
    return (
        f"The fastest kernel{so_far} is {facts.best.row['speedup']:.3g} times as fast as the reference, "
        f"after {_spent(facts)}"
    )


def gain_sentence(gain: SelectionGain) -> str:
    """What the run itself says about how well its filter chose."""
    if gain.ratio is None:
        return "how well the filter chose is not known: no pool has both a chosen and a random kernel with a time"
    if gain.interval is None:
        return (
            f"how well the filter chose is not known yet: it takes {FEWEST_POOLS} pools with both a chosen and a "
            f"random kernel that have a time, and there {'is' if gain.pools == 1 else 'are'} {gain.pools}"
        )
    low, high = gain.interval
    sense = {"faster": "", "slower": " (so it chose badly)"}.get(gain.verdict, " (no difference shown)")
    return (
        f"the kernels that the filter chose were {gain.ratio:.2f} times as fast as random ones of the same pools, "
        f"95 % interval {low:.2f} to {high:.2f}{sense}"
    )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def identity_rows(facts: RunFacts) -> list[tuple[str, str]]:
    """What makes two runs comparable, by name."""
    run = facts.run
    names = [("run", run["name"])] if len(facts.names) == 1 else [("runs", ", ".join(facts.names))]
    values = [(title, "" if run[key] is None else str(run[key])) for key, title in _IDENTITY.items()]
    ended = [row["finished_at"] for row in facts.course]
    times = [("begun", _utc(run["created_at"]))]
    times += [("last improvement", _utc(ended[-1]))] if ended else []
    return [*names, *((title, value or "not recorded") for title, value in values), *times]


def _profiles(best: BestKernel) -> dict[str, Any]:
    known = {"profile": best.profile, "reference_profile": best.reference_profile}
    return {name: None if profile is None else asdict(profile) for name, profile in known.items()}


def run_data(facts: RunFacts, gain: SelectionGain) -> dict[str, Any]:
    """The facts for programs: plain values, without sources."""
    best = facts.best
    return {
        "runs": list(facts.names),
        "identity": dict(identity_rows(facts)),
        "config": facts.run["config"],
        "measurements": facts.measurements,
        "under_way": facts.under_way,
        "candidates": facts.candidates,
        "best": None if best is None else dict(best.row) | {"run": best.run} | _profiles(best),
        "screening": None
        if facts.screening is None
        else facts.screening.summary(facts.run["config"].get("keep_fraction")),
        "course": [dict(row) for row in facts.course],
        "selection_gain": asdict(gain) | {"verdict": gain.verdict},
        "decisions": [asdict(segment) for segment in facts.segments],
        "trust": dict(facts.trust),
        "outcomes": [dict(row) for row in facts.outcomes],
        "forecasts": dict(facts.forecasts),
        "quality": {
            name: None if quality is None else asdict(quality)
            for name, quality in (("drawn", facts.quality_drawn), ("all_measured", facts.quality))
        },
        "noise_ceiling": None if facts.ceiling is None else asdict(facts.ceiling),
        "failures": [dict(row) for row in facts.failures],
        "surprises": [{k: v for k, v in asdict(s).items() if k != "code"} for s in facts.surprises],
    }
