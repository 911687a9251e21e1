"""The embedded default forecaster: a Gaussian process on source text, warm-started from other operations."""

from gpu_forecasters_plugin.forecasters.learned.forecaster import LearnedForecaster
from gpu_forecasters_plugin.forecasters.learned.known import KnownTask, WarmStartTask
from gpu_forecasters_plugin.forecasters.learned.recorded_kernels import warm_start_tasks
from gpu_forecasters_plugin.forecasters.learned.rewrites import shipped_rewrites

__all__ = ["KnownTask", "LearnedForecaster", "WarmStartTask", "shipped_rewrites", "warm_start_tasks"]
