"""Forecasters: models that turn a kernel's source into eight probabilities."""

from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["Forecaster"]
