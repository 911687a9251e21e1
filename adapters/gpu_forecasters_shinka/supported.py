"""Which ShinkaEvolve the filter works with."""

from __future__ import annotations

from importlib.metadata import version

from shinka.core import ShinkaEvolveRunner

from gpu_forecasters_plugin.errors import HostError

__all__ = ["SUPPORTED_VERSIONS", "check_host"]

SUPPORTED_VERSIONS = "0.0.7"

_NEEDED = (
    "scheduler",
    "evo_config",
    "job_config",
    "results_dir",
    "lang_ext",
    "max_evaluation_jobs",
    "max_proposal_jobs",
    "evaluation_slot_pool",
    "sampling_slot_pool",
    "submitted_jobs",
    "running_jobs",
    "failed_jobs_for_retry",
    "active_proposal_tasks",
    "processing_lock",
    "cost_limit_reached",
    "next_generation_to_submit",
    "completed_generations",
    "run_async",
)


def check_host(runner: ShinkaEvolveRunner) -> None:
    """Make sure that a runner has what the filter works with.

    Raises:
        HostError: this ShinkaEvolve is another.
    """
    missing = [name for name in _NEEDED if not hasattr(runner, name)]
    if missing:
        raise HostError(
            f"ShinkaEvolve {version('shinka-evolve')} has no {missing[0]!r} in its runner; "
            f"install shinka-evolve {SUPPORTED_VERSIONS}"
        )
