"""From what a user's evaluator returned to a typed measurement.

Evaluators return all sorts of things. Each becomes exactly one outcome; whatever is not a plausible time of a correct
kernel is never a slow kernel.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gpu_forecasters_plugin.config import MetricConfig
from gpu_forecasters_plugin.decision import FAILURES, Measurement, Outcome

__all__ = ["LONGEST_PAYLOAD", "EvaluatorAnswer", "MetricReader", "answers_in", "parts_of", "payload_of"]

MetricKind = Literal["speedup", "time_us", "time_ms", "time_s", "score"]

_CORRECT_NAMES = ("correct", "correctness", "is_correct", "passed", "valid")
_TIME_STEMS = ("time", "runtime", "latency", "duration", "elapsed", "kernel_time", "mean_time", "median_time")
_UNITS: dict[str, MetricKind] = {"_us": "time_us", "_ms": "time_ms", "_s": "time_s"}
_USUAL_NAMES: dict[str, MetricKind] = {
    "speedup": "speedup",
    "speed_up": "speedup",
    **{stem + unit: kind for unit, kind in _UNITS.items() for stem in _TIME_STEMS},
    "combined_score": "score",
    "score": "score",
    # Without a unit it may be anything, the wall time of the evaluation for one: only where there is nothing else.
    **dict.fromkeys(_TIME_STEMS, "time_s"),
}
_TO_US = {"time_us": 1.0, "time_ms": 1e3, "time_s": 1e6}
_COMPILE_WORDS = re.compile(r"compil|syntaxerror|nvcc|ptxas|nvrtc|invalid syntax", re.IGNORECASE)
_CUT = "surrogate_cut"
"""Name of the artifact that stands for those that were left out."""

LONGEST_PAYLOAD = 1_000_000
"""Characters of a stored answer."""

_LONGEST_SHOWN = 100

_Text = TypeVar("_Text", str, bytes)

_ERROR_KEYS = ("error", "stderr", "exception", "traceback", "failure")


@dataclass(frozen=True)
class EvaluatorAnswer:
    """The two parts of an evaluator's result: numbers that a host may score by, and texts beside them."""

    metrics: Mapping[str, Any]
    artifacts: Mapping[str, Any]


def _scalar(value: Any) -> Any:
    """The one number of an array or tensor that holds one; everything else as it is."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):  # it holds several, or its device is gone
        return value


def parts_of(raw: Any) -> EvaluatorAnswer | None:
    """Metrics and artifacts of a dict, or of an object with these attributes; ``None`` for anything else.

    Metrics that are arrays or tensors of one number become that number: no host can write down anything else.
    """
    metrics, artifacts = raw, None
    if not isinstance(raw, Mapping):
        metrics, artifacts = getattr(raw, "metrics", None), getattr(raw, "artifacts", None)
    if not isinstance(metrics, Mapping):
        return None
    plain = {name: _scalar(value) for name, value in metrics.items()}
    return EvaluatorAnswer(plain, artifacts if isinstance(artifacts, Mapping) else {})


def _encode(answer: EvaluatorAnswer, longest: int) -> dict[str, Any]:
    """A JSON-compatible copy; what JSON cannot hold is kept as its text.

    Args:
        answer: what an evaluator returned.
        longest: texts are cut to so many characters; 0 leaves out the artifacts altogether.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"base64": base64.b64encode(_cut(value, longest)).decode("ascii")}
        if value is None or isinstance(value, bool | int | float):
            return value
        return _cut(value if isinstance(value, str) else str(value), longest)

    artifacts = {str(k): plain(v) for k, v in answer.artifacts.items()}
    if artifacts and longest == 0:
        artifacts = {_CUT: _marker(len(artifacts), "artifacts")}
    return {"metrics": {str(k): plain(v) for k, v in answer.metrics.items()}, "artifacts": artifacts}


def _marker(count: int, what: str) -> str:
    return f"[gpu-forecasters: {count:,} {what} cut]"


