"""Do the forecasts that a search decides by mean what they say?

``python -m benchmarks.deployed`` searches every recorded task in process with the defaults, and scores what the mixture
that decided had foretold by what the GPU then said: on the audit rows, drawn at random and each weighted by one over
its sampling probability, and on all candidates that were decided on, whose times are known here, measured or not.
With ``--keep DIR`` it reads the searches that ``benchmarks.search --keep DIR`` has left there, and runs none of them.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine, provenance, write_result
from gpu_forecasters_plugin.calibration.ranking import spearman
from gpu_forecasters_plugin.calibration.reliability import (
    ConfidenceGroup,
    confidence_groups,
    ece,
    monotonicity,
)
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.calibration.scores import exact, within_one
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.decision import Reason
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.locating import ledgers_below
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_task, recorded_task_names

Speedups = Mapping[str, float | None]


@dataclass
class Foretold:
    """Forecasts of kernels that run, and what these then were.

    Attributes:
        probabilities: relative to the anchor of the forecast.
        speedups: likewise.
        weights: what each row counts.
        tasks: of each row.
    """

    probabilities: list[tuple[float, ...]] = field(default_factory=list)
    speedups: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)

    def add(self, task: str, forecast: Forecast, relative: float, weight: float = 1.0) -> None:
        """Count one."""
        self.probabilities.append(forecast.probabilities)
        self.speedups.append(relative)
        self.weights.append(weight)
        self.tasks.append(task)

    def rows(self) -> ForecastRows:
        """As the measures take them."""
        return ForecastRows.of(self.probabilities, self.speedups, weights=self.weights, tasks=self.tasks)


@dataclass
class Searches:
    """What searches of a task had foretold.

    Attributes:
        audit: rows drawn at random.
        decided: all that were decided on.
    """

    audit: Foretold = field(default_factory=Foretold)
    decided: Foretold = field(default_factory=Foretold)

    def add(self, task: str, decisions: Iterable[Mapping[str, Any]], speedups: Speedups) -> None:
        """Count one search.

        Args:
            task: that was searched.
            decisions: rows of its ledger.
            speedups: of every kernel over the reference, by key; ``None`` for failures.
        """
        for row in decisions:
            forecast, speedup = forecast_from_row(row), speedups[row["candidate_key"]]
            if speedup is None or not isinstance(forecast, Forecast):
                continue
            relative = speedup / row["anchor_speedup"]
            self.decided.add(task, forecast, relative)
            if row["reason"] == Reason.AUDIT:
                self.audit.add(task, forecast, relative, 1.0 / row["sampling_probability"])


def figures(task: str, foretold: Foretold, rows_of: str) -> dict[str, Any]:
    """One row of the results: calibration, and error over fifths of confidence."""
    rows = foretold.rows()
    fifths = confidence_groups(rows)
    off = _bins_off_by_fifth(rows, fifths)
    return {
        "task": task,
        "rows_of": rows_of,
        "n": len(rows),
        "ece": ece(rows),
        "confidence": _weighted(rows.confidence, rows),
        "exact": _weighted(exact(rows), rows),
        "within_one": _weighted(within_one(rows), rows),
        "bins_off_by_fifth": off,
        "falls": all(later < earlier for earlier, later in itertools.pairwise(off)),
        "log2_error_by_fifth": [group.mean_abs_log2_error for group in fifths],
        "log2_error_monotonicity": monotonicity(fifths),
        "spearman": spearman(rows.expected_log2, rows.log2_speedups),
    }


def _bins_off_by_fifth(rows: ForecastRows, fifths: Sequence[ConfidenceGroup]) -> list[float]:
    """Mean distance of the expected from the measured bin, the least sure fifth first."""
    numbers = np.arange(1, rows.truth.shape[1] + 1)
    off = np.abs(rows.probabilities @ numbers - rows.truth @ numbers)
    confidence = rows.confidence
    found = []
    for group in fifths:
        inside = (confidence >= group.low) & (confidence <= group.high)
        found.append(float(np.average(off[inside], weights=rows.weights[inside])))
    return found


def _weighted(values: Any, rows: ForecastRows) -> float | None:
    return float((values * rows.weights).sum() / rows.weights.sum()) if len(rows) else None


def foretold_in(folder: Path, pool: RecordedPool) -> Searches:
    """What the default filter's searches below a folder had foretold."""
    speedups = {candidate.key: pool.speedup(candidate.id) for candidate in pool.candidates.values()}
    found = Searches()
    for path in ledgers_below(folder / "runs"):
        if not path.parent.name.startswith("surrogate-"):
            continue
        ledger = LedgerReader(path)
        ledger.follow_run(ledger.runs()[-1]["id"])
        found.add(pool.task, ledger.each_decision(), speedups)
        ledger.close()
    return found


def _search(task: str, seeds: int, budget: int, folder: Path) -> None:
    run_comparison(
        task,
        host="inprocess",
        budget=budget,
        seeds=seeds,
        arms=("baseline", "surrogate"),
        surrogate=SurrogateConfig(),
        out=folder,
    )


def _merged(parts: Sequence[Foretold]) -> Foretold:
    whole = Foretold()
    for part in parts:
        whole.probabilities += part.probabilities
        whole.speedups += part.speedups
        whole.weights += part.weights
        whole.tasks += part.tasks
    return whole


def _listed(errors: Sequence[float]) -> str:
    return ", ".join(f"{error:.2f}" for error in errors)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What people read."""
    lines = [
        "| rows | task | n | ECE | mean confidence | exact | within 1 | Spearman "
        "| bins off by fifth of confidence, least sure first | falls all the way | log2 error likewise |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        numbers = [row[name] for name in ("ece", "confidence", "exact", "within_one", "spearman")]
        cells = [row["rows_of"], row["task"], str(row["n"])]
        cells += ["-" if value is None else f"{value:.3f}" for value in numbers]
        cells += [_listed(row["bins_off_by_fifth"]), "yes" if row["falls"] else "no"]
        cells += [_listed(row["log2_error_by_fifth"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, or read what was searched, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", default=recorded_task_names())
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--keep", type=Path, default=None, help="folder of searches that were kept")
    options = parser.parse_args(arguments)
    found: dict[str, Searches] = {}
    for task in options.tasks:
        with tempfile.TemporaryDirectory() as fresh:
            folder = Path(fresh) if options.keep is None else options.keep / task
            if not (folder / "summary.json").exists():
                _search(task, options.seeds, options.budget, folder)
            found[task] = foretold_in(folder, load_task(task))
    rows = []
    for name in ("audit", "decided"):
        parts = {task: getattr(searches, name) for task, searches in found.items()}
        rows += [figures(task, part, name) for task, part in parts.items()]
        rows.append(figures("all", _merged(list(parts.values())), name))
    text = (
        f"The defaults in process, {options.budget} measurements per search. {machine()}\n\n"
        "Of kernels that run: `audit` are the rows drawn at random, weighted by one over their sampling probability; "
        "`decided` are all candidates that were decided on, measured or not.\n\n"
    )
    numbers = {"seeds": options.seeds, "budget": options.budget, "made": provenance(), "rows": rows}
    write_result("deployed", numbers, text + table(rows))


if __name__ == "__main__":
    main()
