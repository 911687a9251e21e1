"""A run on an MLflow tracking server: what it was, and how it went, measurement by measurement.

Addresses and keys that are nobody's business come from MLflow's own environment variables
(``MLFLOW_TRACKING_URI``, ``MLFLOW_TRACKING_USERNAME``, ``MLFLOW_TRACKING_TOKEN`` and so on).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import MissingExtraError
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.observers._base import Observer
from gpu_forecasters_plugin.observers.events import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    RunEnded,
    RunStarted,
)
from gpu_forecasters_plugin.section import Section

__all__ = ["RUN_KEY_TAG", "MlflowObserver", "MlflowOptions"]

RUN_KEY_TAG = "gpu_forecasters.run_key"
"""Tag by which a resumed run finds its own MLflow run again."""

_LONGEST_PARAMETER = 500


def _without_user(text: str) -> str:
    if "@" in urlsplit(text).netloc:
        raise ValueError(
            "must hold no user or password: they come from MLFLOW_TRACKING_USERNAME and _PASSWORD"
        )
    return text


class MlflowOptions(Section):
    """Settings of the observer ``mlflow``.

    Attributes:
        tracking_uri: the server, or a database such as ``sqlite:////data/mlflow.db``; ``None`` leaves it to
            ``MLFLOW_TRACKING_URI``.
        experiment: the experiment that the run is filed under; made if missing.
    """

    tracking_uri: Annotated[str, Field(min_length=1), AfterValidator(_without_user)] | None = None
    experiment: Annotated[str, Field(min_length=1, max_length=400)] = "gpu-forecasters"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings under dotted names, as MLflow takes parameters."""
    found: dict[str, str] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{path}.")
        elif value not in (None, "", [], {}):
            found[path] = str(value)[:_LONGEST_PARAMETER]
    return found


class _PoolFigures:
    """What is said of a pool, gathered from its forecasts and decisions."""

    def __init__(self, number: int, time: float) -> None:
        self.number = number
        self.time = time
        self._size = self._measured = self._failures = 0
        self._confidences: list[float] = []
        self._trust = 1.0

    def add(self, event: ForecastMade | DecisionTaken) -> None:
        if isinstance(event, ForecastMade):
            self._failures += not isinstance(event.outcome, Forecast)
            return
        self._size += 1
        self._measured += event.decision.measure
        self._trust = event.trust
        if event.decision.confidence is not None:
            self._confidences.append(event.decision.confidence)

    def values(self) -> dict[str, float]:
        mean = math.fsum(self._confidences) / len(self._confidences) if self._confidences else None
        values = {
            "pool.size": self._size,
            "pool.measured": self._measured,
            "pool.trust": self._trust,
            "pool.failed_forecasts": self._failures,
            "pool.mean_confidence": mean,
        }
        return {name: float(value) for name, value in values.items() if value is not None}


class MlflowObserver(Observer):
    """Logs parameters once, metrics per pool (step: its number) and per measurement (step: how many have ended).

    Metrics of a measurement: ``speedup``, ``best_speedup``, ``gpu_seconds`` (in sum), ``failed`` (in sum) and
    ``abs_log2_error`` of its forecast. A server that is away costs nothing but what was not logged.

    Args:
        options: where to log.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(self, options: MlflowOptions) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError("mlflow", "mlflow") from None
        self._client = MlflowClient(tracking_uri=options.tracking_uri)
        self._experiment = options.experiment
        self._start: RunStarted | None = None
        self._run_id: str | None = None
        self._pool: _PoolFigures | None = None
        self._expected: dict[str, float] = {}
        self._gpu_seconds = 0.0
        self._failed = 0

    def notify(self, event: Event) -> None:
        """Log the event; of a pool, when its last decision is known."""
        match event:
            case RunStarted():
                self._start = event
                self._open()
            case ForecastMade() | DecisionTaken():
                self._gather(event)
            case MeasurementEnded():
                self._log_pool()
                self._log_measurement(event)
            case RunEnded():
                self._log_pool()
                self._client.set_terminated(self._open())

    def _gather(self, event: ForecastMade | DecisionTaken) -> None:
        if self._pool is not None and self._pool.number != event.pool_number:
            self._log_pool()
        if self._pool is None:
            self._pool = _PoolFigures(event.pool_number, event.time)
        self._pool.add(event)
        if isinstance(event, ForecastMade):
            if isinstance(event.outcome, Forecast):
                expected = event.outcome.expected_log2() + math.log2(event.anchor_speedup)
                self._expected[event.candidate_key] = expected
        elif not event.decision.measure:
            self._expected.pop(event.decision.candidate_key, None)

    def _log_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            self._log(pool.values(), pool.number, pool.time)

    def _log_measurement(self, event: MeasurementEnded) -> None:
        measurement = event.measurement
        self._gpu_seconds += measurement.gpu_seconds
        self._failed += measurement.outcome is not Outcome.OK
        expected = self._expected.pop(event.candidate_key, None)
        values = {"gpu_seconds": self._gpu_seconds, "failed": float(self._failed)}
        if event.best_speedup is not None:
            values["best_speedup"] = event.best_speedup
        if measurement.speedup is not None:
            values["speedup"] = measurement.speedup
            if expected is not None:
                values["abs_log2_error"] = abs(expected - math.log2(measurement.speedup))
        self._log(values, event.number, event.time)

    def _log(self, values: dict[str, float], step: int, time: float) -> None:
        from mlflow.entities import Metric

        at = int(time * 1000)
        metrics = [Metric(name, value, at, step) for name, value in values.items()]
        self._client.log_batch(self._open(), metrics=metrics)

    def _open(self) -> str:
        """The MLflow run, made or found again; tried anew with every event for as long as it fails."""
        if self._run_id is None:
            assert self._start is not None  # the first event
            experiment = self._experiment_id()
            query = f"tags.`{RUN_KEY_TAG}` = '{self._start.run_key}'"
            found = self._client.search_runs([experiment], query, max_results=1)
            if found:
                self._run_id = str(found[0].info.run_id)
                self._client.update_run(self._run_id, status="RUNNING")
            else:
                self._run_id = self._create(experiment, self._start)
        return self._run_id

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                return str(self._client.create_experiment(self._experiment))
            except Exception:
                # Another run may have made it meanwhile.
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _create(self, experiment: str, start: RunStarted) -> str:
        from mlflow.entities import Param

        name = " ".join(
            filter(None, [start.identity.task, start.identity.forecaster, f"seed {start.identity.seed}"])
        )
        created = self._client.create_run(
            experiment, start_time=int(start.time * 1000), tags={RUN_KEY_TAG: start.run_key}, run_name=name
        )
        run_id = str(created.info.run_id)
        parameters = _flat({"run": asdict(start.identity), "surrogate": start.config})
        entities = [Param(key, value) for key, value in parameters.items()]
        for first in range(0, len(entities), 100):  # as many as one request takes
            self._client.log_batch(run_id, params=entities[first : first + 100])
        return run_id
