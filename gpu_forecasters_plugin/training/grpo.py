"""Reinforcement of written forecasts: several answers to one question, each worth what its forecast is worth.

TRL's trainer does the optimisation (GRPO, Shao et al. 2024); here stands what it is given: the forecaster's own
questions, in the order of the data, and rewards of what the forecaster's own reader makes of an answer. Answers come
from vLLM where it is installed beside a GPU, else from transformers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError, TrainingError
from gpu_forecasters_plugin.forecast import ForecastFailure, ForecastOutcome
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.training.answering import Drawing, drawn_answers, sees_everything
from gpu_forecasters_plugin.training.base_model import BaseModel, explained, training_libraries
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import Questions, training_order
from gpu_forecasters_plugin.training.loop import (
    CHECKPOINTS,
    TrainingLog,
    newest_checkpoint,
    saving_explained,
    step_callback,
)
from gpu_forecasters_plugin.training.rewards import RewardName, reward
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.samples import SAMPLES_FILE
from gpu_forecasters_plugin.training.scoring import answer_text, read_answer
from gpu_forecasters_plugin.training.settings import TrainingSettings
from gpu_forecasters_plugin.training.shared_questions import SharedQuestions

__all__ = ["GrpoLog", "answer_rewards", "train_grpo"]


@dataclass(frozen=True)
class GrpoLog(TrainingLog):
    """What a training cost, and how it went; of ``rows``, each was answered several times.

    Attributes:
        answers: that were made, read or not.
        failures: of these, the ones that could not be read.
        answer_tokens: their tokens.
        generation_s: seconds that making them took.
    """

    answers: int = 0
    failures: int = 0
    answer_tokens: int = 0
    generation_s: float = 0.0


@dataclass
class _Counts:
    """What is counted while it happens."""

    answers: int = 0
    failures: int = 0
    answer_tokens: int = 0
    prompt_tokens: int = 0
    generation_s: float = 0.0


def answer_rewards(
    name: RewardName, outcomes: Sequence[ForecastOutcome], truths: Sequence[Sequence[float]]
) -> list[float | None]:
    """What each answer earns; ``None`` where nothing can be said about it, which TRL leaves out of mean and spread.

    Raises:
        TrainingError: a reward is not finite.
    """
    found = [reward(name, outcome, truth) for outcome, truth in zip(outcomes, truths, strict=True)]
    if any(value is not None and not math.isfinite(value) for value in found):
        raise TrainingError(f"a reward of {name} is not finite: the data hold a truth that is none")
    return found


def train_grpo(
    base: BaseModel,
    data: TrainingData,
    settings: TrainingSettings,
    folder: Path,
    on_step: Callable[[int], bool] = lambda step: False,
) -> GrpoLog:
    """Train the adapter in place, from the newest whole checkpoint if there is one.

    Args:
        base: with an adapter that writes readable answers, mostly one from ``train sft``.
        data: measured kernels.
        settings: of the training. An update takes ``batch_size`` times ``gradient_accumulation`` answers.
        folder: for checkpoints, samples of answers and logs; exists.
        on_step: told the number of each step that is done; says whether to end with it.

    Raises:
        ConfigError: the answers of an update are no whole groups.
        MissingExtraError: a library is missing.
        TrainingError: numbers are no longer finite, or memory has run out.
        OutputError: a checkpoint cannot be written.
    """
    trl, (_, transformers, _) = _trl(), training_libraries()
    rows = training_order(data, _asking_each_question_once(settings))
    started, counts = time.perf_counter(), _Counts()
    with WorkProgress(settings.steps, "steps") as bar:
        trainer = _trainer_class(trl)(
            counts,
            _drawing(base, settings),
            model=base.model,
            processing_class=base.tokenizer,
            train_dataset=_dataset(base, rows, settings),
            reward_funcs=_Rewards(base, settings, folder / SAMPLES_FILE, counts),
            args=_arguments(trl, settings, folder),
            callbacks=[
                step_callback(transformers, bar, lambda step: None),
                _step_teller(transformers, on_step),
            ],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        checkpoint = newest_checkpoint(folder)
        with explained(settings), saving_explained(folder):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return GrpoLog(
        steps=int(trainer.state.global_step),
        seconds=time.perf_counter() - started,
        rows=counts.answers // settings.grpo.group_size,
        tokens=counts.prompt_tokens + counts.answer_tokens,
        curve=[entry for entry in trainer.state.log_history if "loss" in entry],
        answers=counts.answers,
        failures=counts.failures,
        answer_tokens=counts.answer_tokens,
        generation_s=counts.generation_s,
    )


def _asking_each_question_once(settings: TrainingSettings) -> TrainingSettings:
    """The settings of a training whose batches are the questions of an update rather than the answers to them."""
    answers = settings.batch_size * settings.gradient_accumulation
    questions, rest = divmod(answers, settings.grpo.group_size)
    if rest:
        raise ConfigError(
            f"training.grpo.group_size: an update has batch_size {settings.batch_size} x gradient_accumulation "
            f"{settings.gradient_accumulation} = {answers} answers, which must be whole groups of "
            f"{settings.grpo.group_size}"
        )
    return settings.model_copy(update={"batch_size": questions, "gradient_accumulation": 1})


def _drawing(base: BaseModel, settings: TrainingSettings) -> Drawing:
    return Drawing(
        settings.grpo.max_answer_tokens,
        base.answer_ends,
        base.tokenizer.pad_token_id,
        settings.grpo.temperature,
    )


def _trl() -> Any:
    try:
        import trl
    except ImportError:
        raise MissingExtraError("trl", "train") from None
    return trl


def _dataset(base: BaseModel, rows: Sequence[TrainingRow], settings: TrainingSettings) -> Any:
    import datasets

    questions = Questions(base, settings, "verbalized")
    for row in rows:
        questions.ids(
            row, settings.grpo.max_answer_tokens
        )  # says which prompt is too long before anything is paid for
    columns = {
        "prompt": [questions.messages(row) for row in rows],
        "truth": [[float(number == row.bin) for number in range(1, N_BINS + 1)] for row in rows],
        "task": [row.task for row in rows],
    }
    return datasets.Dataset.from_dict(columns)


def _arguments(trl: Any, settings: TrainingSettings, folder: Path) -> Any:
    import torch

    grpo, cuda = settings.grpo, torch.cuda.is_available()
    use_vllm = grpo.vllm == "always" or (grpo.vllm == "auto" and cuda and find_spec("vllm") is not None)
    return trl.GRPOConfig(
        output_dir=str(folder / CHECKPOINTS),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        num_generations=grpo.group_size,
        max_completion_length=grpo.max_answer_tokens,
        temperature=grpo.temperature,
        beta=grpo.kl_weight,
        epsilon=grpo.clip,
        scale_rewards="group" if grpo.scale else "none",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(settings.warmup * settings.steps),
        max_grad_norm=settings.gradient_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=cuda and settings.dtype != "float32",
        use_vllm=use_vllm,
        vllm_mode="colocate",
        shuffle_dataset=False,  # the rows come in the order of the training already
        logging_steps=settings.log_steps,
        save_steps=settings.save_steps,
        save_total_limit=2,
        report_to=["tensorboard"] if settings.tensorboard else [],
        disable_tqdm=True,
        seed=settings.seed,
        use_cpu=not cuda,
    )


class _Rewards:
    """Reads answers and rewards them; the first ones of each batch are kept."""

    __name__ = "forecast"

    def __init__(self, base: BaseModel, settings: TrainingSettings, samples: Path, counts: _Counts) -> None:
        self._name = settings.grpo.reward
        self._kept = settings.samples
        self._every = settings.log_steps
        self._samples = samples
        self._counts = counts
        self._base = base

    def __call__(
        self,
        completion_ids: Sequence[Sequence[int]],
        truth: Sequence[Sequence[float]],
        task: Sequence[str],
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        answers = [answer_text(self._base, ids) for ids in completion_ids]
        outcomes = [read_answer(*answer) for answer in answers]
        rewards = answer_rewards(self._name, outcomes, truth)
        self._counts.answers += len(answers)
        self._counts.failures += sum(isinstance(outcome, ForecastFailure) for outcome in outcomes)
        if trainer_state.global_step % self._every == 0:
            found = zip(task, truth, answers, rewards, strict=True)
            lines = [
                {
                    "step": trainer_state.global_step,
                    "task": t,
                    "bin": list(q).index(1.0) + 1,
                    "answer": a[0],
                    "reward": r,
                }
                for t, q, a, r in list(found)[: self._kept]
            ]
            with self._samples.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(line) + "\n" for line in lines)
        return rewards


def _trainer_class(trl: Any) -> Any:
    """TRL's trainer, timed, with each question read once for all answers to it."""
    from trl.trainer.utils import split_tensor_dict

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]
        def __init__(self, counts: _Counts, how: Drawing, **arguments: Any) -> None:
            super().__init__(**arguments)
            self._counts = counts
            self._how = how
            self._buffered_inputs: Any = None

        def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **more: Any) -> Any:
            started = time.perf_counter()
            if self.use_vllm:
                found = super()._generate_single_turn(prompt_ids, *arguments, **more)
            else:
                model, times = self.accelerator.unwrap_model(self.model), self.num_generations
                found = drawn_answers(model, prompt_ids[::times], times, self._how), None
            self._counts.generation_s += time.perf_counter() - started
            self._counts.answer_tokens += sum(map(len, found[0]))
            self._counts.prompt_tokens += sum(map(len, prompt_ids))
            return found

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            """As TRL's, but for the shuffling: answers to the same question stay together."""
            every = self.args.steps_per_generation
            if self._step % every == 0 or self._buffered_inputs is None:
                answered = self._generate_and_score_completions(generation_batch)
                self._buffered_inputs = split_tensor_dict(answered, every)
            return self._buffered_inputs[self._step % every]

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **more: Any
        ) -> Any:
            bare = self.accelerator.unwrap_model(model)
            if more.get("compute_aux_loss") or not sees_everything(bare):
                return super()._get_per_token_logps_and_entropies(
                    model, input_ids, attention_mask, logits_to_keep, **more
                )
            rows = _questions_and_answers(input_ids, attention_mask, logits_to_keep)
            shared = SharedQuestions.of(rows, self._tokenizer.pad_token_id, bare.device, bare.dtype)
            with self.accelerator.autocast():
                found = model(**shared.inputs, fused_lm_head=True)
            entropies = (
                shared.by_answer(found.entropy, logits_to_keep) if more.get("compute_entropy") else None
            )
            return shared.by_answer(found.log_probs, logits_to_keep), entropies, None

    return Trainer


def _questions_and_answers(
    input_ids: Any, attention_mask: Any, answer_width: int
) -> list[tuple[list[int], list[int]]]:
    """The tokens of each row without its padding."""
    kept = attention_mask.bool().tolist()
    found = []
    for ids, real in zip(input_ids.tolist(), kept, strict=True):
        tokens = [token if there else None for token, there in zip(ids, real, strict=True)]
        question, answer = tokens[:-answer_width], tokens[-answer_width:]
        found.append(([t for t in question if t is not None], [t for t in answer if t is not None]))
    return found


def _step_teller(transformers: Any, on_step: Callable[[int], bool]) -> Any:
    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= on_step(int(state.global_step))

    return Callback()
