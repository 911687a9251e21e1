"""Real kernels to ask about: two of a recorded task."""

from __future__ import annotations

from functools import lru_cache

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.recorded.pool import load_task

__all__ = ["SAMPLE_TASK", "sample_kernels"]

SAMPLE_TASK = "rmsnorm"
"""Its kernels are short: they fit into the context of small models."""


@lru_cache(maxsize=1)
def sample_kernels() -> tuple[Candidate, Candidate]:
    """The task's reference and its fastest kernel."""
    pool = load_task(SAMPLE_TASK)
    reference = Candidate("reference", pool.reference.code)
    return reference, Candidate("candidate", pool.candidates[pool.best_id].code)
