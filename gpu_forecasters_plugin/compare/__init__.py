"""Equal-budget comparisons: the same host with and without the filter."""

from gpu_forecasters_plugin.compare.arms import ARM_NAMES
from gpu_forecasters_plugin.compare.runner import run_comparison

__all__ = ["ARM_NAMES", "run_comparison"]
