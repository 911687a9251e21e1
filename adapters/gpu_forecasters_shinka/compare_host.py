"""Real ShinkaEvolve as the host of a comparison: its own runner, its own client, a recorded task behind both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.host_process import MEASURE_WORKERS, HostProcess
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve
from gpu_forecasters_plugin.recorded.shinka_task import ShinkaTask, write_shinka_task

__all__ = ["ShinkaHost"]

_EVERYTHING = SurrogateConfig(keep_fraction=1.0, forecaster=ForecasterConfig(kind="climatology", hedge=False))
"""The host without a filter, at the same number of measurements in flight: ShinkaEvolve alone has as many as there are
processors. Repeated sources are not measured again here either, which is to the baseline's advantage."""

_PROPOSALS_AT_ONCE = 4


class ShinkaHost:
    """Runs ``gpu-forecasters shinka`` on a recorded task, for the baseline with everything measured."""

    name = "shinka"

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
        process = HostProcess("ShinkaEvolve", folder)
        config = arm.seeded(seed, budget, pool)
        if config is None:
            everything = replace(arm, config=_EVERYTHING)
            config = everything.seeded(seed, budget, pool)
        assert config is not None
        with serve(RecordedProposer(ProposalGraph.from_pool(pool), seed=seed)) as server:
            task = write_shinka_task(pool.source, folder / "task", api_base=server.base_url)
            section = process.write_section(config)
            process.execute(self._command(task, folder, section, budget), on_measurements)
        return process.result(pool, arm, seed)

    @staticmethod
    def _command(task: ShinkaTask, folder: Path, section: Path, budget: int) -> list[str]:
        command = [sys.executable, "-m", "gpu_forecasters_plugin", "shinka", "--task-dir", str(task.folder)]
        command += ["--config-fname", task.config.name, "--num_generations", str(budget)]
        command += ["--out", str(folder / "run"), "--surrogate", str(section)]
        return [
            *command,
            "--measure-jobs",
            str(MEASURE_WORKERS),
            "--proposal-jobs",
            str(_PROPOSALS_AT_ONCE),
        ]
