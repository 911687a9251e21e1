"""What a model that is being trained forecasts, and how good that is: in batches, by the product's own readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.evaluation.summary import Evaluated, Intervals, summarise
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure, ForecastOutcome
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer, ReadFailure, read_verbalized
from gpu_forecasters_plugin.training.answering import Drawing, drawn_answers
from gpu_forecasters_plugin.training.base_model import BaseModel, explained
from gpu_forecasters_plugin.training.examples import Questions, right_padded
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import TrainedReadout, TrainingSettings

__all__ = [
    "answer_text",
    "forecast_rows",
    "held_out_scores",
    "judging",
    "label_log_probabilities",
    "read_answer",
    "scored_rows",
    "written_answers",
]

_INTERVALS = Intervals(resamples=200)
_GENERATED_TOKENS = 192
"""A written forecast of the shipped form has some 110."""


def label_log_probabilities(base: BaseModel, logits: Any) -> tuple[Any, Any]:
    """Log-probabilities of the eight labels among themselves, and of all of them together among all tokens.

    Args:
        base: whose labels.
        logits: of the token that an answer begins with; shape (n, vocabulary).

    Returns:
        Tensors of shape (n, 8) and (n,), in float32.
    """
    logits = logits.float()
    labels = logits[:, list(base.label_ids)]
    mass = labels.logsumexp(dim=1)
    return labels - mass[:, None], mass - logits.logsumexp(dim=1)


def forecast_rows(
    base: BaseModel,
    rows: Sequence[TrainingRow],
    settings: TrainingSettings,
    readout: TrainedReadout,
    progress: Callable[[int], None] = lambda done: None,
) -> list[ForecastOutcome]:
    """What the model forecasts for each row, with the answer held to the labels where the readout is ``logprobs``."""
    questions = Questions(base, settings, readout)
    found: list[ForecastOutcome] = []
    with judging(base), explained(settings):
        for batch in _batches(rows, settings.batch_size):
            if readout == "logprobs":
                found += _label_forecasts(base, questions, batch)
            else:
                found += [read_answer(*answer) for answer in written_answers(base, questions, batch)]
            progress(len(found))
    return found


def written_answers(
    base: BaseModel, questions: Questions, rows: Sequence[TrainingRow]
) -> list[tuple[str, bool]]:
    """The likeliest answer to each question, token by token, and whether it came to its end."""
    sequences = [questions.ids(row, _GENERATED_TOKENS) for row in rows]
    how = Drawing(
        _GENERATED_TOKENS, base.answer_ends, base.tokenizer.pad_token_id, temperature=0.0, graph=False
    )
    answers = drawn_answers(base.model, sequences, 1, how)
    return [answer_text(base, answer) for answer in answers]


def answer_text(base: BaseModel, answer: Sequence[int]) -> tuple[str, bool]:
    """The text of an answer's tokens, and whether it came to its end."""
    finished = bool(answer) and answer[-1] in base.answer_ends
    text = base.tokenizer.decode(answer[: len(answer) - finished], skip_special_tokens=True)
    return str(text), finished


def read_answer(text: str, finished: bool) -> ForecastOutcome:
    """The forecast in an answer, or why there is none."""
    reading = read_verbalized(Answer(content=text, finish_reason="stop" if finished else "length"))
    if isinstance(reading, ReadFailure):
        return ForecastFailure(reading.kind, reading.detail)
    return Forecast(reading.probabilities, reading.raw_sum, disagrees=reading.disagrees)


def scored_rows(rows: Sequence[TrainingRow], outcomes: Sequence[ForecastOutcome]) -> ForecastRows:
    """Forecasts beside what was measured; rows that a search drew at random count by their sampling probability."""
    return ForecastRows.of(
        [o.probabilities if isinstance(o, Forecast) else None for o in outcomes],
        [row.speedup for row in rows],
        weights=[1.0 / (row.sampling_probability or 1.0) for row in rows],
        tasks=[row.task for row in rows],
    )


def held_out_scores(rows: Sequence[TrainingRow], outcomes: Sequence[ForecastOutcome]) -> dict[str, Any]:
    """Every measure of a held-out set, with the noise ceiling that its measured spreads allow."""
    scored = scored_rows(rows, outcomes)
    spread = float(np.median([2.0**row.log2_sd - 1.0 for row in rows])) if rows else None
    found = summarise(Evaluated(scored, 0, [], spread), _INTERVALS)
    kinds = [o.kind.value for o in outcomes if isinstance(o, ForecastFailure)]
    return found | {"failures": {kind: kinds.count(kind) for kind in sorted(set(kinds))}}


@contextmanager
def judging(base: BaseModel) -> Iterator[None]:
    """The model in evaluation mode; afterwards as it was."""
    was_training = base.model.training
    base.model.eval()
    try:
        yield
    finally:
        base.model.train(was_training)


def _batches(rows: Sequence[TrainingRow], size: int) -> Iterator[Sequence[TrainingRow]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _label_forecasts(
    base: BaseModel, questions: Questions, rows: Sequence[TrainingRow]
) -> list[ForecastOutcome]:
    import torch

    asked = [questions.ids(row) for row in rows]
    last = torch.tensor([len(question) - 1 for question in asked])
    with torch.inference_mode():
        ids = right_padded(asked, base.tokenizer.pad_token_id)
        labels, mass = label_log_probabilities(base, base.logits_at(ids, torch.arange(len(asked)), last))
    weights, covered = labels.double().exp().cpu().numpy(), mass.exp().cpu().numpy()
    return [
        Forecast(tuple((row / row.sum()).tolist()), covered_mass=float(min(1.0, share)))
        for row, share in zip(weights, covered, strict=True)
    ]
