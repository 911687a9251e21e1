"""A whole evaluation: kernels in, forecasts kept, figures and pictures out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.bins import BINS, BinScheme
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.evaluation.asking import Answers, Protocol, ask_about
from gpu_forecasters_plugin.evaluation.kept import FAILURES_FILE, FORECASTS_FILE, KeptForecasts
from gpu_forecasters_plugin.evaluation.pairs import Pair
from gpu_forecasters_plugin.evaluation.pictures import PICTURES, write_pictures
from gpu_forecasters_plugin.evaluation.recorded import recorded_forecasts
from gpu_forecasters_plugin.evaluation.summary import Evaluated, Intervals, summarise
from gpu_forecasters_plugin.evaluation.tables import report_text
from gpu_forecasters_plugin.files import prepare_folder, write_atomically, write_json
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.forecast import Ending, Forecast, ForecastCost, ForecastFailure
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.progress import WorkProgress

__all__ = ["Scoring", "evaluate_ledger", "evaluate_pairs", "summarise_answers"]

OUTPUT_FILES = ("summary.json", "report.md", *PICTURES)

_MOST_TASK_INTERVALS = 20
"""With more tasks, only the whole has intervals: those of hundreds of tasks would take hours, and nobody reads them."""


_INDIFFERENT = frozenset({"base_url", "api_key_env", "deadline_s", "concurrency", "server_gpus"})
"""Settings of a language model that change no answer: the same model may go on at another address."""


@dataclass(frozen=True)
class Scoring:
    """How forecasts are scored.

    Attributes:
        bins: the scheme.
        intervals: of the scores.
        spread: relative standard deviation of one measurement, where nothing was measured twice.
    """

    bins: BinScheme = BINS
    intervals: Intervals = Intervals()
    spread: float | None = None


def evaluate_pairs(pairs: Sequence[Pair], protocol: Protocol, scoring: Scoring, out: Path) -> dict[str, Any]:
    """Ask a forecaster about measured kernels and write what comes of it.

    An evaluation that was ended goes on where it was, in the same folder.

    Args:
        pairs: kernels.
        protocol: who is asked, and what it may know.
        scoring: how its forecasts are scored.
        out: folder for ``summary.json``, ``report.md``, the pictures, ``forecasts.jsonl`` and ``failures.jsonl``.

    Raises:
        OutputError: the folder holds another evaluation's forecasts, or cannot be written.
        FolderInUseError: another process works in it.
    """
    hold_folder(out)
    try:
        prepare_folder(out, (*OUTPUT_FILES, FORECASTS_FILE, FAILURES_FILE))
        kept = KeptForecasts(out, _identity(pairs, protocol))
        with WorkProgress(len(pairs), "kernels") as bar:
            answers = ask_about(pairs, protocol, kept, lambda done: bar.update(done, "forecasting"))
            bar.update(len(pairs), "scoring")
            summary, rows = summarise_answers(pairs, answers, protocol, scoring)
        _write(summary, rows, out)
    finally:
        release_folder(out)
    return summary


def summarise_answers(
    pairs: Sequence[Pair], answers: Answers, protocol: Protocol, scoring: Scoring
) -> tuple[dict[str, Any], ForecastRows]:
    """What ``summary.json`` says of a forecaster's answers, overall and by task, and the rows that it is about."""
    evaluated = _evaluated(pairs, answers, scoring)
    intervals = scoring.intervals
    tasks: dict[str, list[Pair]] = {}
    for pair in pairs:
        tasks.setdefault(pair.task, []).append(pair)
    by_task = intervals if len(tasks) <= _MOST_TASK_INTERVALS else replace(intervals, resamples=0)
    summary = summarise(evaluated, intervals)
    summary["forecaster"] = _described(protocol)
    summary["protocol"] = {
        "training": _training_in_words(protocol),
        "within_run": protocol.within_run,
        "shuffle": protocol.shuffle,
        "learned_from": answers.learned_from,
    }
    summary["cost"] = asdict(sum((o.cost for o in answers.outcomes.values()), ForecastCost()))
    summary["suspicious"] = sum(bool(o.suspicions) for o in answers.outcomes.values())
    summary["failures"] = _failures(answers)
    summary["tasks"] = {
        task: summarise(_evaluated(kernels, answers, scoring), by_task)
        for task, kernels in (tasks.items() if len(tasks) > 1 else ())
    }
    return summary, evaluated.rows


