"""Values that go into the ledger and come out of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import psutil
from sqlalchemy import RowMapping

from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
)
from gpu_forecasters_plugin.ledger.soundness import sound_rows
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = [
    "BudgetUse",
    "Charge",
    "DecisionDraft",
    "PoolDraft",
    "RunIdentity",
    "Worker",
    "decision_values",
    "escape_text",
    "forecast_from_row",
    "measurement_from_row",
    "measurement_values",
    "screening_values",
    "unescape_text",
    "verdict_from_row",
]

_ESCAPED = "\ufffejson:"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LONGEST_NAME, _LONGEST_MODEL = 200, 400
"""Widths of the columns; a mixture's name is made of all its experts' names."""
_LONGEST_PROFILE = 2**18
"""In characters of JSON; a usual one has a few thousand."""


def _bounded(text: str, longest: int) -> str:
    """The text, or as much of it as fits beside a hash of all of it."""
    if len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:12]
    return f"{text[: longest - 13]}~{digest}"


@dataclass(frozen=True)
class RunIdentity:
    """What makes two measurements comparable; a resume must agree in every field.

    Names of forecaster and model that are longer than the ledger's columns are cut, and stay distinct.
    """

    task: str
    reference_key: str
    evaluator_hash: str = ""
    device: str = ""
    driver: str = ""
    bin_scheme: str = "standard"
    forecaster: str = ""
    model: str = ""
    prompt_hash: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "forecaster", _bounded(self.forecaster, _LONGEST_NAME))
        object.__setattr__(self, "model", _bounded(self.model, _LONGEST_MODEL))

    def first_difference(self, row: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
        """Name, stored and present value of the first field that differs."""
        for field in fields(self):
            if row[field.name] != getattr(self, field.name):
                return field.name, row[field.name], getattr(self, field.name)
        return None


@dataclass(frozen=True)
class Worker:
    """The process that calls the evaluator, so that a resume can tell whether it still lives."""

    host: str
    pid: int
    started_at: float

    @classmethod
    def current(cls) -> Worker:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    def may_be_alive(self) -> bool:
        """False only when it certainly has ended: a process of this host that is gone, collected or not."""
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started_at) < 1.0
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class BudgetUse:
    """What a run has spent.

    Attributes:
        measurements: calls charged.
        open: how many of them still run.
        gpu_seconds: seconds of those that ended.
        forecast_gpu_seconds: GPU-seconds of the forecasts, as far as their price is configured; ``None`` where
            nobody asked for them.
    """

    measurements: int = 0
    open: int = 0
    gpu_seconds: float = 0.0
    forecast_gpu_seconds: float | None = None


@dataclass(frozen=True)
class Charge:
    """A measurement that was paid for and has not ended."""

    decision_id: int
    candidate_key: str
    charged_at: float
    worker: Worker


@dataclass(frozen=True)
class PoolDraft:
    """A pool about to be written.

    Attributes:
        size: how many candidates it has.
        trust: share of its slots that the surrogate keeps.
        anchor_key: the kernel that its forecasts' bins are relative to.
        anchor_speedup: measured speed-up of that kernel over the reference.
        forecast_seconds: from the question to the answer.
        threshold: deferral threshold in force; ``None``: no forecast is too uncertain.
        threshold_from: where that came from (:class:`~gpu_forecasters_plugin.deferring.ThresholdSource`).
        miscalibrated: whether the drift test had raised its alarm, and forecasts had not recovered yet.
        drift_evidence: log of the drift test's e-value; ``None`` where it does not run.
    """

    size: int
    trust: float = 1.0
    anchor_key: str = ""
    anchor_speedup: float = 1.0
    forecast_seconds: float = 0.0
    threshold: float | None = None
    threshold_from: str | None = None
    miscalibrated: bool | None = None
    drift_evidence: float | None = None


@dataclass(frozen=True)
class DecisionDraft:
    """A decision about to be written; :class:`~gpu_forecasters_plugin.decision.Decision` without its numbers."""

    candidate_id: str
    candidate_key: str
    action: Action
    reason: Reason
    score: float | None = None
    confidence: float | None = None
    forecast: ForecastOutcome | None = None
    sampling_probability: float | None = None
    answer: Measurement | None = None
    parent_key: str | None = None
    detail: str | None = None

    def numbered(self, decision_id: int, pool_id: int) -> Decision:
        """The decision under the numbers that the ledger gave it."""
        return Decision(
            decision_id,
            self.candidate_id,
            self.candidate_key,
            pool_id,
            self.action,
            self.reason,
            self.score,
            self.confidence,
            self.forecast,
            self.sampling_probability,
            self.answer,
            self.detail,
        )


def escape_text(text: str) -> str:
    """Text that every database stores: lone surrogates and NUL, which are refused, are escaped as JSON."""
    if text.startswith(_ESCAPED) or _UNSTORABLE.search(text):
        return _ESCAPED + json.dumps(text)
    return text


def unescape_text(text: str) -> str:
    """Inverse of :func:`escape_text`."""
    return str(json.loads(text.removeprefix(_ESCAPED))) if text.startswith(_ESCAPED) else text


def decision_values(draft: DecisionDraft) -> dict[str, Any]:
    """Column values of a decision as the driver takes them; all columns, so that one statement writes many rows."""
    forecast = draft.forecast
    given = forecast if isinstance(forecast, Forecast) else None
    failed = forecast if isinstance(forecast, ForecastFailure) else None
    cost = forecast.cost if forecast is not None else ForecastCost()
    return {
        "candidate_id": escape_text(draft.candidate_id),
        "candidate_key": draft.candidate_key,
        "parent_key": draft.parent_key,
        "action": draft.action.value,
        "reason": draft.reason.value,
        "score": draft.score,
        "confidence": draft.confidence,
        "sampling_probability": draft.sampling_probability,
        "probabilities": json.dumps(given.probabilities) if given else None,
        "components": json.dumps(dict(given.components)) if given and given.components else None,
        "raw_sum": given.raw_sum if given else None,
        "source": _bounded(forecast.source, _LONGEST_NAME) if forecast is not None else None,
        "failure": failed.kind.value if failed else None,
        "failure_detail": escape_text(failed.detail) if failed else None,
        "seconds": cost.seconds,
        "prompt_tokens": cost.prompt_tokens,
        "cached_tokens": cost.cached_tokens,
        "completion_tokens": cost.completion_tokens,
        "reasoning_tokens": cost.reasoning_tokens,
        "forecast_gpu_seconds": cost.gpu_seconds,
        "covered_mass": given.covered_mass if given else None,
        "suspicions": json.dumps([*forecast.suspicions]) if forecast and forecast.suspicions else None,
        "disagrees": given.disagrees if given else None,
        "p_invalid": given.p_invalid if given else None,
        "p_incorrect": given.p_incorrect if given else None,
    }


def screening_values(verdict: Verdict) -> dict[str, Any]:
    """Column values of a verdict as the driver takes them; a profile of no usual size is left out."""
    profile = None if verdict.profile is None else json.dumps(verdict.to_json()["profile"])
    return {
        "status": verdict.status.value,
        "fault": None if verdict.fault is None else verdict.fault.value,
        "line": verdict.line,
        "message": escape_text(verdict.message),
        "stopped": escape_text(verdict.stopped),
        "profile": profile if profile is not None and len(profile) <= _LONGEST_PROFILE else None,
        "seconds": verdict.seconds,
        "cpu_seconds": verdict.cpu_seconds,
        "sandbox": json.dumps([*verdict.sandbox]),
    }


def verdict_from_row(row: Mapping[Any, Any]) -> Verdict:
    """The verdict of a row of screenings."""
    names = ("status", "fault", "line", "profile", "seconds", "cpu_seconds", "sandbox")
    texts = {name: unescape_text(row[name]) for name in ("message", "stopped")}
    return Verdict.from_json({name: row[name] for name in names} | texts)


def forecast_from_row(row: Mapping[Any, Any]) -> ForecastOutcome | None:
    """The forecast of a decision row, the typed failure, or ``None`` when none was asked for.

    Raises:
        LedgerError: the row holds what is none.
    """
    with sound_rows(f"the forecast of candidate {row['candidate_key']}"):
        return _forecast(row)


def _forecast(row: Mapping[Any, Any]) -> ForecastOutcome | None:
    cost = ForecastCost(
        row["seconds"] or 0.0,
        row["prompt_tokens"] or 0,
        row["cached_tokens"] or 0,
        row["completion_tokens"] or 0,
        row["reasoning_tokens"] or 0,
        row["forecast_gpu_seconds"] or 0.0,
    )
    source = row["source"] or ""
    suspicions = tuple(row["suspicions"] or ())
    if row["failure"] is not None:
        detail = unescape_text(row["failure_detail"] or "")
        return ForecastFailure(FailureKind(row["failure"]), detail, source, cost, suspicions)
    if row["probabilities"] is None:
        return None
    components = {name: tuple(values) for name, values in (row["components"] or {}).items()}
    return Forecast(
        tuple(row["probabilities"]),
        row["raw_sum"],
        source,
        cost,
        components,
        row["covered_mass"],
        suspicions,
        bool(row["disagrees"]),
        row["p_invalid"],
        row["p_incorrect"],
    )


def measurement_values(measurement: Measurement) -> dict[str, Any]:
    """Column values of a measurement's result."""
    return {
        "outcome": measurement.outcome.value,
        "value": measurement.value,
        "time_us": measurement.time_us,
        "speedup": measurement.speedup,
        "gpu_seconds": measurement.gpu_seconds,
        "error": escape_text(measurement.error) if measurement.error else measurement.error,
        "payload": measurement.payload,
    }


def measurement_from_row(row: RowMapping) -> Measurement:
    """The measurement of a row that has ended, without its payload."""
    return Measurement(
        Outcome(row["outcome"]),
        row["time_us"],
        row["speedup"],
        row["gpu_seconds"],
        unescape_text(row["error"]) if row["error"] else row["error"],
        value=row["value"],
    )
