"""A base model with its adapter, and how its tokenizer writes questions and answers.

torch, transformers and PEFT are imported when a model is loaded, not before.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError, TrainingError
from gpu_forecasters_plugin.forecasters.language_model.label_logprobs import LABELS
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.training.settings import LoraSettings, TrainingSettings

__all__ = ["AnswerFrame", "BaseModel", "check_adapter", "explained", "load_base_model", "training_libraries"]

_SHORT_QUESTION = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Which bin?"}]


def training_libraries() -> tuple[Any, Any, Any]:
    """torch, transformers and peft.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    for name in ("transformers", "peft", "torch"):  # looked for before any is loaded, which takes seconds
        if find_spec(name) is None:
            raise MissingExtraError(name, "train")
    # What transformers and PEFT deprecate in each other is not for whoever trains a forecaster.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    import peft
    import torch
    import transformers

    return torch, transformers, peft


@dataclass(frozen=True)
class AnswerFrame:
    """What a chat template puts around the text of an answer, after what begins the answer's turn.

    Attributes:
        before: such as the channel that gpt-oss answers on; mostly empty.
        after: what ends the turn.
    """

    before: str
    after: str


class BaseModel:
    """A causal language model with the adapter to be trained, on the device that it trains on.

    Args:
        model: from PEFT, the base frozen.
        tokenizer: of the base model, with a chat template.
        name: of the base model, as the adapter's files name it.

    Attributes:
        frame: what stands around an answer.
        answer_ends: tokens that end an answer: the tokenizer's own, and what ends a turn of its chat template.
        label_ids: the token of each label, "1" to "8", where an answer begins.
        context: most tokens of question and answer together; ``None`` where the model names no limit.

    Raises:
        TrainingError: the tokenizer has no chat template, or a label is not one token.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        if tokenizer.chat_template is None:
            raise TrainingError(
                f"{name}: its tokenizer has no chat template: take an instruction-tuned model"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.frame = self._answer_frame()
        ends = {tokenizer.eos_token_id, *self.answer_ids("")[:1]}
        self.answer_ends = frozenset(int(token) for token in ends if token is not None)
        self.label_ids = self._label_ids()
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)

    @property
    def device(self) -> Any:
        """Where its weights are."""
        return self.model.device

    def checkpoint_activations(self) -> None:
        """Compute activations again in the backward pass instead of keeping them; while training only."""
        with warnings.catch_warnings():
            # It has another name from transformers 5.24 on, where this one still works.
            warnings.simplefilter("ignore", FutureWarning)
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.enable_input_require_grads()

    def logits_at(self, ids: Any, rows: Any, places: Any) -> Any:
        """Logits of what follows some tokens, shape (n, vocabulary), in float32.

        Padding has no mask, which would take the fast kernels of attention away: it stands on the right, where no
        token before sees it.

        Args:
            ids: tokens of sequences, padded on the right; shape (sequences, longest).
            rows: the sequence of each token that is asked about; shape (n,).
            places: where in its sequence it stands; shape (n,).
        """
        torch, _, _ = training_libraries()
        core = self.model.get_base_model()
        mixed = self.device.type == "cuda" and core.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            hidden = core.get_decoder()(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
            head = core.get_output_embeddings()
            return head(hidden[rows.to(self.device), places.to(self.device)]).float()

    def question_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Tokens of a question up to where the answer's own text begins."""
        return self._ids(self._question_text(messages) + self.frame.before)

    def answer_ids(self, answer: str) -> list[int]:
        """Tokens of an answer and of what ends its turn."""
        return self._ids(answer + self.frame.after)

    def fitting(
        self, question: list[int], answer_tokens: int, task: str, max_kernel_tokens: int
    ) -> list[int]:
        """A question that leaves room for its answer.

        Raises:
            TrainingError: it does not; names the knob to turn.
        """
        if self.context is not None and len(question) + answer_tokens > self.context:
            raise TrainingError(
                f"a prompt of task {printable(task)} has {len(question)} tokens and its answer {answer_tokens}, more "
                f"than the {self.context} of {self.name}: lower max_kernel_tokens (now {max_kernel_tokens})"
            )
        return question

    def _question_text(self, messages: Sequence[dict[str, str]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _answer_frame(self) -> AnswerFrame:
        """Read off the template: an answered chat less its question."""
        answer = "@@ANSWER@@"
        question = self._question_text(_SHORT_QUESTION)
        chat = [*_SHORT_QUESTION, {"role": "assistant", "content": answer}]
        whole = str(self.tokenizer.apply_chat_template(chat, tokenize=False))
        if not whole.startswith(question) or answer not in whole:
            return AnswerFrame("", str(self.tokenizer.eos_token or ""))
        before, _, after = whole[len(question) :].partition(answer)
        return AnswerFrame(before, after.rstrip("\n") or str(self.tokenizer.eos_token or ""))

    def _label_ids(self) -> tuple[int, ...]:
        question = self._question_text(_SHORT_QUESTION) + self.frame.before
        start = self._ids(question)
        found = []
        for label in LABELS:
            whole = self._ids(question + label)
            if whole[:-1] != start:
                raise TrainingError(f"{self.name}: its tokenizer does not write {label!r} as one token")
            found.append(whole[-1])
        return tuple(found)


def load_base_model(settings: TrainingSettings, *, trainable: bool = True) -> BaseModel:
    """The base model with a new adapter, or with the one that the settings name.

    Args:
        settings: which model and adapter.
        trainable: whether the adapter is to be trained.

    Raises:
        MissingExtraError: a library is missing.
        ConfigError: there is no such model, the adapter belongs to another one, or more than one GPU is visible.
        TrainingError: the model cannot be used.
    """
    torch, transformers, peft = training_libraries()
    if settings.adapter is not None:
        check_adapter(Path(settings.adapter), settings.base_model)
    if trainable and torch.cuda.device_count() > 1:
        raise ConfigError(
            f"a training uses one GPU, and {torch.cuda.device_count()} are visible: set CUDA_VISIBLE_DEVICES=0"
        )
    transformers.utils.logging.disable_progress_bar()
    cuda = torch.cuda.is_available()
    # Of padded batches its gradients are not finite (torch 2.11, cuDNN 9, H200).
    torch.backends.cuda.enable_cudnn_sdp(False)
    bfloat16 = settings.dtype == "bfloat16" or (settings.dtype == "auto" and cuda)
    with explained(settings):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(settings.base_model)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                settings.base_model,
                dtype=torch.bfloat16 if bfloat16 else torch.float32,
                **_unpacked(transformers, settings.base_model),
            )
        except (OSError, ValueError) as error:
            reason = printable(" ".join(str(error).split())[:300])
            raise ConfigError(f"base_model: {settings.base_model!r} cannot be loaded: {reason}") from None
        transformers.set_seed(settings.seed)  # a new adapter begins at random
        if settings.adapter is None:
            model = _with_new_adapter(peft, model, settings)
        else:
            model = _with_adapter(peft, model, settings.adapter, trainable)
        if cuda:
            model = model.to("cuda")
    return BaseModel(model, tokenizer, settings.base_model)


def _unpacked(transformers: Any, base_model: str) -> dict[str, Any]:
    """What has the four-bit weights of gpt-oss unpacked, since no gradient goes through them."""
    packed = getattr(transformers.AutoConfig.from_pretrained(base_model), "quantization_config", None) or {}
    if packed.get("quant_method") != "mxfp4":
        return {}
    return {"quantization_config": transformers.Mxfp4Config(dequantize=True)}


def check_adapter(folder: Path, base_model: str) -> None:
    """Make sure that an adapter belongs to a base model.

    Raises:
        ConfigError: the folder holds no adapter, or one of another model.
    """
    file = folder / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        named = str(config["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"adapter: {folder} holds no LoRA adapter ({type(error).__name__}: {error})"
        ) from None
    # A folder may have moved since; the model's own name stays.
    if Path(named).name != Path(base_model).name:
        raise ConfigError(f"adapter: {folder} belongs to base model {named}, not to {base_model}")


def _with_new_adapter(peft: Any, model: Any, settings: TrainingSettings) -> Any:
    try:
        return peft.get_peft_model(model, _lora_config(peft, settings.lora))
    except ValueError as error:
        reason = printable(" ".join(str(error).split())[:300])
        raise ConfigError(f"lora.target_modules: {reason}") from None


def _with_adapter(peft: Any, model: Any, folder: str, trainable: bool) -> Any:
    with warnings.catch_warnings():
        # PEFT loads what fits and warns of the rest, whose weights would be those of a new adapter.
        warnings.filterwarnings("error", message=".*(missing|unexpected) adapter keys.*")
        try:
            return peft.PeftModel.from_pretrained(model, folder, is_trainable=trainable)
        except (RuntimeError, ValueError, UserWarning) as error:
            reason = printable(" ".join(str(error).split())[:200])
            raise ConfigError(f"adapter: {folder} does not fit the base model: {reason}") from None


def _lora_config(peft: Any, lora: LoraSettings) -> Any:
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


@contextmanager
def explained(settings: TrainingSettings) -> Iterator[None]:
    """Say what to do about memory that has run out inside.

    Raises:
        TrainingError: it has; names the knobs.
    """
    torch, _, _ = training_libraries()
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
            text in str(error) for text in ("out of memory", "can't allocate memory")
        )
        if not is_memory:
            raise
        raise TrainingError(
            f"out of memory: halve batch_size (now {settings.batch_size}) and double gradient_accumulation (now "
            f"{settings.gradient_accumulation}), turn on gradient_checkpointing, or lower max_kernel_tokens (now "
            f"{settings.max_kernel_tokens}); the last checkpoint is kept"
        ) from None
