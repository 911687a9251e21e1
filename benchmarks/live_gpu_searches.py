"""The searches of a run of ``examples/live_gpu``: finished or not, what their ledgers say, and their rows as data."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.compare.records import best_so_far
from gpu_forecasters_plugin.evaluation.recorded import RecordedForecasts, recorded_forecasts
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.exchange import export_rows
from gpu_forecasters_plugin.ledger.read_only import open_to_read
from gpu_forecasters_plugin.ledger.row_files import write_rows

__all__ = ["LiveSearch", "begun_searches", "chosen_searches", "forecasts_of", "together", "write_data"]

_DECISION_COLUMNS = (
    *("id", "pool_number", "candidate_key", "parent_key", "action", "reason", "sampling_probability"),
    *("score", "confidence", "probabilities", "outcome", "speedup", "time_us"),
)
_DECIMALS = 6
_FOLDER_OF_FILE = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


@dataclass(frozen=True)
class LiveSearch:
    """One search of a run.

    Attributes:
        task: the task's name.
        arm: the arm's.
        seed: its seed.
        folder: what it has left.
    """

    task: str
    arm: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """As its folder is called."""
        return f"{self.arm}-{self.seed}"

    @property
    def ended(self) -> bool:
        """Whether it has spent its budget: what it found is written when it has."""
        return (self.folder / "search.json").exists()

    @property
    def ledger(self) -> Path:
        """Its ledger's file."""
        return self.folder / "run" / "ledger.sqlite3"

    @contextmanager
    def reading(self) -> Iterator[LedgerReader]:
        """Its ledger, following its run."""
        ledger = LedgerReader(self.ledger)
        try:
            ledger.follow_run(ledger.runs()[0]["id"])
            yield ledger
        finally:
            ledger.close()

    def decisions(self) -> list[dict[str, Any]]:
        """Its decisions in order; ``measured_as`` numbers the measurements in the order in which they ended."""
        with self.reading() as ledger:
            rows = ledger.decisions()
        ended = sorted(
            (row for row in rows if row["outcome"] is not None), key=lambda row: row["finished_at"]
        )
        order = {row["id"]: number for number, row in enumerate(ended, start=1)}
        return [
            {column: row[column] for column in _DECISION_COLUMNS} | {"measured_as": order.get(row["id"])}
            for row in rows
        ]

    def curve(self) -> list[float]:
        """Best speed-up after each measurement, by its ledger."""
        measured = [row for row in self.decisions() if row["measured_as"] is not None]
        measured.sort(key=lambda row: row["measured_as"])
        return list(best_so_far([row["speedup"] for row in measured]))


def begun_searches(run: Path) -> list[LiveSearch]:
    """The searches of a run's folder, ended or not, by task, arm and seed.

    Args:
        run: the folder.

    Raises:
        SystemExit: there is none.
    """
    found = []
    for folder in run.glob("*/runs/*-*"):
        arm, _, seed = folder.name.rpartition("-")
        if seed.isdigit():
            found.append(LiveSearch(folder.parents[1].name, arm, int(seed), folder))
    if not found:
        raise SystemExit(f"{run} has no searches")
    return sorted(found, key=lambda search: (search.task, search.arm, search.seed))


def chosen_searches(begun: Sequence[LiveSearch], arms: Mapping[str, int | None] | None) -> list[LiveSearch]:
    """Those that are filed.

    Args:
        begun: all of the run.
        arms: of these arms only, with how many of the first seeds (``None``: with all); ``None``: of all arms.

    Raises:
        SystemExit: there is none, or one of them has not ended; names it.
    """
    chosen = [search for search in begun if arms is None or _is_of(search, arms)]
    if not chosen:
        raise SystemExit(f"no searches of {', '.join(arms or ())}")
    unfinished = [f"{search.task} {search.name}" for search in chosen if not search.ended]
    if unfinished:
        raise SystemExit(
            f"{len(unfinished)} of {len(chosen)} searches have not ended: {', '.join(unfinished)}; "
            "end them with examples/live_gpu/run.py, or file other arms alone with --arms, or fewer of their seeds"
        )
    return chosen


def _is_of(search: LiveSearch, arms: Mapping[str, int | None]) -> bool:
    if search.arm not in arms:
        return False
    seeds = arms[search.arm]
    return seeds is None or search.seed < seeds


def forecasts_of(searches: Sequence[LiveSearch]) -> list[RecordedForecasts]:
    """What each search has forecast of the kernels that it measured."""
    found = []
    for search in searches:
        with search.reading() as ledger:
            found.append(recorded_forecasts(ledger, BINS))
    return found


def together(parts: Sequence[ForecastRows]) -> ForecastRows:
    """Rows of several searches as one set; kernels are ranked within each search."""
    searches = [str(number) for number, rows in enumerate(parts) for _ in range(len(rows))]
    return ForecastRows.of(
        np.concatenate([rows.probabilities for rows in parts]),
        2.0 ** np.concatenate([rows.log2_speedups for rows in parts]),
        weights=np.concatenate([rows.weights for rows in parts]),
        answered=np.concatenate([rows.answered for rows in parts]),
        tasks=searches,
    )


def write_data(searches: Sequence[LiveSearch], journal: bytes, out: Path) -> None:
    """Keep searches as data, in place of what was kept before.

    Args:
        searches: those that are kept.
        journal: every kernel that was measured, as the run has written it.
        out: folder for ``TASK/ARM-SEED.jsonl.gz`` (rows as ``gpu-forecasters ledger export`` writes them),
            ``TASK/ARM-SEED.decisions.jsonl.gz`` and ``measurements.jsonl.gz``, whose rows name in ``searches`` those
            of the kept ones that were told the result: none for a kernel that only other searches have measured.
    """
    for old in out.glob("**/*.jsonl.gz"):
        old.unlink()
    told: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for search in searches:
        folder = out / search.task
        folder.mkdir(parents=True, exist_ok=True)
        engine = open_to_read(search.ledger)
        write_rows(folder / f"{search.name}.jsonl.gz", export_rows(engine))
        engine.dispose()
        decisions = search.decisions()
        write_rows(folder / f"{search.name}.decisions.jsonl.gz", map(_rounded, decisions))
        for row in decisions:
            if row["measured_as"] is not None:
                told[search.task, row["candidate_key"]].append(search.name)
    write_rows(out / "measurements.jsonl.gz", _measurements(journal, told))


def _rounded(decision: Mapping[str, Any]) -> dict[str, Any]:
    """With as many decimals of its forecast as anybody reads; all of them are most of what the files would hold."""

    def short(value: float | None) -> float | None:
        return None if value is None else round(value, _DECIMALS)

    forecast = decision["probabilities"]
    return {
        **decision,
        "score": short(decision["score"]),
        "confidence": short(decision["confidence"]),
        "probabilities": None if forecast is None else list(map(short, forecast)),
    }


def _measurements(journal: bytes, told: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[dict[str, Any]]:
    for line in journal.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut, when the run was interrupted: the kernel was measured again
            continue
        result = dict(row["result"])
        if "error" in result:  # where that machine has its files is nobody's concern
            result["error"] = _FOLDER_OF_FILE.sub("", result["error"])
        yield row | {"result": result, "searches": list(told.get((row["task"], row["key"]), []))}
