"""What the plugin itself costs.

``python -m benchmarks.overhead`` measures, in one run on one machine:

* an OpenEvolve run with the filter passing everything, over the same run without the plugin (wall time, in pairs);
* the time of one decision for a pool of 64 when forecasts are at hand, ledger included;
* the time of the learned forecaster for a pool of 64, training included;
* 16 processes writing 1,000 ledger rows each: how many arrive.

``--host shinka`` measures the first of these for ShinkaEvolve, with as much in flight as it allows itself there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import machine, write_result
from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.decision import Action, Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.scripted import ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import DecisionDraft, Ledger, PoolDraft, RunIdentity, Worker
from gpu_forecasters_plugin.recorded.evaluator import CALL_LOG_VARIABLE, EVAL_SECONDS_VARIABLE
from gpu_forecasters_plugin.recorded.openevolve_task import write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import load_pool, load_task, recorded_task_names
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task

POOL = 64


def _write_wide_pool(path: Path, size: int = 2000, degree: int = 60) -> Path:
    """Sources so many and so well connected that no proposal repeats another: both runs measure every proposal."""
    chance = random.Random(0)
    rows: list[dict[str, Any]] = [{"pool": {"task": "wide", "device": "none", "reference_id": "c0"}}]
    for number in range(size):
        near = sorted({f"c{chance.randrange(size)}" for _ in range(degree)} - {f"c{number}"})
        row = {"id": f"c{number}", "code": f"x = {number}\n", "language": "triton", "outcome": "ok"}
        rows.append(row | {"time_us": chance.uniform(10, 1000), "neighbours": near})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def openevolve_ratio(pairs: int, iterations: int, seconds: float) -> dict[str, Any]:
    """Wall time with the filter passing everything over wall time without it, pair by pair.

    Args:
        pairs: how many pairs of runs, in turn.
        iterations: proposals of each run, all of them measured.
        seconds: simulated length of one measurement; a real one takes seconds.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source = _write_wide_pool(Path(folder) / "pool.jsonl")
        server = stack.enter_context(_serve(load_pool(source)))
        files = write_openevolve_task(
            source, Path(folder) / "task", api_base=server.base_url, iterations=iterations, workers=4
        )
        section = Path(folder) / "surrogate.yaml"
        everything = {
            "surrogate": {"keep_fraction": 1.0, "oversample": 1, "forecaster": {"kind": "climatology"}}
        }
        section.write_text(yaml.safe_dump(everything))
        common = [str(files.initial_program), str(files.evaluator), "--config", str(files.config)]
        common += ["--log-level", "WARNING", "--output"]
        plain = [sys.executable, "-m", "openevolve.cli", *common]
        filtered = [sys.executable, "-m", "gpu_forecasters_plugin", "openevolve", *common]
        ratios = _wall_time_ratios(plain, filtered, section, pairs, folder, seconds)
    return _ratio_figures(ratios, iterations, seconds)


