"""Direct descent on a proper score: the probabilities of the eight labels at the one token that an answer is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.training.base_model import BaseModel
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import Questions, right_padded, training_order
from gpu_forecasters_plugin.training.loop import Objective, TrainingLog, train_steps
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.samples import SampleKeeper
from gpu_forecasters_plugin.training.scoring import label_log_probabilities
from gpu_forecasters_plugin.training.settings import TrainingSettings

__all__ = ["ProperObjective", "proper_score", "train_proper"]


def proper_score(log_probabilities: Any, truth: Any, score: Literal["nll", "brier", "crps"]) -> Any:
    """The mean score of forecasts; 0 is perfect, and only the true distribution is best in expectation.

    As :mod:`gpu_forecasters_plugin.calibration.scores` has them, but with a gradient; the logarithm has no floor, since
    a soft-max leaves no probability of 0.

    Args:
        log_probabilities: tensor of shape (n, 8).
        truth: probability of each bin being the true one; tensor of shape (n, 8).
        score: which.
    """
    if score == "nll":
        return -(truth * log_probabilities).sum(dim=1).mean()
    probabilities = log_probabilities.exp()
    if score == "brier":
        square, hit = (probabilities**2).sum(dim=1), (probabilities * truth).sum(dim=1)
        return (0.5 * square - hit + 0.5).mean()
    foretold, happened = probabilities.cumsum(dim=1)[:, :-1], truth.cumsum(dim=1)[:, :-1]
    return (foretold**2 - 2 * foretold * happened + happened).sum(dim=1).mean() / (N_BINS - 1)


class ProperObjective(Objective):
    """The score of a batch, and a little for the probability that tokens other than labels have."""

    def __init__(self, base: BaseModel, settings: TrainingSettings) -> None:
        self._base = base
        self._settings = settings.proper
        self._questions = Questions(base, settings, "logprobs")

    def batch(self, places: Sequence[tuple[int, TrainingRow]]) -> dict[str, Any]:
        import torch

        questions = [self._questions.ids(row) for _, row in places]
        return {
            "tokens": sum(map(len, questions)),
            "input_ids": right_padded(questions, self._base.tokenizer.pad_token_id),
            "last": torch.tensor([len(question) - 1 for question in questions]),
            "truth": torch.tensor([self._truth(row) for _, row in places], dtype=torch.float32),
        }

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        import torch

        logits = self._base.logits_at(batch["input_ids"], torch.arange(len(batch["last"])), batch["last"])
        labels, mass = label_log_probabilities(self._base, logits)
        score = proper_score(labels, batch["truth"], self._settings.score)
        return score - self._settings.mass_weight * mass.mean()

    def _truth(self, row: TrainingRow) -> Sequence[float]:
        if self._settings.soft_truth:
            return row.soft_bin
        return [float(number == row.bin) for number in range(1, N_BINS + 1)]


def train_proper(
    base: BaseModel, data: TrainingData, settings: TrainingSettings, folder: Path
) -> TrainingLog:
    """Train the one-token readout; see :func:`~gpu_forecasters_plugin.training.loop.train_steps`."""
    keeper = SampleKeeper(base, data, settings, folder, ["logprobs"])
    order = training_order(data, settings)
    return train_steps(base, order, ProperObjective(base, settings), settings, folder, keeper.keep)
