"""What a worker hands to OpenEvolve: the evaluator's own answer, or a mark that keeps a program out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_forecasters_openevolve.messages import EvaluationReply
from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.measuring import EvaluatorAnswer
from gpu_forecasters_plugin.notes import decision_note

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


def skip_reply(decision: Decision) -> EvaluationReply:
    """The program was not measured.

    One that cannot run comes as the failure that the evaluator would have made of it: its parent's text and the
    compiler's message are then what the host shows to the language model that is to mend it.
    """
    if decision.detail is not None:
        return failure_reply("screen", decision.detail)
    return EvaluationReply({NOT_ADMITTED: True}, {_ARTIFACT: decision_note(decision)})


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
        note = decision_note(decision)
        if measurement.outcome is Outcome.OK and measurement.speedup is not None:
            note += f"; measured {measurement.speedup:.2f}x"
    artifacts = dict(answer.artifacts)
    artifacts.setdefault(_ARTIFACT, note)
    return EvaluationReply(dict(answer.metrics), artifacts)
