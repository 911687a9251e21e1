"""The comparisons of a run of ``examples/live_gpu``: arms with the same seeds, as the run has summarised them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.live_gpu_searches import LiveSearch
from benchmarks.search import runs_at
from gpu_forecasters_plugin.compare.statistics import compare_arms

__all__ = ["FORECASTING", "Comparison", "comparisons_of", "document", "kept_bytes"]

FORECASTING = ("surrogate", "screened")
"""The arms whose choice goes by forecasts."""


def kept_bytes(path: Path) -> bytes:
    """A file that a run has left.

    Raises:
        SystemExit: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(f"{path} cannot be read ({error.strerror}): let the run end first") from None


def document(path: Path) -> Any:
    """A JSON file that a run has left.

    Raises:
        SystemExit: it cannot be read.
    """
    try:
        return json.loads(kept_bytes(path))
    except ValueError as error:
        raise SystemExit(f"{path} is not JSON ({error})") from None


@dataclass(frozen=True)
class Comparison:
    """Arms with the same seeds, as the run has summarised them.

    Attributes:
        path: of the summary.
        picture: the curves, beside it.
    """

    path: Path
    picture: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What it says, without the sources, which are in the data as all others."""
        summary: dict[str, Any] = document(self.path)
        for numbers in summary["arms"].values():
            del numbers["best_code"]
        return summary

    @property
    def seed_count(self) -> int:
        """With how many seeds each arm was run."""
        return len(self.summary["seeds"])

    @property
    def searches(self) -> set[str]:
        """Names of those that are compared."""
        return {f"{arm}-{seed}" for arm in self.summary["arms"] for seed in self.summary["seeds"]}

    def check(self, searches: Sequence[LiveSearch]) -> None:
        """See whether the ledgers say the same.

        Raises:
            SystemExit: one does not; names it.
        """
        for search in searches:
            if search.name in self.searches:
                told = self.summary["arms"][search.arm]["curve"][self.summary["seeds"].index(search.seed)]
                if told != search.curve():
                    raise SystemExit(f"{self.path} does not say of {search.name} what its ledger says")

    def figures(self) -> dict[str, Any]:
        """The summary, and what forecasts were worth beside chance in their place: those arms against ``random``."""
        if "random" not in self.summary["arms"]:
            return self.summary
        budget, fastest = self.summary["budget"], self.summary["fastest_speedup"]
        runs = runs_at(self.summary, budget)
        against = {}
        for arm, own in runs.items():
            if arm in FORECASTING:
                row = compare_arms(own, runs["random"], budget, fastest)
                against[arm] = {name: row[name] for name in ("mean_ratio", "ci95", "p_value")}
        return self.summary | {"against_random": against}


def comparisons_of(
    run: Path, searches: Sequence[LiveSearch], earlier: Sequence[Path]
) -> dict[str, list[Comparison]]:
    """The comparisons of each task, most seeds first.

    Args:
        run: the run's folder.
        searches: all that are filed.
        earlier: summaries of comparisons with other seeds.

    Raises:
        SystemExit: they are not about these searches and no others, or a ledger says otherwise; names them.
    """
    found: dict[str, list[Comparison]] = {}
    kept = [Comparison(path, path.with_suffix(".png")) for path in earlier]
    tasks = list(dict.fromkeys(search.task for search in searches))
    for one in kept:
        if one.summary["task"] not in tasks:
            raise SystemExit(f"{one.path} is about {one.summary['task']}, which is none of the run's tasks")
    for task in tasks:
        folder, own = run / task, [search for search in searches if search.task == task]
        last = Comparison(folder / "summary.json", folder / "curves.png")
        each = [last, *(one for one in kept if one.summary["task"] == task)]
        about = set().union(*(one.searches for one in each))
        if about != {search.name for search in own}:
            raise SystemExit(
                f"{' and '.join(str(one.path) for one in each)}: about {', '.join(sorted(about))}; let "
                "examples/live_gpu/run.py end, choose with --arms, or name the summary of fewer seeds with --earlier"
            )
        if len({one.seed_count for one in each}) < len(each):
            raise SystemExit(f"two comparisons of {task} have as many seeds")
        for one in each:
            one.check(own)
        found[task] = sorted(each, key=lambda one: one.seed_count, reverse=True)
    return found
