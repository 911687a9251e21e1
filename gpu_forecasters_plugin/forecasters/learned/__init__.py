"""The embedded default forecaster: a Gaussian process on source text, warm-started from other operations."""

from gpu_forecasters_plugin.forecasters.learned.forecaster import LearnedForecaster
from gpu_forecasters_plugin.forecasters.learned.warm_start import WarmStartTask, warm_start_tasks

__all__ = ["LearnedForecaster", "WarmStartTask", "warm_start_tasks"]
