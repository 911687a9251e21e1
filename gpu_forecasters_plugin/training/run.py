"""A whole training: rows in; an adapter, its scores on what it has not seen, and how it went out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.errors import MissingExtraError, OutputError
from gpu_forecasters_plugin.files import prepare_folder, write_json
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.forecast import ForecastOutcome
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.training.adapters import (
    adapter_identity,
    check_prompts,
    point_to,
    save_adapter,
)
from gpu_forecasters_plugin.training.base_model import BaseModel, load_base_model, training_libraries
from gpu_forecasters_plugin.training.contest import Contest, compare_forecasters
from gpu_forecasters_plugin.training.data import NewRows, TrainingData, gather
from gpu_forecasters_plugin.training.examples import Questions
from gpu_forecasters_plugin.training.loop import TrainingLog
from gpu_forecasters_plugin.training.rows import TrainingRow, rows_identity
from gpu_forecasters_plugin.training.scoring import forecast_rows, held_out_scores
from gpu_forecasters_plugin.training.settings import TrainedReadout, TrainingSettings, with_local_copies

__all__ = ["ADAPTER", "REFUSED", "Method", "run_training"]

Method = Literal["sft", "grpo", "proper"]

ADAPTER, REFUSED = "adapter", "refused"
"""Folder of the trained adapter; and of one that scored worse than the one it was to replace."""

_TRAINING_FILE = "training.json"
_CARD_SCORES = ("n", "exact", "within_one", "brier", "crps", "nll", "ece", "spearman_within_tasks")
_INDIFFERENT = {"adapter", "save_steps", "log_steps", "samples", "tensorboard", "evaluation_rows"}
"""Settings that change nothing about what is learned; of the adapter, its weights count, not its path."""


def run_training(
    method: Method, settings: TrainingSettings, out: Path, new: NewRows | None = None
) -> dict[str, Any]:
    """Train an adapter and write it with its scores; one that was ended goes on where it was.

    Args:
        method: how.
        settings: on what, and everything else.
        out: folder for ``adapter/``, ``summary.json``, ``samples.jsonl`` and ``checkpoints/``.
        new: ledgers to learn on from: ``settings.adapter`` is the forecaster of before, which stays unless the new one
            scores at least as well on audit rows. Where its path is a symbolic link, the link is set to the new one.

    Returns:
        What ``summary.json`` says.

    Raises:
        OutputError: the folder holds another training, or cannot be written.
        FolderInUseError: another process works in it.
        ConfigError, TrainingError, LedgerError, PoolFileError, RowFileError, MissingExtraError: as the message says.
    """
    training_libraries()
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise MissingExtraError("tensorboard", "train")
    train = _trainer(method)
    settings = with_local_copies(settings)
    hold_folder(out)
    try:
        prepare_folder(out, ("summary.json", _TRAINING_FILE))
        data = gather(settings, new)
        work = _Work(method, settings, out, data, learning_on=new is not None)
        work.claim()
        return work.finish(train)
    finally:
        release_folder(out)


def _trainer(
    method: Method,
) -> Callable[[BaseModel, TrainingData, TrainingSettings, Path], TrainingLog]:
    match method:
        case "sft":
            from gpu_forecasters_plugin.training.sft import train_sft

            return train_sft
        case "grpo":
            from gpu_forecasters_plugin.training.grpo import train_grpo

            return train_grpo
        case _:
            from gpu_forecasters_plugin.training.proper import train_proper

            return train_proper


@dataclass(frozen=True)
class _Work:
    method: Method
    settings: TrainingSettings
    out: Path
    data: TrainingData
    learning_on: bool

    @property
    def readout(self) -> TrainedReadout:
        """What the forecaster is scored by."""
        return self._readouts()[0]

    def claim(self) -> None:
        """Note whose checkpoints the folder holds."""
        file = self.out / _TRAINING_FILE
        identity = self._identity()
        try:
            known = json.loads(file.read_text(encoding="utf-8"))["identity"] if file.exists() else identity
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if known != identity:
            raise OutputError(
                f"{self.out} holds another training (method, settings, rows or adapter differ): choose another --out"
            )
        write_json(file, {"identity": identity, "method": self.method})

    def finish(
        self, train: Callable[[BaseModel, TrainingData, TrainingSettings, Path], TrainingLog]
    ) -> dict[str, Any]:
        settings, link = self.settings, None
        if settings.adapter is not None:
            link = Path(settings.adapter)
            settings = settings.model_copy(update={"adapter": str(link.resolve())})
        base = load_base_model(settings)
        hashes: dict[str, str] = {
            str(readout): Questions(base, settings, readout).prompt_hash for readout in self._readouts()
        }
        if link is not None:
            check_prompts(link, hashes, settings.max_kernel_tokens)
        before = self._answers(base, {"audit": self.data.audit})["audit"]
        log = train(base, self.data, settings, self.out)
        sets = self._held_out()
        answers = self._answers(base, sets | {"audit": self.data.audit})
        contest = None
        if self.learning_on:
            contest = compare_forecasters(
                self.data.audit, before, answers["audit"], settings.contest, settings.seed
            )
        scores = {name: held_out_scores(rows, answers[name]) for name, rows in sets.items()}
        accepted = contest is None or contest.accepted
        folder = self.out / (ADAPTER if accepted else REFUSED)
        save_adapter(base, folder, self._card(hashes, scores))
        if accepted and self.learning_on and link is not None and link.is_symlink():
            point_to(link, folder)
        summary = self._summary(log, scores, contest, folder)
        write_json(self.out / "summary.json", summary)
        return summary

    def _readouts(self) -> Sequence[TrainedReadout]:
        match self.method:
            case "sft":
                return self.settings.sft.readouts
            case "grpo":
                return ["verbalized"]
            case _:
                return ["logprobs"]

    def _held_out(self) -> dict[str, tuple[TrainingRow, ...]]:
        sets = {
            "unseen_kernels": self.data.split.unseen_kernels,
            "unseen_operations": self.data.split.unseen_operations,
        }
        most, seed = self.settings.evaluation_rows, self.settings.seed
        return {
            name: tuple(sorted(rows, key=lambda row: keyed_uniform(seed, "evaluate", row.id))[:most])
            for name, rows in sets.items()
        }

    def _answers(
        self, base: BaseModel, sets: Mapping[str, Sequence[TrainingRow]]
    ) -> dict[str, list[ForecastOutcome]]:
        total = sum(map(len, sets.values()))
        found: dict[str, list[ForecastOutcome]] = {}
        done = 0
        if not total:
            return {name: [] for name in sets}
        with WorkProgress(total, "kernels") as bar:
            for name, rows in sets.items():
                told = partial(_advance, bar, done, f"forecasting {name}")
                found[name] = forecast_rows(base, rows, self.settings, self.readout, told)
                done += len(rows)
        return found

    def _identity(self) -> str:
        """Hash of all that the training depends on."""
        settings = self.settings.model_dump(mode="json", exclude=_INDIFFERENT)
        adapter = None if self.settings.adapter is None else adapter_identity(Path(self.settings.adapter))
        rows = (self.data.identity, rows_identity(self.data.audit))
        document = json.dumps([self.method, settings, adapter, rows, __version__], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:32]

    def _card(self, hashes: Mapping[str, str], scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        settings, train = self.settings, (*self.data.split.train, *self.data.replay)
        return {
            "base_model": settings.base_model,
            "method": self.method,
            "readouts": list(hashes),
            "prompt_hashes": dict(hashes),
            "max_kernel_tokens": settings.max_kernel_tokens,
            "data": {
                "identity": self.data.identity,
                "rows": len(train),
                "operations": sorted({row.operation for row in train}),
                "devices": sorted({row.device for row in train}),
            },
            "held_out": {name: {key: found[key] for key in _CARD_SCORES} for name, found in scores.items()},
            "training": self._identity(),
            "seed": settings.seed,
            "version": __version__,
        }

    def _summary(
        self,
        log: TrainingLog,
        scores: Mapping[str, Mapping[str, Any]],
        contest: Contest | None,
        folder: Path,
    ) -> dict[str, Any]:
        split = self.data.split
        bins = Counter(row.bin for row in split.train)
        return {
            "method": self.method,
            "base_model": self.settings.base_model,
            "adapter": str(folder),
            "accepted": contest is None or contest.accepted,
            "readout": self.readout,
            "rows": {
                "train": len(split.train),
                "replay": len(self.data.replay),
                "audit": len(self.data.audit),
                "unseen_kernels": len(split.unseen_kernels),
                "unseen_operations": len(split.unseen_operations),
                "failed_measurements": self.data.failed,
            },
            "train_bins": {str(index): bins[index] for index in sorted(bins)},
            "held_out_operations": sorted({row.operation for row in split.unseen_operations}),
            "log": asdict(log),
            "held_out": dict(scores),
            "contest": None if contest is None else asdict(contest),
            "settings": self.settings.model_dump(mode="json"),
        }


def _advance(bar: WorkProgress, before: int, label: str, done: int) -> None:
    bar.update(before + done, label)
