"""Equal-budget comparisons: the same host with and without the filter."""

from gpu_forecasters_plugin.compare.presets import ARM_NAMES
from gpu_forecasters_plugin.compare.runner import run_comparison
from gpu_forecasters_plugin.compare.several import run_comparisons

__all__ = ["ARM_NAMES", "run_comparison", "run_comparisons"]