def shinka_ratio(pairs: int, iterations: int, seconds: float) -> dict[str, Any]:
    """The same for ShinkaEvolve: its own command, and ours with everything measured.

    Args:
        pairs: how many pairs of runs, in turn.
        iterations: measurements of each run, the initial program's included.
        seconds: simulated length of one measurement; a real one takes seconds.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source = _write_wide_pool(Path(folder) / "pool.jsonl")
        server = stack.enter_context(_serve(load_pool(source)))
        files = write_shinka_task(
            source, Path(folder) / "task", api_base=server.base_url, patch_types={"full": 1.0}
        )
        document = yaml.safe_load(files.config.read_text())
        section = Path(folder) / "surrogate.yaml"
        everything = {"keep_fraction": 1.0, "oversample": 1, "forecaster": {"kind": "climatology"}}
        section.write_text(yaml.safe_dump({"surrogate": document.pop("surrogate") | everything}))
        files.config.write_text(yaml.safe_dump(document))
        common = ["--task-dir", str(files.folder), "--config-fname", "config.yaml", "--no-verbose"]
        common += ["--num_generations", str(iterations), "--results_dir"]
        plain = [sys.executable, "-m", "shinka.cli.run", *common]
        filtered = [sys.executable, "-m", "gpu_forecasters_plugin", "shinka", *common]
        ratios = _wall_time_ratios(plain, filtered, section, pairs, folder, seconds)
    return _ratio_figures(ratios, iterations, seconds)


def _wall_time_ratios(
    plain: list[str], filtered: list[str], section: Path, pairs: int, folder: str, seconds: float
) -> list[float]:
    """Pairs of runs in turn; each command lacks only its output folder, the filtered one its section too."""
    ratios: list[float] = []
    for number in range(pairs):
        without = _wall_time([*plain, f"{folder}/plain-{number}"], folder, seconds)
        with_it = _wall_time(
            [*filtered, f"{folder}/filtered-{number}", "--surrogate", str(section)], folder, seconds
        )
        ratios.append(with_it / without)
        print(f"pair {number + 1}: {with_it:.1f} s / {without:.1f} s = {ratios[-1]:.3f}", flush=True)
    return ratios


def _ratio_figures(ratios: list[float], iterations: int, seconds: float) -> dict[str, Any]:
    return {
        "wall_time_ratio_median": statistics.median(ratios),
        "wall_time_ratios": ratios,
        "iterations": iterations,
        "measurement_seconds": seconds,
    }


def _serve(pool: Any) -> Any:
    return serve(RecordedProposer(ProposalGraph.from_pool(pool), seed=0))


def _wall_time(command: list[str], folder: str, seconds: float) -> float:
    environment = os.environ | {
        EVAL_SECONDS_VARIABLE: str(seconds),
        CALL_LOG_VARIABLE: f"{folder}/calls.jsonl",
    }
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def decision_time(pools: int = 40) -> dict[str, float]:
    """Median and 90th percentile of one ``Gate.ask`` for 64 candidates, forecasts at hand, in milliseconds."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = parse_surrogate_config({"seed": 1})
        reference = Candidate("reference", "x = 0")
        made = [Forecast.from_weights([1 + (i * 7 + b * 5) % 11 for b in range(N_BINS)]) for i in range(POOL)]
        forecaster = ScriptedForecaster(made * pools)
        gate = Gate(reference, forecaster, Ledger(Path(folder) / "ledger.sqlite3"), config)
        for number in range(pools):
            asked = [Candidate(f"{number}-{i}", f"x = {number * POOL + i + 1}") for i in range(POOL)]
            started = time.perf_counter()
            decisions = gate.ask(asked)
            times.append((time.perf_counter() - started) * 1e3)
            for decision in decisions:
                if decision.measure:
                    gate.tell(decision.id, Measurement(Outcome.OK, speedup=1.0 + decision.id % 7 / 10))
    return {"median_ms": statistics.median(times), "p90_ms": statistics.quantiles(times, n=10)[-1]}


def learned_time(task: str) -> dict[str, float]:
    """Seconds for the learned forecaster's first and a later pool of 64, with what it had to learn by then."""
    pool = load_task(task)
    config = parse_surrogate_config({"keep_fraction": 0.5, "deferral": {"threshold": None}})
    forecaster = build_forecaster(config.forecaster, operation=pool.operation)
    reference = Candidate("reference", pool.reference.code)
    others = [Candidate(c.id, c.code) for c in pool.candidates.values() if c.id != pool.reference_id]
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(reference, forecaster, Ledger(Path(folder) / "ledger.sqlite3"), config)
        for first in range(0, len(others) - POOL + 1, POOL):
            started = time.perf_counter()
            decisions = gate.ask(others[first : first + POOL])
            times.append(time.perf_counter() - started)
            for decision in decisions:
                if decision.measure:
                    recorded = pool.candidates[decision.candidate_id]
                    speedup = pool.speedup(recorded.id)
                    gate.tell(decision.id, Measurement(recorded.outcome, recorded.time_us, speedup))
    return {"first_pool_s": times[0], "last_pool_s": times[-1], "pools": float(len(times))}


