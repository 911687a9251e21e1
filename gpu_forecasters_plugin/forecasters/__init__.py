"""Forecasters: models that turn a kernel's source into eight probabilities."""

from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.climatology import ClimatologyForecaster
from gpu_forecasters_plugin.forecasters.contained import ContainedForecaster
from gpu_forecasters_plugin.forecasters.learned import LearnedForecaster, WarmStartTask, warm_start_tasks
from gpu_forecasters_plugin.forecasters.mixture import MixtureForecaster
from gpu_forecasters_plugin.forecasters.oracle import InvertedForecaster, OracleForecaster
from gpu_forecasters_plugin.forecasters.random_ import RandomForecaster
from gpu_forecasters_plugin.forecasters.recalibrated import RecalibratedForecaster
from gpu_forecasters_plugin.forecasters.replay import ReplayForecaster, load_forecasts
from gpu_forecasters_plugin.forecasters.scripted import ScriptedForecaster

__all__ = [
    "ClimatologyForecaster",
    "ContainedForecaster",
    "Forecaster",
    "InvertedForecaster",
    "LearnedForecaster",
    "MixtureForecaster",
    "OracleForecaster",
    "RandomForecaster",
    "RecalibratedForecaster",
    "ReplayForecaster",
    "ScriptedForecaster",
    "WarmStartTask",
    "load_forecasts",
    "warm_start_tasks",
]
