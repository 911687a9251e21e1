"""What two settings do to a search: ranking against the parent, and deferral to a target risk.

``python -m benchmarks.settings`` replays each recorded task in process with paired seeds, with the defaults and with
each other of :data:`SETTINGS`, and compares the best kernels seed by seed. Every time is known here, so of the
forecasts that a fitted threshold left to themselves it also says how many were wrong, measured or not. ``--keep DIR``
keeps the searches, and the same command goes on there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import machine, write_result
from gpu_forecasters_plugin.calibration.losses import ForecastLoss
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.statistics import compare_arms
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.decision import Reason
from gpu_forecasters_plugin.deferring import ThresholdSource
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.locating import ledgers_below
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_task, recorded_task_names

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "p_beats_parent": {"ranking": "p_beats_parent"},
    "target_risk 0.6": {"deferral": {"target_risk": 0.6}},
    "target_risk 0.3, log2_error": {"deferral": {"target_risk": 0.3, "risk": "log2_error"}},
}
BUDGETS = (32, 64, 128)

Row = Mapping[str, Any]


@dataclass
class Trusted:
    """What thresholds did in some searches.

    Attributes:
        candidates: decided on.
        uncertain: of these, deferred to the GPU for being uncertain.
        pools: decided.
        fitted: of these, by a threshold fitted to the target risk.
        foretold: forecasts in those pools, of kernels that run.
        trusted: of these, as confident as the threshold asks.
        wrong: of these, wrong in the sense of the risk.
    """

    candidates: int = 0
    uncertain: int = 0
    pools: int = 0
    fitted: int = 0
    foretold: int = 0
    trusted: int = 0
    wrong: int = 0

    def add(
        self, ledger: LedgerReader, speedups: Mapping[str, float | None], config: SurrogateConfig
    ) -> None:
        """Count one search."""
        pools = {pool["id"]: pool for pool in ledger.pool_rows()}
        fitted = {i for i, pool in pools.items() if pool["threshold_from"] == ThresholdSource.TARGET_RISK}
        self.pools += len(pools)
        self.fitted += len(fitted)
        loss = ForecastLoss(config.deferral.risk, config.deferral.bound)
        for row in ledger.each_decision():
            self.candidates += 1
            self.uncertain += row["reason"] == Reason.UNCERTAIN
            forecast, speedup = forecast_from_row(row), speedups[row["candidate_key"]]
            if row["pool_id"] not in fitted or speedup is None or not isinstance(forecast, Forecast):
                continue
            self.foretold += 1
            if forecast.confidence(config.deferral.confidence) >= pools[row["pool_id"]]["threshold"]:
                self.trusted += 1
                self.wrong += int(loss.of(forecast, speedup / row["anchor_speedup"]))


def searches(
    pool: RecordedPool, section: SurrogateConfig, seeds: int, folder: Path
) -> tuple[dict[str, Any], Trusted]:
    """The summary of a comparison with the baseline, and what the filter's thresholds did."""
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
    else:
        summary = run_comparison(
            pool.source,
            host="inprocess",
            budget=max(BUDGETS),
            seeds=seeds,
            arms=("baseline", "surrogate"),
            surrogate=section,
            out=folder,
        )
    speedups = {candidate.key: pool.speedup(candidate.id) for candidate in pool.candidates.values()}
    trusted = Trusted()
    for path in ledgers_below(folder / "runs"):
        ledger = LedgerReader(path)
        ledger.follow_run(ledger.runs()[-1]["id"])
        trusted.add(ledger, speedups, section)
        ledger.close()
    return summary, trusted


def _runs(summary: Row, budget: int) -> list[ArmRun]:
    curves = summary["arms"]["surrogate"]["curve"]
    return [
        ArmRun("surrogate", i, tuple(c[:budget]), 0, 0.0)
        for i, c in zip(summary["seeds"], curves, strict=True)
    ]


def task_rows(task: str, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """One row per setting and budget, each against the defaults."""
    pool = load_task(task)
    rows: list[dict[str, Any]] = []
    for number, (name, changes) in enumerate(SETTINGS.items()):
        found, trusted = searches(pool, parse_surrogate_config(changes), seeds, folder / task / str(number))
        if not number:
            default = found
        for budget in BUDGETS:
            against = compare_arms(
                _runs(found, budget), _runs(default, budget), budget, found["pool_best_speedup"]
            )
            rows.append({"task": task, "budget": budget, "setting": name} | against | vars(trusted))
    return rows


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "undefined"


def search_table(rows: Sequence[Row]) -> str:
    """Best kernels, each setting against the defaults."""
    head = (
        "| task | budget | setting | share of the pool's best | best over the default's (geometric mean) | "
        "95 % interval | seeds worse by over 2 % |\n|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        cells = [row["task"], str(row["budget"]), row["setting"], f"{row['share_of_pool_best']:.3f}"]
        if row["setting"] == "default":
            cells += ["-"] * 3
        else:
            low, high = row["ci95"]
            cells += [f"{row['mean_ratio']:.3f}", f"{low:.3f} to {high:.3f}"]
            cells += [f"{row['worse_than_2pct_share']:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return head + "\n".join(lines) + "\n"


def threshold_table(rows: Sequence[Row]) -> str:
    """What thresholds did over whole searches."""
    head = (
        "| task | setting | deferred as uncertain | pools with a fitted threshold | coverage there | "
        "wrong among the trusted |\n|---|---|---|---|---|---|\n"
    )
    lines = [
        f"| {row['task']} | {row['setting']} | {_share(row['uncertain'], row['candidates'])} | "
        f"{_share(row['fitted'], row['pools'])} | {_share(row['trusted'], row['foretold'])} | "
        f"{_share(row['wrong'], row['trusted'])} |"
        for row in rows
        if row["budget"] == max(BUDGETS)
    ]
    return head + "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches and write their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", default=recorded_task_names())
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keep", type=Path, default=None, help="folder for the runs; default: none is kept")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for task in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            rows += task_rows(task, options.seeds, Path(folder) if options.keep is None else options.keep)
    text = (
        f"In process, {options.seeds} paired seeds, {max(BUDGETS)} measurements per search. {machine()}\n\n"
        f"{search_table(rows)}\nA threshold fitted to a target risk is in force once enough rows were drawn at random. "
        "Coverage is the share of forecasts that it trusted, of kernels that run; wrong among them is by the risk that "
        "the setting names, whether or not they were measured.\n\n"
        f"{threshold_table(rows)}"
    )
    write_result("settings", rows, text)


if __name__ == "__main__":
    main()
