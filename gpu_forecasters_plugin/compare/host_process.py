"""A search of a comparison as a command of the host's, in processes of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.guardian import guarded_process
from gpu_forecasters_plugin.recorded.calls import CALL_LOG_VARIABLE
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["MEASURE_WORKERS", "HostProcess"]

MEASURE_WORKERS = 4
"""Measurements in flight at once, in every arm: results are equally stale with and without the filter."""

_POLL_S = 0.3


class HostProcess:
    """One search. What it leaves is in its folder: ``run``, ``host.log`` and the log of its measurements."""

    def __init__(self, host: str, folder: Path) -> None:
        """Describe a search.

        Args:
            host: the host's name, for messages.
            folder: the search's own folder, emptied: what an earlier comparison left there would be resumed.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._host = host
        self._folder = folder
        self._calls = folder / "measurements.jsonl"

    def write_section(self, config: SurrogateConfig) -> Path:
        """The file of a ``surrogate:`` section, for the host's command."""
        section = self._folder / "surrogate.yaml"
        document = {"surrogate": config.model_dump(mode="json")}
        write_atomically(section, yaml.safe_dump(document, sort_keys=False))
        return section

    def execute(self, command: Sequence[str], on_measurements: Callable[[int], None]) -> None:
        """Run a command to its end.

        Args:
            command: the host's command.
            on_measurements: told the number of measurements so far, now and then.

        Raises:
            HostError: it did not end well.
        """
        environment = os.environ | {CALL_LOG_VARIABLE: str(self._calls.resolve())}
        log = self._folder / "host.log"
        with log.open("wb") as output:
            # Whatever ends this comparison ends the host's command with all that it has started.
            with guarded_process(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            ) as process:
                while process.poll() is None:
                    time.sleep(_POLL_S)
                    on_measurements(self._lines())
        if process.returncode != 0:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise HostError(f"{self._host} ended with {process.returncode} (log: {log}): {' '.join(tail)}")

    def _lines(self) -> int:
        return self._calls.read_bytes().count(b"\n") if self._calls.exists() else 0

    def result(self, pool: RecordedPool, arm: Arm, seed: int) -> ArmRun:
        """What the search found."""
        rows: list[dict[str, Any]] = [json.loads(line) for line in self._calls.read_text().splitlines()]
        speedups = [row["combined_score"] if row["outcome"] == "ok" else None for row in rows]
        seconds = sum(arm.price(pool, row["id"]) for row in rows if row["id"] is not None)
        considered, forecasting = len(rows), 0.0
        summary = self._folder / "run" / "summary.json"
        if summary.exists():
            ended = json.loads(summary.read_text())
            considered, forecasting = ended["candidates_considered"], ended["forecasting"]["gpu_seconds"]
        return ArmRun(arm.name, seed, best_so_far(speedups), considered, seconds, forecasting)
