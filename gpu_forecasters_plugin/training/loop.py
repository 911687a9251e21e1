"""The steps of a training: transformers' Trainer with our losses and checkpoints that are whole or absent.

What goes wrong ends it with a clear line, before anything that is not finite is learned.
"""

from __future__ import annotations

import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import OutputError, TrainingError
from gpu_forecasters_plugin.files import write_json
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.training.base_model import BaseModel, explained, training_libraries
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import TrainingSettings

__all__ = [
    "CHECKPOINTS",
    "Objective",
    "TrainingLog",
    "newest_checkpoint",
    "saving_explained",
    "step_callback",
    "train_steps",
]

CHECKPOINTS = "checkpoints"
_COMPLETE = "complete.json"
_KEPT_CHECKPOINTS = 2
_WRITERS = ("SafetensorError", "PytorchStreamWriter", "inline_container")
"""Who fails when a disk is full: safetensors by its error's name, torch by what its error says."""


@dataclass(frozen=True)
class TrainingLog:
    """What a training cost, and how it went.

    Attributes:
        steps: updates of the weights, those before a resume included.
        seconds: of this process alone.
        rows: rows that were trained on in these seconds.
        tokens: tokens of questions and answers, padding apart.
        curve: step, loss and gradient norm of each logged step.
    """

    steps: int
    seconds: float
    rows: int
    tokens: int
    curve: list[dict[str, float]] = field(default_factory=list)


class Objective(ABC):
    """What one method of training makes of rows: a batch, and its loss."""

    @abstractmethod
    def batch(self, places: Sequence[tuple[int, TrainingRow]]) -> dict[str, Any]:
        """Some rows, each with its place in the order of the whole training.

        Returns:
            Tensors, ``input_ids`` among them with a line for each row; and ``tokens``, their number without padding.
        """

    @abstractmethod
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        """The mean loss of a batch, a scalar tensor."""


def train_steps(
    base: BaseModel,
    order: Sequence[TrainingRow],
    objective: Objective,
    settings: TrainingSettings,
    folder: Path,
    on_checkpoint: Callable[[int], None] = lambda step: None,
) -> TrainingLog:
    """Train the model in place, from the newest whole checkpoint if there is one.

    Args:
        base: model with its adapter.
        order: the row of each place in every batch.
        objective: the method.
        settings: of the training.
        folder: for checkpoints and logs; exists.
        on_checkpoint: told the step of every checkpoint when it is whole.

    Raises:
        TrainingError: a loss or a gradient is not finite, or memory has run out.
        OutputError: a checkpoint cannot be written.
    """
    _, transformers, _ = training_libraries()
    started = time.perf_counter()
    counts = _Counts()
    if settings.gradient_checkpointing:
        base.checkpoint_activations()
    with WorkProgress(settings.steps, "steps") as bar:
        trainer = _trainer_class(transformers)(
            model=base.model,
            args=_arguments(transformers, settings, folder),
            train_dataset=list(enumerate(order)),
            data_collator=lambda places: counts.counted(objective.batch(places)),
            callbacks=[step_callback(transformers, bar, on_checkpoint)],
        )
        trainer.objective = objective
        trainer.model_accepts_loss_kwargs = False  # our losses are means: the Trainer averages over batches
        trainer.remove_callback(transformers.PrinterCallback)
        checkpoint = newest_checkpoint(folder)
        with explained(settings), saving_explained(folder):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    curve = [
        {"step": entry["step"], "loss": entry["loss"], "gradient_norm": entry.get("grad_norm", 0.0)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    seconds = time.perf_counter() - started
    return TrainingLog(trainer.state.global_step, seconds, counts.rows, counts.tokens, curve)


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end; those that were not are deleted."""
    found: dict[int, Path] = {}
    for path in sorted((folder / CHECKPOINTS).glob("checkpoint-*")):
        try:
            found[int(json.loads((path / _COMPLETE).read_text(encoding="utf-8"))["step"])] = path
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(path)
    return found[max(found)] if found else None


@contextmanager
def saving_explained(folder: Path) -> Iterator[None]:
    """Say what to do when something inside cannot be written.

    Raises:
        OutputError: it cannot.
    """
    try:
        yield
    except OSError as error:
        reason: object = error.strerror or error
    except Exception as error:  # safetensors and torch have errors of their own for a full disk
        text = " ".join(str(error).split())
        if type(error).__name__ not in _WRITERS and not any(part in text for part in _WRITERS):
            raise
        reason = printable(text[:200])
    else:
        return
    raise OutputError(
        f"a checkpoint cannot be written below {folder}: {reason}: make room, and start the same command again to go "
        "on from the last whole one"
    ) from None


@dataclass
class _Counts:
    rows: int = 0
    tokens: int = 0

    def counted(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.rows += len(batch["input_ids"])
        self.tokens += batch.pop("tokens")
        return batch


def _arguments(transformers: Any, settings: TrainingSettings, folder: Path) -> Any:
    import torch

    return transformers.TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(settings.warmup * settings.steps),
        max_grad_norm=settings.gradient_norm,
        logging_steps=settings.log_steps,
        save_steps=settings.save_steps,
        save_total_limit=_KEPT_CHECKPOINTS,
        save_strategy="steps",
        report_to=["tensorboard"] if settings.tensorboard else "none",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=settings.seed,
        bf16=torch.cuda.is_available() and settings.dtype != "float32",
        # One process: batches are small, and made while the device computes.
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def _trainer_class(transformers: Any) -> Any:
    import torch

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        """The rows in our order, our loss, and an end before anything that is not finite is learned."""

        objective: Objective

        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            loss = self.objective.loss(model, inputs)
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"step {self.state.global_step + 1}: the loss is {loss.item()}: the model's logits are not finite: "
                    f"lower learning_rate (now {self.args.learning_rate:g}) or set dtype: float32; the checkpoints "
                    "before are kept"
                )
            return (loss, None) if return_outputs else loss

    return Trainer


def step_callback(transformers: Any, bar: WorkProgress, on_checkpoint: Callable[[int], None]) -> Any:
    """Watches the steps of a Trainer: progress, gradients that must be finite, and the mark of a whole checkpoint."""
    import torch

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        _label = "training"

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            gradients = [p.grad.sum() for p in more["model"].parameters() if p.grad is not None]
            if not torch.stack(gradients).isfinite().all():
                raise TrainingError(
                    f"step {state.global_step + 1}: the gradient is not finite: lower learning_rate (now "
                    f"{args.learning_rate:g}) or set dtype: float32; the checkpoints before are kept"
                )

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            bar.update(state.global_step, self._label)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if logs and "loss" in logs:
                self._label = f"loss {float(logs['loss']):.4g}"

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_json(path / _COMPLETE, {"step": state.global_step})
            on_checkpoint(state.global_step)

    return Callback()
