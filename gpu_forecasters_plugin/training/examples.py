"""Rows as token sequences: the forecaster's own question, and the answer that it should have given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecasters.language_model.parsing import PROBABILITY_KEYS
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.training.base_model import BaseModel
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import TrainedReadout, TrainingSettings
from gpu_forecasters_plugin.training.splits import balanced_order

__all__ = ["Questions", "right_padded", "training_order", "verbalized_answer"]

_HUNDREDTHS = 100


class Questions:
    """Turns rows into the tokens of a question of one readout, as a forecaster with the same settings asks it.

    Args:
        base: whose tokenizer and chat template write it.
        settings: of the training.
        readout: how the answer is read.

    Attributes:
        prompt_hash: identity of the prompts, as a forecaster's ledger has it.
    """

    def __init__(self, base: BaseModel, settings: TrainingSettings, readout: TrainedReadout) -> None:
        self.readout = readout
        self._base = base
        self._settings = settings
        self._writer = PromptWriter.from_settings(settings.asking(readout))
        self._known: dict[str, list[int]] = {}

    @cached_property
    def prompt_hash(self) -> str:
        return self._writer.hash

    def messages(self, row: TrainingRow) -> list[dict[str, str]]:
        """The question as a chat."""
        return self._writer.write(row.query).messages

    def ids(self, row: TrainingRow, answer_tokens: int = 1) -> list[int]:
        """Its tokens.

        Args:
            row: what is asked about.
            answer_tokens: room that the answer needs behind it.

        Raises:
            TrainingError: the question does not fit the model's context.
        """
        if row.id not in self._known:
            self._known[row.id] = self._base.question_ids(self.messages(row))
        return self._base.fitting(
            self._known[row.id], answer_tokens, row.task, self._settings.max_kernel_tokens
        )


def training_order(data: TrainingData, settings: TrainingSettings) -> list[TrainingRow]:
    """The row of each place in every batch, from the first step to the last; replayed rows evenly among the new."""
    count = settings.steps * settings.batch_size * settings.gradient_accumulation
    share = settings.contest.replay_share if data.replay else 0.0
    replayed = int(count * share)
    balance, seed = settings.data.balance, settings.seed
    new = iter(balanced_order(data.split.train, count - replayed, balance, seed))
    old = iter(balanced_order(data.replay, replayed, balance, seed) if replayed else ())
    return [
        data.replay[next(old)]
        if int((place + 1) * share) > int(place * share)
        else data.split.train[next(new)]
        for place in range(count)
    ]


def verbalized_answer(row: TrainingRow, blur_octaves: float) -> str:
    """The JSON object that a model should have written: a distribution about the measurement, without a thought.

    Args:
        row: what was measured.
        blur_octaves: standard deviation of the distribution, beside that of the measurement.
    """
    places = _hundredths(row.blurred_bin(blur_octaves))
    best = max(range(N_BINS), key=lambda place: (places[place], place == row.bin - 1))
    answer = {
        "reasoning": "",
        **{key: value / _HUNDREDTHS for key, value in zip(PROBABILITY_KEYS, places, strict=True)},
        "predicted_bin": best + 1,
    }
    return json.dumps(answer)


def right_padded(sequences: Sequence[Sequence[int]], pad_id: int) -> Any:
    """A batch that needs no mask, since no token sees what stands behind it: a tensor of shape (n, longest)."""
    import torch

    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[pad_id] * (longest - len(sequence))] for sequence in sequences])


def _hundredths(probabilities: Sequence[float]) -> list[int]:
    """Whole hundredths that sum to 100, each next to its probability: the largest remainders are rounded up."""
    whole = [int(p * _HUNDREDTHS) for p in probabilities]
    rest = sorted(range(N_BINS), key=lambda place: whole[place] - probabilities[place] * _HUNDREDTHS)
    for place in rest[: _HUNDREDTHS - sum(whole)]:
        whole[place] += 1
    return whole
