"""The ShinkaEvolve adapter keeps the contract of hosts, run as its users run it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import yaml

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task
from gpu_forecasters_plugin.testing import HostContract, HostHarness


class ShinkaHarness(HostHarness):
    """``gpu-forecasters shinka`` in a process of its own."""

    def run(self, folder: Path, pool: Path, config: SurrogateConfig) -> None:
        section = folder / "surrogate.yaml"
        section.write_text(yaml.safe_dump({"surrogate": config.model_dump(mode="json")}))
        with serve(RecordedProposer(ProposalGraph.from_pool(load_pool(pool)), seed=3)) as server:
            task = write_shinka_task(pool, folder / "task", api_base=server.base_url)
            command = [
                sys.executable,
                "-m",
                "gpu_forecasters_plugin",
                "shinka",
                "--task-dir",
                str(task.folder),
            ]
            command += [
                "--config-fname",
                "config.yaml",
                "--surrogate",
                str(section),
                "--out",
                str(folder / "run"),
            ]
            command += ["--measure-jobs", "1", "--proposal-jobs", "4"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    def ledger(self, folder: Path) -> Path:
        return folder / "run" / "ledger.sqlite3"

    def population(self, folder: Path) -> Iterable[str]:
        with closing(sqlite3.connect(folder / "run" / "programs.sqlite")) as database:
            for (code,) in database.execute("SELECT code FROM programs").fetchall():
                yield code


class TestShinka(HostContract):
    harness = ShinkaHarness()
