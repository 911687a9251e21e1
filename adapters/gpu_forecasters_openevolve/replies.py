"""What a worker hands to OpenEvolve: the evaluator's own answer, or a mark that keeps a program out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_forecasters_openevolve.messages import EvaluationReply
from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure
from gpu_forecasters_plugin.measuring import EvaluatorAnswer

__all__ = [
    "NOT_ADMITTED",
    "failure_reply",
    "is_admissible",
    "measured_reply",
    "not_admitted_reply",
    "skip_reply",
    "undecided_reply",
]

NOT_ADMITTED = "surrogate_not_admitted"
"""Mark among the metrics of a program that must not enter the population. A flag: OpenEvolve averages no flags."""

_ARTIFACT = "surrogate"


def is_admissible(metrics: Mapping[str, Any]) -> bool:
    """Whether a program with these metrics may enter the population."""
    return metrics.get(NOT_ADMITTED) is not True


def _note(decision: Decision) -> str:
    """The forecast in words, for the artifacts; never a metric."""
    forecast = decision.forecast
    if isinstance(forecast, Forecast):
        factor = 2 ** forecast.expected_log2()
        label = BINS.labels[forecast.predicted_bin - 1]
        text = f"forecast {factor:.2f}x ({label}, confidence {forecast.confidence():.2f})"
    elif isinstance(forecast, ForecastFailure):
        text = f"no forecast ({forecast.kind})"
    else:
        text = "not forecast"
    return f"{decision.action}: {decision.reason}; {text}"


def skip_reply(decision: Decision) -> EvaluationReply:
    """The program was not measured."""
    return EvaluationReply({NOT_ADMITTED: True}, {_ARTIFACT: _note(decision)})


def undecided_reply(error: str) -> EvaluationReply:
    """The program was not measured, because the run cannot go on."""
    return EvaluationReply({NOT_ADMITTED: True}, {_ARTIFACT: error})


def not_admitted_reply(measurement: Measurement) -> EvaluationReply:
    """The program was measured, but what came out cannot be true."""
    return EvaluationReply(
        {NOT_ADMITTED: True}, {_ARTIFACT: f"{measurement.outcome}: {measurement.error or ''}"}
    )


def failure_reply(stage: str, error: str, traceback: str | None = None) -> EvaluationReply:
    """The evaluator failed: what OpenEvolve itself makes of an evaluator that raises, without its retries."""
    artifacts = {"stderr": error, "failure_stage": stage}
    if traceback:
        artifacts["traceback"] = traceback
    return EvaluationReply({"error": 0.0}, artifacts)


def measured_reply(
    answer: EvaluatorAnswer, measurement: Measurement, decision: Decision, *, duplicate: bool
) -> EvaluationReply:
    """The evaluator's own answer, with the forecast beside it."""
    note = f"answered by the earlier measurement of this source ({measurement.outcome})"
    if not duplicate:
        note = _note(decision)
        if measurement.outcome is Outcome.OK and measurement.speedup is not None:
            note += f"; measured {measurement.speedup:.2f}x"
    artifacts = dict(answer.artifacts)
    artifacts.setdefault(_ARTIFACT, note)
    return EvaluationReply(dict(answer.metrics), artifacts)