def _write_rows(path: str, run_id: int, decisions: list[int]) -> None:
    ledger = Ledger(path)
    ledger.follow_run(run_id)
    worker = Worker.current()
    for decision in decisions:
        assert ledger.charge(decision, worker)
        ledger.record_result(decision, Measurement(Outcome.OK, speedup=1.0, gpu_seconds=0.1))


def ledger_writers(processes: int = 16, rows: int = 1000) -> dict[str, float]:
    """Rows that many processes charge and close at once; all must arrive."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ledger.sqlite3")
        ledger = Ledger(path)
        reference = Candidate("r", "x = 0")
        ledger.begin_run(RunIdentity("bench", reference.key))
        # Sources of their own: a ledger never pays for the same one twice.
        drafts = [
            DecisionDraft(f"c{i}", f"source {i}", Action.MEASURE, Reason.AUDIT)
            for i in range(processes * rows)
        ]
        made = ledger.record_pool(PoolDraft(processes * rows), drafts, [reference])
        numbers = [decision.id for decision in made]
        context = get_context("spawn")
        started = time.perf_counter()
        writers = [
            context.Process(target=_write_rows, args=(path, ledger.run_id, numbers[i::processes]))
            for i in range(processes)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        seconds = time.perf_counter() - started
        use = ledger.budget_use()
    return {
        "processes": processes,
        "rows_written": processes * rows,
        "rows_found": use.measurements - use.open,
        "seconds": seconds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--host", choices=("openevolve", "shinka"), default="openevolve")
    options = parser.parse_args(arguments)
    if options.host == "shinka":
        ratio = shinka_ratio(options.pairs, options.iterations, options.seconds)
        text = f"{machine()}\n\n| what | figure |\n|---|---|\n{_ratio_row('ShinkaEvolve', ratio, 'one at a time')}\n"
        write_result("overhead_shinka", ratio, text)
        return
    task = recorded_task_names()[0]
    found = {
        "decision": decision_time(),
        "learned": learned_time(task),
        "ledger": ledger_writers(),
        "openevolve": openevolve_ratio(options.pairs, options.iterations, options.seconds),
    }
    write_result("overhead", found, _text(found, task))


def _ratio_row(host: str, ratio: dict[str, Any], flight: str) -> str:
    pairs = ratio["wall_time_ratios"]
    single = ", ".join(f"{value:.3f}" for value in pairs)
    return (
        f"| {host} with the filter passing everything / without the plugin, wall time, median of {len(pairs)} pairs "
        f"({ratio['iterations']} iterations, measurements of {ratio['measurement_seconds']} s, {flight}) "
        f"| {ratio['wall_time_ratio_median']:.3f} ({single}) |"
    )


def _text(found: dict[str, dict[str, Any]], task: str) -> str:
    decision, learned, rows = (found[k] for k in ("decision", "learned", "ledger"))
    lines = [
        (
            f"decision for a pool of {POOL}, forecasts at hand, ledger included",
            f"median {decision['median_ms']:.1f} ms, 90th percentile {decision['p90_ms']:.1f} ms",
        ),
        (
            f"learned forecaster and decision for a pool of {POOL}, training included ({task})",
            f"first {learned['first_pool_s']:.2f} s, last {learned['last_pool_s']:.2f} s",
        ),
        (
            f"{rows['processes']} processes, {rows['rows_written']:,} measurements charged and closed",
            f"{rows['rows_found']:,} found, {rows['rows_written'] / rows['seconds']:.0f} per second",
        ),
    ]
    table = "\n".join(
        [_ratio_row("OpenEvolve", found["openevolve"], "4 at once"), *(f"| {w} | {f} |" for w, f in lines)]
    )
    return f"{machine()}\n\n| what | figure |\n|---|---|\n{table}\n"


if __name__ == "__main__":
    main()
