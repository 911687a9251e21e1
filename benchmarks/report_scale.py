"""How long ``gpu-forecasters report`` takes, and how much memory, for a run of a million decisions.

``python -m benchmarks.report_scale`` writes a ledger of that size (generated: kernels whose speed-up is drawn at
random, forecasts that are near it), then runs the command on it in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine, write_result
from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.decision import Action, Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.ledger import DecisionDraft, Ledger, PoolDraft, RunIdentity, models
from gpu_forecasters_plugin.ledger.bulk import BulkInsert
from gpu_forecasters_plugin.ledger.engine import open_engine, writing
from gpu_forecasters_plugin.ledger.records import decision_values, measurement_values

__all__ = ["write_ledger"]

POOL = 32
AUDIT = 2
KEEP = 8
_POOLS_AT_ONCE = 500


def write_ledger(path: Path, pools: int) -> None:
    """Write a ledger with one run: of each pool of 32, 8 are measured, 2 of them drawn at random.

    Args:
        path: the ledger, which is not there yet.
        pools: how many pools.
    """
    ledger = Ledger(path)
    identity = RunIdentity("generated", "k0", device="none", forecaster="generated")
    ledger.begin_run(identity, config={"budget": {"measurements": pools * KEEP}})
    chance = np.random.default_rng(0)
    engine = open_engine(path)
    tables = (models.candidate, models.pool, models.decision, models.measurement)
    inserts = [BulkInsert(table, engine.dialect) for table in tables]
    for first in range(0, pools, _POOLS_AT_ONCE):
        numbers = range(first, min(pools, first + _POOLS_AT_ONCE))
        with writing(engine, flush=False) as connection:
            for bulk_insert, rows in zip(inserts, _rows(numbers, ledger.run_id, chance), strict=True):
                bulk_insert(connection, rows)
    engine.dispose()
    ledger.close()


def _rows(numbers: range, run_id: int, chance: np.random.Generator) -> tuple[list[dict[str, Any]], ...]:
    """Rows of candidates, pools, decisions and measurements for pools of these numbers."""
    log2 = chance.normal(0.0, 1.2, (len(numbers), POOL)).clip(-4.0, 4.0)
    believed = log2 + chance.normal(0.0, 0.8, log2.shape)
    shared = {"run_id": run_id, "created_at": 0.0}
    candidates, decisions, measurements = [], [], []
    for number, truths, beliefs in zip(numbers, log2, believed, strict=True):
        for rank, at in enumerate(np.argsort(-beliefs, kind="stable")):
            index = number * POOL + rank
            draft = _draft(index, rank, float(beliefs[at]))
            # The database numbers pools and decisions from 1, in the order of their insert.
            decisions.append(decision_values(draft) | shared | {"pool_id": number + 1})
            candidates.append(shared | {"key": draft.candidate_key, "code": f"x = {index}\n"})
            if draft.action is Action.MEASURE:
                measurements.append(_measurement(draft, index, float(truths[at])) | {"run_id": run_id})
    pools = [
        asdict(PoolDraft(POOL, forecast_seconds=0.01)) | shared | {"number": number} for number in numbers
    ]
    return candidates, pools, decisions, measurements


def _draft(index: int, rank: int, belief: float) -> DecisionDraft:
    """A decision whose forecast is a normal distribution around what is believed."""
    weights = np.exp(-0.5 * ((np.array(BINS.log2_midpoints) - belief) / 0.8) ** 2)
    forecast = Forecast.from_weights(weights.tolist(), source="generated")
    reason = (
        Reason.TOP_FRACTION if rank < KEEP - AUDIT else Reason.AUDIT if rank < KEEP else Reason.NOT_SELECTED
    )
    return DecisionDraft(
        f"c{index}",
        f"k{index}",
        Action.SKIP if reason is Reason.NOT_SELECTED else Action.MEASURE,
        reason,
        belief,
        forecast.confidence(),
        forecast,
        AUDIT / (POOL - KEEP + AUDIT) if reason is Reason.AUDIT else None,
    )


def _measurement(draft: DecisionDraft, index: int, log2: float) -> dict[str, Any]:
    """One in eight fails."""
    columns = dict.fromkeys(column.name for column in models.measurement.columns)
    if index % 8 == 7:
        measurement = Measurement(Outcome.INCORRECT, gpu_seconds=1.0, error="wrong sum")
    else:
        measurement = Measurement(Outcome.OK, 100.0 / 2**log2, 2**log2, 2.0)
    return (
        columns
        | measurement_values(measurement)
        | {
            "decision_id": index + 1,
            "candidate_key": draft.candidate_key,
            "charged_at": float(index),
            "finished_at": float(index) + 1.0,
            "worker_host": "none",
            "worker_pid": 1,
            "worker_started_at": 0.0,
            "revision": index + 1,
            "provisional": False,
        }
    )


def measure(folder: Path, pools: int) -> dict[str, Any]:
    """Write the ledger, and run the command on it."""
    begun = time.perf_counter()
    write_ledger(folder / "ledger.sqlite3", pools)
    written = time.perf_counter() - begun
    page = folder / "report.html"
    command = [sys.executable, "-m", "gpu_forecasters_plugin", "report", str(folder), "--out", str(page)]
    begun = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"the report failed: {status}")
    return {
        "decisions": pools * POOL,
        "measurements": pools * KEEP,
        "ledger_mb": (folder / "ledger.sqlite3").stat().st_size / 1e6,
        "writing_the_ledger_s": written,
        "report_s": seconds,
        "report_processor_s": used.ru_utime + used.ru_stime,
        "report_peak_mb": used.ru_maxrss / 1e3,
        "page_kb": page.stat().st_size / 1e3,
    }


def _text(found: dict[str, Any]) -> str:
    cells = {
        "decisions": f"{found['decisions']:,}",
        "measurements": f"{found['measurements']:,}",
        "ledger": f"{found['ledger_mb']:,.0f} MB",
        "report, whole command": f"{found['report_s']:.1f} s",
        "of a processor": f"{found['report_processor_s']:.1f} s",
        "peak memory": f"{found['report_peak_mb']:,.0f} MB",
        "page": f"{found['page_kb']:,.0f} kB",
    }
    rows = (cells.keys(), ["---"] * len(cells), cells.values())
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{machine()}\n\n{table}\n"


def main() -> None:
    """Measure, and write ``results/report_scale``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    pools = -(-parser.parse_args().decisions // POOL)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), pools)
    write_result("report_scale", found, _text(found))


if __name__ == "__main__":
    main()