def _cut(value: _Text, longest: int) -> _Text:
    """The start of a text, and how much is missing."""
    if len(value) <= longest:
        return value
    if isinstance(value, bytes):
        return value[:longest] + _marker(len(value) - longest, "bytes").encode()
    return value[:longest] + _marker(len(value) - longest, "characters")


def _decode(document: Mapping[str, Any]) -> EvaluatorAnswer:
    """Inverse of :func:`_encode`."""

    def rich(value: Any) -> Any:
        return base64.b64decode(value["base64"]) if isinstance(value, dict) else value

    return EvaluatorAnswer(
        {k: rich(v) for k, v in document["metrics"].items()},
        {k: rich(v) for k, v in document["artifacts"].items()},
    )


def _number(value: Any) -> float | None:
    """A real number; ``None`` for booleans, texts and everything else."""
    if isinstance(value, bool):
        return None
    try:
        return float(value) if not isinstance(value, str | bytes) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _error_text(answer: EvaluatorAnswer) -> str | None:
    for source in (answer.metrics, answer.artifacts):
        for key in _ERROR_KEYS:
            text = source.get(key)
            if isinstance(text, bytes):
                text = text.decode("utf-8", errors="replace")
            if isinstance(text, str) and text.strip():
                return text.strip()
    return None


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())[:_LONGEST_SHOWN]


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:500] if text.strip() else ""


