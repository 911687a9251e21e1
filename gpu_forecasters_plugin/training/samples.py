"""A few answers of the model at every checkpoint, kept to be read by people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.training.base_model import BaseModel
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import Questions
from gpu_forecasters_plugin.training.scoring import forecast_rows, judging, written_answers
from gpu_forecasters_plugin.training.settings import TrainedReadout, TrainingSettings

__all__ = ["SAMPLES_FILE", "SampleKeeper"]

SAMPLES_FILE = "samples.jsonl"


class SampleKeeper:
    """Writes ``samples.jsonl``: a line per checkpoint, held-out kernel and readout.

    Args:
        base: the model.
        data: the first of each held-out set are asked about, in turn.
        settings: of the training.
        folder: where the file is.
        readouts: how the model is asked.
    """

    def __init__(
        self,
        base: BaseModel,
        data: TrainingData,
        settings: TrainingSettings,
        folder: Path,
        readouts: Sequence[TrainedReadout],
    ) -> None:
        self._base = base
        held_out = zip_longest(data.split.unseen_operations, data.split.unseen_kernels)
        self._rows = [row for row in chain.from_iterable(held_out) if row is not None][: settings.samples]
        self._settings = settings
        self._file = folder / SAMPLES_FILE
        self._readouts = readouts

    def keep(self, step: int) -> None:
        """Ask about the samples as they are answered at ``step``."""
        lines = [
            json.dumps({"step": step, "readout": readout} | answer) + "\n"
            for readout in self._readouts
            if self._rows
            for answer in self._answers(readout)
        ]
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def _answers(self, readout: TrainedReadout) -> Iterator[dict[str, Any]]:
        about = [
            {"task": row.task, "device": row.device, "kernel": row.candidate_key[:12], "true_bin": row.bin}
            for row in self._rows
        ]
        if readout == "logprobs":
            outcomes = forecast_rows(self._base, self._rows, self._settings, readout)
            for head, outcome in zip(about, outcomes, strict=True):
                probabilities = outcome.probabilities if isinstance(outcome, Forecast) else None
                yield head | {"probabilities": probabilities}
            return
        questions = Questions(self._base, self._settings, readout)
        with judging(self._base):
            for head, (text, finished) in zip(
                about, written_answers(self._base, questions, self._rows), strict=True
            ):
                yield head | {"answer": text, "finished": finished}
