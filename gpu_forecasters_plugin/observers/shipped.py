"""The kinds of ``observers:`` that ship with this package."""

from __future__ import annotations

from gpu_forecasters_plugin.hookspecs import ObserverFactory, ObserverSetup
from gpu_forecasters_plugin.observers._base import Observer
from gpu_forecasters_plugin.observers.jsonl import JsonLinesObserver, JsonLinesOptions
from gpu_forecasters_plugin.observers.mlflow_tracking import MlflowOptions

__all__ = ["OBSERVERS"]


def _jsonl(setup: ObserverSetup) -> Observer:
    return JsonLinesObserver(setup.options.path)


def _mlflow(setup: ObserverSetup) -> Observer:
    from gpu_forecasters_plugin.observers.mlflow_tracking import MlflowObserver

    return MlflowObserver(setup.options)


OBSERVERS = (
    ObserverFactory(
        "jsonl", _jsonl, summary="a line of JSON per event", options=JsonLinesOptions, paths=("path",)
    ),
    ObserverFactory("mlflow", _mlflow, summary="a run on an MLflow server", options=MlflowOptions),
)
