"""Imitation: the answer that would have been right, token by token, for each readout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.training.base_model import BaseModel
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import (
    Questions,
    right_padded,
    training_order,
    verbalized_answer,
)
from gpu_forecasters_plugin.training.loop import Objective, TrainingLog, train_steps
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.samples import SampleKeeper
from gpu_forecasters_plugin.training.settings import TrainingSettings

__all__ = ["SftObjective", "train_sft"]

Choice = TypeVar("Choice")


class SftObjective(Objective):
    """Cross-entropy of the answers' tokens; each answer counts the same, however long it is."""

    def __init__(self, base: BaseModel, settings: TrainingSettings) -> None:
        self._base = base
        self._settings = settings
        self._questions = [Questions(base, settings, readout) for readout in settings.sft.readouts]

    def batch(self, places: Sequence[tuple[int, TrainingRow]]) -> dict[str, Any]:
        import torch

        sequences, answers = [], []
        for place, row in places:
            # Drawn, not in turn: bins come in turn as well, and each is to be learned for every readout.
            questions = self._drawn(self._questions, "readout", place)
            answer = self._base.answer_ids(self._answer(questions, place, row))
            sequences.append(questions.ids(row, len(answer)) + answer)
            answers.append(answer)
        return {
            "tokens": sum(map(len, sequences)),
            "input_ids": right_padded(sequences, self._base.tokenizer.pad_token_id),
            "first": torch.tensor([len(s) - len(a) for s, a in zip(sequences, answers, strict=True)]),
            "length": torch.tensor([len(answer) for answer in answers]),
        }

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        import torch

        ids, first, length = batch["input_ids"], batch["first"], batch["length"]
        rows = torch.arange(len(length), device=length.device).repeat_interleave(length)
        starts = (length.cumsum(0) - length).repeat_interleave(length)
        places = first[rows] + torch.arange(len(rows), device=length.device) - starts
        # The token before an answer's first foretells it; what the last one foretells is nobody's business.
        logits = self._base.logits_at(ids, rows, places - 1)
        losses = torch.nn.functional.cross_entropy(logits, ids[rows, places], reduction="none")
        return (losses / length[rows]).sum() / len(length)

    def _answer(self, questions: Questions, place: int, row: TrainingRow) -> str:
        if questions.readout == "logprobs":
            return str(row.bin)
        return verbalized_answer(row, self._drawn(self._settings.sft.blur_octaves, "blur", place))

    def _drawn(self, choices: Sequence[Choice], what: str, place: int) -> Choice:
        return choices[int(keyed_uniform(self._settings.seed, what, place) * len(choices))]


def train_sft(base: BaseModel, data: TrainingData, settings: TrainingSettings, folder: Path) -> TrainingLog:
    """Train on right answers; see :func:`~gpu_forecasters_plugin.training.loop.train_steps`."""
    keeper = SampleKeeper(base, data, settings, folder, settings.sft.readouts)
    order = training_order(data, settings)
    return train_steps(base, order, SftObjective(base, settings), settings, folder, keeper.keep)
