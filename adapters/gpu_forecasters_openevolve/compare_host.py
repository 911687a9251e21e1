"""Real OpenEvolve as the host of a comparison: its own command, its own client, a recorded task behind both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.recorded.evaluator import CALL_LOG_VARIABLE
from gpu_forecasters_plugin.recorded.openevolve_task import OpenEvolveTask, write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve

__all__ = ["OpenEvolveHost"]

MEASURE_WORKERS = 4
"""Measurements in flight at once, in every arm: results are equally stale with and without the filter."""

_POLL_S = 0.3


class OpenEvolveHost:
    """Runs ``openevolve-run`` and ``gpu-forecasters openevolve`` on a recorded task."""

    name = "openevolve"

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None] = lambda done: None,
    ) -> ArmRun:
        """Run the host until the budget is spent."""
        # What an earlier comparison left there would be resumed.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        calls = folder / "measurements.jsonl"
        with serve(RecordedProposer(ProposalGraph.from_pool(pool), seed=seed)) as server:
            task = write_openevolve_task(
                pool.source,
                folder / "task",
                api_base=server.base_url,
                seed=seed,
                iterations=budget - 1,
                workers=MEASURE_WORKERS,
            )
            config = arm.seeded(seed, budget, pool)
            command = self._command(task, folder, config)
            self._execute(command, folder, calls, on_measurements)
        return self._result(pool, arm, seed, folder, calls)

    @staticmethod
    def _command(task: OpenEvolveTask, folder: Path, config: SurrogateConfig | None) -> list[str]:
        host_arguments = [str(task.initial_program), str(task.evaluator), "--config", str(task.config)]
        host_arguments += ["--output", str(folder / "run"), "--log-level", "WARNING"]
        if config is None:
            return [sys.executable, "-m", "openevolve.cli", *host_arguments]
        section = folder / "surrogate.yaml"
        document = {"surrogate": config.model_dump(mode="json")}
        write_atomically(section, yaml.safe_dump(document, sort_keys=False))
        command = [sys.executable, "-m", "gpu_forecasters_plugin", "openevolve"]
        return [*command, *host_arguments, "--surrogate", str(section)]

    @staticmethod
    def _execute(
        command: list[str], folder: Path, calls: Path, on_measurements: Callable[[int], None]
    ) -> None:
        environment = os.environ | {CALL_LOG_VARIABLE: str(calls.resolve())}
        log = folder / "host.log"
        with log.open("wb") as output:
            # A group of its own: whatever ends this comparison ends the host's workers too.
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            try:
                while process.poll() is None:
                    time.sleep(_POLL_S)
                    on_measurements(_lines(calls))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise HostError(f"OpenEvolve ended with {process.returncode} (log: {log}): {' '.join(tail)}")

    @staticmethod
    def _result(pool: RecordedPool, arm: Arm, seed: int, folder: Path, calls: Path) -> ArmRun:
        rows: list[dict[str, Any]] = [json.loads(line) for line in calls.read_text().splitlines()]
        speedups = [row["combined_score"] if row["outcome"] == "ok" else None for row in rows]
        seconds = sum(arm.price(pool, row["id"]) for row in rows if row["id"] is not None)
        considered, forecasting = len(rows), 0.0
        summary = folder / "run" / "summary.json"
        if summary.exists():
            ended = json.loads(summary.read_text())
            considered, forecasting = ended["candidates_considered"], ended["forecasting"]["gpu_seconds"]
        return ArmRun(arm.name, seed, best_so_far(speedups), considered, seconds, forecasting)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