def evaluate_ledger(ledger: LedgerReader, scoring: Scoring, out: Path) -> dict[str, Any]:
    """Score the forecasts that a run has recorded, and write what comes of it.

    Args:
        ledger: follows a run.
        scoring: how forecasts are scored.
        out: folder for ``summary.json``, ``report.md`` and the pictures.
    """
    prepare_folder(out, OUTPUT_FILES)
    found = recorded_forecasts(ledger, scoring.bins)
    everything = Evaluated(found.rows, found.failed, found.repeats, scoring.spread, found.foreseen)
    summary = summarise(everything, scoring.intervals)
    summary["forecaster"] = found.forecaster
    summary["task"] = found.task
    summary["protocol"] = {"training": "Forecasts as the run made them, before each measurement"}
    summary["tasks"] = {}
    drawn = replace(everything, rows=found.drawn, failed=0, foreseen=())
    summary["drawn_at_random"] = summarise(drawn, scoring.intervals) if len(found.drawn) else None
    _write(summary, found.rows, out)
    return summary


def _evaluated(pairs: Sequence[Pair], answers: Answers, scoring: Scoring) -> Evaluated:
    scored = [pair for pair in pairs if pair.id in answers.outcomes and pair.speedup is not None]
    forecasts = [answers.outcomes[pair.id] for pair in scored]
    rows = ForecastRows.of(
        [f.probabilities if isinstance(f, Forecast) else None for f in forecasts],
        [pair.speedup or 0.0 for pair in scored],
        bins=scoring.bins,
        tasks=[pair.task for pair in scored],
    )
    failed = sum(pair.speedup is None for pair in pairs)
    foreseen = [
        (outcome.p_ok, pair.ending is Ending.OK)
        for pair in pairs
        if isinstance(outcome := answers.outcomes.get(pair.id), Forecast)
        and outcome.p_ok is not None
        and pair.ending is not None
    ]
    return Evaluated(rows, failed, [pair.repeats for pair in scored], scoring.spread, foreseen)


def _write(summary: Mapping[str, Any], rows: ForecastRows, out: Path) -> None:
    write_json(out / "summary.json", summary)
    write_atomically(out / "report.md", report_text(summary))
    for name in PICTURES:
        (out / name).unlink(missing_ok=True)  # those of an earlier evaluation
    if len(rows):
        write_pictures(rows, out, f"{summary['forecaster']}, {len(rows)} kernels")


def _identity(pairs: Sequence[Pair], protocol: Protocol) -> str:
    """Hash of all that a forecast depends on."""
    config = _without(protocol.config.model_dump(mode="json"), _INDIFFERENT)
    rest = (protocol.seed, protocol.shapes, protocol.within_run, protocol.shuffle, __version__)
    kernels = [(p.id, p.speedup, None if p.verdict is None else p.verdict.status) for p in pairs]
    document = json.dumps([config, rest, kernels], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def _without(value: Any, names: frozenset[str]) -> Any:
    """Plain values without the keys of these names, however deep."""
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value


def _described(protocol: Protocol) -> str:
    config = protocol.config
    inner = f"({config.forecaster.kind})" if config.forecaster is not None else ""
    experts = f"({', '.join(expert.kind for expert in config.experts)})" if config.experts else ""
    return f"{config.kind}{inner}{experts}{f' {config.model}' if config.model else ''}"


def _training_in_words(protocol: Protocol) -> str:
    if protocol.within_run:
        return (
            f"Learned from the first {protocol.within_run} measured kernels of each run, which are not scored"
        )
    return "Nothing of a kernel's own task is known; what learns across tasks learned from the others"


def _failures(answers: Answers) -> dict[str, int]:
    kinds = [o.kind.value for o in answers.outcomes.values() if isinstance(o, ForecastFailure)]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
