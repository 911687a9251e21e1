"""The OpenEvolve adapter keeps the contract of hosts, run as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("openevolve")

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.recorded.evaluator import write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve
from gpu_forecasters_plugin.testing import HostContract, HostHarness


class OpenEvolveHarness(HostHarness):
    """``gpu-forecasters openevolve`` in a process of its own."""

    def run(self, folder: Path, pool: Path, config: SurrogateConfig) -> None:
        section = folder / "surrogate.yaml"
        section.write_text(yaml.safe_dump({"surrogate": config.model_dump(mode="json")}))
        with serve(RecordedProposer(ProposalGraph.from_pool(load_pool(pool)), seed=3)) as server:
            task = write_openevolve_task(
                pool, folder / "task", api_base=server.base_url, workers=1, checkpoint_interval=4
            )
            files = [str(task.initial_program), str(task.evaluator), "--config", str(task.config)]
            options = ["--surrogate", str(section), "--out", str(folder / "run"), "--log-level", "WARNING"]
            command = [sys.executable, "-m", "gpu_forecasters_plugin", "openevolve", *files, *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=140, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    def ledger(self, folder: Path) -> Path:
        return folder / "run" / "ledger.sqlite3"

    def population(self, folder: Path) -> Iterable[str]:
        for path in (folder / "run" / "checkpoints").glob("*/programs/*.json"):
            yield json.loads(path.read_text())["code"]


class TestOpenEvolve(HostContract):
    harness = OpenEvolveHarness()
