"""Real OpenEvolve as the host of a comparison: its own command, its own client, a recorded task behind both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.host_process import MEASURE_WORKERS, HostProcess
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.recorded.openevolve_task import OpenEvolveTask, write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve

__all__ = ["OpenEvolveHost"]


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
        process = HostProcess("OpenEvolve", folder)
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
            section = None if config is None else process.write_section(config)
            process.execute(self._command(task, folder, section), on_measurements)
        return process.result(pool, arm, seed)

    @staticmethod
    def _command(task: OpenEvolveTask, folder: Path, section: Path | None) -> list[str]:
        host_arguments = [str(task.initial_program), str(task.evaluator), "--config", str(task.config)]
        host_arguments += ["--output", str(folder / "run"), "--log-level", "WARNING"]
        if section is None:
            return [sys.executable, "-m", "openevolve.cli", *host_arguments]
        command = [sys.executable, "-m", "gpu_forecasters_plugin", "openevolve"]
        return [*command, *host_arguments, "--surrogate", str(section)]
