"""ShinkaEvolve's results, from the files of an evaluation to a typed measurement and back from the ledger.

An evaluation leaves ``metrics.json`` (``combined_score``, ``public``, ``private``, ``text_feedback``) and
``correct.json`` (``correct``, ``error``); the host's own loader makes one dictionary of both and of the job's logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.config import MetricConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.measuring import EvaluatorAnswer, MetricReader, answers_in

__all__ = ["FUNCTION", "answer_of", "failed_results", "host_results", "load", "measurement_of", "results_in"]

FUNCTION = "evaluate"
"""Name that an evaluation's answer is kept under in the ledger."""

_FILES = ("metrics.json", "correct.json")
_LOGS = ("stdout_log", "stderr_log")
_LONGEST_LOG = 100_000


def load(loader: Callable[[], Any], results_dir: str) -> dict[str, Any]:
    """What the host's loader returns, whatever an evaluation left behind.

    Args:
        loader: the host's own; it may raise on files that are no JSON.
        results_dir: where the files are.
    """
    try:
        found = loader()
    except Exception as error:  # whatever the host's reader lets through
        return failed_results(f"the results cannot be read: {type(error).__name__}: {error}")
    results = dict(found) if isinstance(found, Mapping) else {}
    problem = _problem(results, Path(results_dir))
    if problem is None:
        return results
    return failed_results(problem) | {name: results.get(name) or "" for name in _LOGS}


def _problem(results: Mapping[str, Any], folder: Path) -> str | None:
    """What is wrong with the files as such, or ``None``."""
    for name in _FILES:
        content = results.get(name.removesuffix(".json"))
        if not isinstance(content, Mapping):
            return f"{name} holds {type(content).__name__}, not a JSON object"
        if not (folder / name).exists():
            return f"the evaluation left no {name}{_last_words(results)}"
    if not results["metrics"]:
        return str(results["correct"].get("error") or "metrics.json is empty, or no whole JSON object")
    return None


def _last_words(results: Mapping[str, Any]) -> str:
    """The end of the evaluation's error output: mostly the exception that ended it."""
    lines = str(results.get("stderr_log") or "").strip().splitlines()
    return f"; its last words: {lines[-1].strip()}" if lines else ""


def failed_results(error: str) -> dict[str, Any]:
    """What the host stores as an incorrect program, with the reason among its texts."""
    return {
        "correct": {"correct": False, "error": error},
        "metrics": {"text_feedback": error},
        "stdout_log": "",
        "stderr_log": error,
        # Marks that the evaluation itself failed, rather than called the program wrong.
        "failure": error,
    }


def answer_of(results: Mapping[str, Any]) -> EvaluatorAnswer:
    """The numbers of an evaluation in one level, private below public ones, and the texts beside them."""
    document, verdict = results["metrics"], results["correct"]
    metrics: dict[str, Any] = {}
    for section in ("private", "public"):
        values = document.get(section)
        metrics.update(values if isinstance(values, Mapping) else {})
    metrics |= {name: v for name, v in document.items() if isinstance(v, bool | int | float)}
    metrics["correct"] = verdict.get("correct")
    failure = results.get("failure")
    if failure is not None:
        metrics["error"] = failure
    texts = {name: str(results.get(name) or "")[-_LONGEST_LOG:] for name in _LOGS}
    artifacts = {"error": verdict.get("error"), "metrics": _json(document), "correct": _json(verdict)} | texts
    return EvaluatorAnswer(metrics, artifacts)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, default=str)


def measurement_of(
    results: Mapping[str, Any], metric: MetricConfig, reference_value: float | None, gpu_seconds: float
) -> Measurement:
    """The typed measurement of an evaluation.

    Args:
        results: from :func:`load`.
        metric: which metric to read.
        reference_value: the reference's own value of it; ``None`` while the reference itself is read.
        gpu_seconds: how long the evaluation took, in seconds.
    """
    return MetricReader(metric, reference_value).read(answer_of(results), gpu_seconds)


def host_results(results: Mapping[str, Any], measurement: Measurement) -> dict[str, Any]:
    """What the host is to store: its own results, unless they cannot be true."""
    if measurement.outcome is Outcome.IMPLAUSIBLE:
        failed = failed_results(f"implausible: {measurement.error}")
        return failed | {name: results.get(name) or "" for name in _LOGS[:1]}
    return dict(results)


def results_in(measurement: Measurement) -> dict[str, Any]:
    """The host's results of an earlier measurement of the same source."""
    answer = answers_in(measurement.payload).get(FUNCTION)
    if answer is None or measurement.outcome is Outcome.IMPLAUSIBLE:
        return failed_results(f"{measurement.outcome}: {measurement.error or 'measured before'}")
    try:
        metrics = json.loads(answer.artifacts["metrics"])
        correct = json.loads(answer.artifacts["correct"])
    except (ValueError, KeyError):  # the ledger keeps the first megabyte
        numbers = {name: value for name, value in answer.metrics.items() if name != "correct"}
        metrics = {"combined_score": numbers.pop("combined_score", 0.0), "public": numbers}
        correct = {"correct": answer.metrics.get("correct")}
    logs = {name: answer.artifacts.get(name) or "" for name in _LOGS}
    return {"metrics": metrics, "correct": correct} | logs