@dataclass(frozen=True)
class MetricReader:
    """Reads a measurement out of an evaluator's result.

    Attributes:
        config: which metric to read and what is implausible.
        reference_value: the reference's own value of that metric; ``None`` while the reference itself is read.
        early: an early stage of a cascade answers, which need not have the metric yet.
    """

    config: MetricConfig
    reference_value: float | None = None
    early: bool = False

    def read(self, raw: Any, gpu_seconds: float) -> Measurement:
        """The typed measurement of one call.

        Args:
            raw: what the evaluator returned.
            gpu_seconds: how long the call took, in seconds.
        """
        answer = parts_of(raw)
        if answer is None:
            problem = f"evaluator returned {type(raw).__name__}, not a dict of metrics"
            return Measurement(Outcome.RUNTIME_ERROR, gpu_seconds=gpu_seconds, error=problem)
        outcome, problem = self._failure(answer)
        if outcome is None:
            outcome, problem, value, kind = self._value(answer.metrics)
            if outcome is None and value is not None and kind is not None:
                return self._measured(value, kind, answer.metrics, gpu_seconds)
        return Measurement(outcome or Outcome.IMPLAUSIBLE, gpu_seconds=gpu_seconds, error=problem)

    def _failure(self, answer: EvaluatorAnswer) -> tuple[Outcome | None, str]:
        """What the evaluator itself says went wrong."""
        metrics, text = answer.metrics, _error_text(answer)
        message = _last_line(text) if text else ""
        for source in (metrics, answer.artifacts):
            named = source.get("outcome")
            if isinstance(named, str) and named in [outcome.value for outcome in FAILURES]:
                return Outcome(named), message
        if metrics.get("timeout") is True:
            return Outcome.TIMEOUT, message or "evaluator reported a timeout"
        if isinstance(metrics.get("error"), str) and metrics["error"].strip():
            compiles = _COMPILE_WORDS.search(text or "") is None
            return (Outcome.RUNTIME_ERROR if compiles else Outcome.COMPILE_ERROR), message
        if set(metrics) <= {"error", "timeout", "stage1_passed", "stage2_passed"}:
            return Outcome.RUNTIME_ERROR, message or "evaluator reported an error"
        for name in [self.config.correct] if self.config.correct else _CORRECT_NAMES:
            if name in metrics:
                flag = metrics[name]
                value = float(flag) if isinstance(flag, bool) else _number(flag)
                if value is None:
                    return Outcome.IMPLAUSIBLE, f"{name} is {_shown(flag)}, neither true nor false"
                if value < 1.0:
                    return Outcome.INCORRECT, message or f"{name} is {_shown(flag)}"
        return None, ""

    def _candidates(self, metrics: Mapping[str, Any]) -> Iterator[tuple[str, MetricKind]]:
        if self.config.name is not None:
            guessed = _USUAL_NAMES.get(self.config.name.lower(), "score")
            yield self.config.name, guessed if self.config.kind == "auto" else self.config.kind
            return
        for name, kind in _USUAL_NAMES.items():
            if self.config.kind == "auto" or kind == self.config.kind:
                yield name, kind

    def metric_read(self, metrics: Mapping[str, Any]) -> str | None:
        """Name of the metric that :meth:`read` takes from these, if there is one."""
        return next((name for name, _ in self._candidates(metrics) if name in metrics), None)

    def _value(
        self, metrics: Mapping[str, Any]
    ) -> tuple[Outcome | None, str, float | None, MetricKind | None]:
        """The metric, or why it says nothing."""
        for name, raw in metrics.items():
            number = _number(raw)
            if number is not None and not math.isfinite(number):
                return Outcome.IMPLAUSIBLE, f"metric {name} is {number}", None, None
        for name, kind in self._candidates(metrics):
            if name not in metrics:
                continue
            value = _number(metrics[name])
            if value is None:
                return (
                    Outcome.IMPLAUSIBLE,
                    f"metric {name} is {_shown(metrics[name])}, not a number",
                    None,
                    None,
                )
            if kind in _TO_US:
                if value <= 0 or value * _TO_US[kind] < self.config.min_time_us:
                    return Outcome.IMPLAUSIBLE, f"a time of {value!r} ({name}) is not plausible", None, None
            elif value <= 0:
                return Outcome.INCORRECT, f"{name} is {value!r}", None, None
            return None, "", value, kind
        if self.early:
            return Outcome.INCORRECT, "stopped before it had a metric to read", None, None
        wanted = self.config.name or "speedup, a time or combined_score"
        problem = f"no metric to read a speed-up from ({wanted}); set surrogate.metric.name"
        return Outcome.IMPLAUSIBLE, problem, None, None

    def _measured(
        self, value: float, kind: MetricKind, metrics: Mapping[str, Any], gpu_seconds: float
    ) -> Measurement:
        reference = self.reference_value if self.reference_value is not None else value
        speedup = reference / value if kind in _TO_US else value / reference
        if not (math.isfinite(speedup) and 0 < speedup <= self.config.max_speedup):
            problem = f"a speed-up of {speedup:.4g} is not plausible"
            return Measurement(Outcome.IMPLAUSIBLE, gpu_seconds=gpu_seconds, error=problem)
        time_us = value * _TO_US[kind] if kind in _TO_US else _number(metrics.get("time_us"))
        if time_us is not None and (time_us <= 0 or time_us < self.config.min_time_us):
            problem = f"a time of {time_us!r} (time_us) is not plausible"
            return Measurement(Outcome.IMPLAUSIBLE, gpu_seconds=gpu_seconds, error=problem)
        return Measurement(Outcome.OK, time_us=time_us, speedup=speedup, gpu_seconds=gpu_seconds, value=value)


def payload_of(answers: Mapping[str, EvaluatorAnswer]) -> str:
    """Text to store beside a measurement: each called function's answer.

    It takes about a megabyte at most: the longest texts are cut, with a marker that says how much is missing, since a
    ledger that keeps every measurement of a search is no place for logs and dumps.
    """
    longest = LONGEST_PAYLOAD
    while True:
        payload = json.dumps({name: _encode(answer, longest) for name, answer in answers.items()})
        if len(payload) <= LONGEST_PAYLOAD or longest == 0:
            return payload
        longest //= 2


def answers_in(payload: str | None) -> dict[str, EvaluatorAnswer]:
    """Inverse of :func:`payload_of`; empty without a payload."""
    return {name: _decode(document) for name, document in json.loads(payload or "{}").items()}
