"""Reinforcement of written forecasts: several answers to one question, each worth what its forecast is worth.

TRL's trainer does the optimisation (GRPO, Shao et al. 2024); here stands what it is given: the forecaster's own
questions, in the order of the data, and rewards of what the forecaster's own reader makes of an answer. Answers come
from vLLM where it is installed beside a GPU, else from transformers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError, TrainingError
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure, ForecastOutcome
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer, ReadFailure, read_verbalized
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.training.base_model import BaseModel, explained, training_libraries
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import Questions, left_padded, training_order
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
from gpu_forecasters_plugin.training.settings import TrainingSettings

__all__ = ["GrpoLog", "answer_rewards", "merged", "read_answer", "train_grpo"]


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


def read_answer(text: str, finished: bool) -> ForecastOutcome:
    """The forecast in an answer, or why there is none."""
    reading = read_verbalized(Answer(content=text, finish_reason="stop" if finished else "length"))
    if isinstance(reading, ReadFailure):
        return ForecastFailure(reading.kind, reading.detail)
    return Forecast(reading.probabilities, reading.raw_sum, disagrees=reading.disagrees)


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
        with explained(settings), saving_explained(folder), _finite():
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
        self._ends = {base.tokenizer.eos_token_id, *base.answer_ids("")[:1]}

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        truth: Sequence[Sequence[float]],
        task: Sequence[str],
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        texts = [str(completion[0]["content"]) for completion in completions]
        finished = [bool(ids) and ids[-1] in self._ends for ids in completion_ids]
        outcomes = [read_answer(text, done) for text, done in zip(texts, finished, strict=True)]
        rewards = answer_rewards(self._name, outcomes, truth)
        self._counts.answers += len(texts)
        self._counts.failures += sum(isinstance(outcome, ForecastFailure) for outcome in outcomes)
        if trainer_state.global_step % self._every == 0:
            found = zip(task, truth, texts, rewards, strict=True)
            lines = [
                {
                    "step": trainer_state.global_step,
                    "task": t,
                    "bin": list(q).index(1.0) + 1,
                    "answer": a,
                    "reward": r,
                }
                for t, q, a, r in list(found)[: self._kept]
            ]
            with self._samples.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(line) + "\n" for line in lines)
        return rewards


def _trainer_class(trl: Any) -> Any:
    """TRL's trainer, timed, and with less work for the answers to one question, which all begin with it."""

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]
        def __init__(self, counts: _Counts, **arguments: Any) -> None:
            super().__init__(**arguments)
            self._counts = counts

        def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **more: Any) -> Any:
            started = time.perf_counter()
            if self.use_vllm:
                found = super()._generate_single_turn(prompt_ids, *arguments, **more)
            else:
                model = self.accelerator.unwrap_model(self.model)
                pad_id, ends = self._tokenizer.pad_token_id, set(self.eos_token_ids)
                found = drawn_answers(model, prompt_ids, self.generation_config, pad_id, ends), None
            self._counts.generation_s += time.perf_counter() - started
            self._counts.answer_tokens += sum(map(len, found[0]))
            self._counts.prompt_tokens += sum(map(len, prompt_ids))
            return found

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, *arguments: Any, **more: Any
        ) -> Any:
            """Without padding on the left; what is padded on the right alone needs no mask, nor the time it takes."""
            first = int(attention_mask.any(dim=0).int().argmax())
            input_ids, attention_mask = input_ids[:, first:], attention_mask[:, first:]
            if bool(attention_mask[:, 0].all()):
                attention_mask = attention_mask.new_ones(attention_mask.shape)
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, *arguments, **more
            )

    return Trainer


def drawn_answers(
    model: Any, questions: Sequence[Sequence[int]], how: Any, pad_id: int, ends: set[int]
) -> list[list[int]]:
    """The tokens of an answer to each question, drawn by transformers; each question is read once.

    Args:
        model: from PEFT.
        questions: tokens; the same one follows itself as often as it is answered, each one as often as any other.
        how: transformers' generation settings.
        pad_id: token to pad with.
        ends: tokens that end an answer, kept as its last.
    """
    import torch

    unique = [list(question) for question, _ in groupby(questions)]
    times = len(questions) // len(unique)
    batch = left_padded(unique, pad_id)
    ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
    positions = batch["position_ids"].to(model.device)
    training = model.training
    model.eval()
    with merged(model), torch.no_grad():
        read = model(
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=positions[:, :-1],
            use_cache=True,
            logits_to_keep=1,
        )
        read.past_key_values.batch_repeat_interleave(times)
        sequences = model.generate(
            input_ids=ids.repeat_interleave(times, dim=0),
            attention_mask=mask.repeat_interleave(times, dim=0),
            past_key_values=read.past_key_values,
            generation_config=how,
        )
    model.train(training)
    return [_until_end(sequence, ends) for sequence in sequences[:, ids.shape[1] :].tolist()]


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    """The tokens of one answer up to the one that ends it."""
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """The model with its adapter's updates added to its weights, which are put back bit for bit.

    A third of the kernels that a token takes otherwise; the adapted weights are held twice meanwhile.
    """
    layers = [module.base_layer for module in model.modules() if hasattr(module, "base_layer")]
    kept = [layer.weight.data for layer in layers]
    for layer in layers:
        layer.weight.data = layer.weight.data.clone()
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data = weight


@contextmanager
def _finite() -> Iterator[None]:
    """Say what it means that an answer cannot be drawn."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor contains either" not in str(error):
            raise
        raise TrainingError(
            "answers can no longer be drawn, since the model's logits are not finite: lower learning_rate or set "
            "dtype: float32; the checkpoints before are kept"
        ) from None


def _step_teller(transformers: Any, on_step: Callable[[int], bool]) -> Any:
    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= on_step(int(state.global_step))

    return Callback()
