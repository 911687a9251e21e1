"""Observers: they are told of every forecast, decision and measurement, and change nothing."""

from gpu_forecasters_plugin.observers._base import Observer
from gpu_forecasters_plugin.observers.events import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    RunEnded,
    RunStarted,
)

__all__ = ["DecisionTaken", "Event", "ForecastMade", "MeasurementEnded", "Observer", "RunEnded", "RunStarted"]
