"""A language model in this process, by transformers: for a CPU, or where there is no vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, ForecastCost, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import (
    ChatReply,
    ChatRequest,
    Choice,
    TokenLogprobs,
)
from gpu_forecasters_plugin.forecasters.language_model.in_process import InProcessForecaster
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

__all__ = ["TransformersLocalForecaster", "tokens_per_batch"]

_TOKENS_PER_BATCH = {"cuda": 2**18, "cpu": 2**13}
"""Prompt and answer tokens, padding included, that go through the model at once; halved when memory runs out."""


def tokens_per_batch(device: str) -> int:
    """How many tokens go through a model at once on a device, at first."""
    return _TOKENS_PER_BATCH.get(device, _TOKENS_PER_BATCH["cpu"])


@dataclass(frozen=True)
class _Output:
    """What the model made of one request: a reply, and the tokens of its prompt."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class _Asked:
    """One request with the tokens of its prompt."""

    place: int
    request: ChatRequest
    ids: list[int]

    @property
    def tokens(self) -> int:
        """What it takes, the longest answer included."""
        return (len(self.ids) + self.request.max_tokens) * self.request.n


class TransformersLocalForecaster(InProcessForecaster):
    """Asks a model that transformers run, on the GPU if there is one.

    The model is loaded when the forecaster is built, so that a wrong name shows before anything runs. Labels are held
    to the eight bins unless ``constraint: none``; a written answer is held to nothing, so the model must have learned
    its form. ``engine`` holds further arguments of ``from_pretrained``. Not for models that think first.

    Args:
        settings: which model and adapter, and how to ask.
        seed: the run's seed.
        writer: of prompts; the one that the settings describe when left out.
        loaded: model and tokenizer that are in memory already, such as one under training.

    Raises:
        ConfigError: the model or its adapter cannot be loaded, or it is to think first.
        MissingExtraError: ``transformers`` or, for an adapter, ``peft`` is not installed.
    """

    def __init__(
        self,
        settings: LanguageModelSettings,
        *,
        seed: int = 0,
        writer: PromptWriter | None = None,
        loaded: tuple[Any, Any] | None = None,
    ) -> None:
        if settings.reasoning:
            raise ConfigError(
                "surrogate.forecaster.reasoning: transformers_local asks models that answer at once; vllm_local and "
                "openai_server let them think first"
            )
        super().__init__("transformers_local", settings, seed=seed, writer=writer)
        self._torch = _imported("torch")
        self._model, self._tokenizer = loaded or _load(settings)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._device = str(self._model.device.type)
        self._ends = _end_ids(self._model, self._tokenizer)
        self._label_ids: dict[str, int] = {}
        self._room = tokens_per_batch(self._device)

    def _gpus(self) -> float:
        return float(self._device == "cuda")

    def _complete(self, requests: Sequence[ChatRequest]) -> list[Any]:
        """In batches of about equally long prompts."""
        outputs: list[Any] = [None] * len(requests)
        asked: list[_Asked] = []
        for place, request in enumerate(requests):
            ids = self._prompt_ids(request)
            problem = self._too_long(len(ids) + request.max_tokens)
            if problem is None:
                asked.append(_Asked(place, request, ids))
            else:
                outputs[place] = problem
        pending = sorted(asked, key=lambda one: len(one.ids), reverse=True)
        training = self._model.training
        self._model.eval()
        with self._torch.inference_mode():
            while pending:
                batch = next(_batches(pending, self._room))
                pending = pending[len(batch) :]
                for one, output in zip(batch, self._batch(batch), strict=True):
                    outputs[one.place] = output
        self._model.train(training)
        return outputs

    def _prompt_ids(self, request: ChatRequest) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in request.messages],
            tokenize=False,
            add_generation_prompt=True,
            **self.settings.chat_template_kwargs,
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _too_long(self, tokens: int) -> ForecastFailure | None:
        limit = getattr(self._model.config, "max_position_embeddings", None)
        if limit is None or tokens <= limit:
            return None
        detail = f"prompt and answer take {tokens} tokens, the model at most {limit}: lower max_kernel_tokens"
        return ForecastFailure(FailureKind.INVALID, detail)

    def _batch(self, batch: Sequence[_Asked]) -> list[_Output | ForecastFailure]:
        """The outputs of some requests; with too little memory for all at once, of one half after the other."""
        try:
            return self._answers(batch)
        except self._torch.OutOfMemoryError:
            # Outside of this clause, since the exception holds what the memory is needed for.
            pass
        if self._device == "cuda":
            self._torch.cuda.empty_cache()
        if len(batch) == 1:
            detail = "out of memory: lower max_kernel_tokens or max_tokens, or give engine a smaller dtype"
            return [ForecastFailure(FailureKind.INVALID, detail)]
        self._room = max(1, sum(one.tokens for one in batch) // 2)
        half = len(batch) // 2
        return self._batch(batch[:half]) + self._batch(batch[half:])

    def _answers(self, batch: Sequence[_Asked]) -> list[_Output | ForecastFailure]:
        ids, mask = self._padded([one.ids for one in batch])
        if batch[0].request.choice:
            logits = self._model(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits[:, -1].float()
            return [self._label(one, row) for one, row in zip(batch, logits, strict=True)]
        return self._written(batch, ids, mask)

    def _padded(self, prompts: Sequence[list[int]]) -> tuple[Any, Any]:
        """Token numbers and attention mask, padded on the left; shape (n, longest) each."""
        longest = max(map(len, prompts))
        pad = self._tokenizer.pad_token_id
        ids = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        tensor = self._torch.tensor
        return tensor(ids, device=self._model.device), tensor(mask, device=self._model.device)

    def _label(self, asked: _Asked, logits: Any) -> _Output:
        """One label for each answer that is wanted, with the alternatives of its place; logits of shape (tokens,)."""
        request, logprobs = asked.request, self._torch.log_softmax(logits, dim=-1)
        if self.settings.constraint == "none":
            values, places = logprobs.topk(min(max(request.top_logprobs, 1), len(logprobs)))
            texts = [self._tokenizer.decode([place]) for place in places.tolist()]
        else:
            texts = list(request.choice)
            values = logprobs[[self._label_id(label) for label in texts]].log_softmax(dim=-1)
        alternatives: dict[str, float] = {}
        for text, value in zip(texts, values.tolist(), strict=True):
            alternatives.setdefault(text, value)
        chosen = [texts[place] for place in self._drawn(values, request)]
        choices = tuple(
            Choice(Answer(text, finish_reason="stop"), (TokenLogprobs(text, alternatives),))
            for text in chosen
        )
        return _Output(choices, len(asked.ids), len(chosen))

    def _drawn(self, logprobs: Any, request: ChatRequest) -> list[int]:
        """Places of the answers: drawn at the request's temperature, or the most probable one."""
        if not request.temperature:
            return [int(logprobs.argmax())] * request.n
        weights = (logprobs / request.temperature).softmax(dim=-1).cpu()
        generator = self._torch.Generator().manual_seed(request.seed or 0)
        drawn: list[int] = self._torch.multinomial(
            weights, request.n, replacement=True, generator=generator
        ).tolist()
        return drawn

    def _label_id(self, label: str) -> int:
        if label not in self._label_ids:
            ids = self._tokenizer(label, add_special_tokens=False)["input_ids"]
            if len(ids) != 1:
                raise ValueError(f"label {label!r} is {len(ids)} tokens of {self.settings.model}, not one")
            self._label_ids[label] = ids[0]
        return self._label_ids[label]

    def _written(self, batch: Sequence[_Asked], ids: Any, mask: Any) -> list[_Output | ForecastFailure]:
        request = batch[0].request
        how: dict[str, Any] = {"do_sample": False}
        if request.temperature:
            how = {"do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0}
            self._torch.manual_seed(request.seed or 0)
        sequences = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=request.max_tokens,
            eos_token_id=self._ends,
            pad_token_id=self._tokenizer.pad_token_id,
            **how,
        )[:, ids.shape[1] :].tolist()
        return [self._text(one, sequence) for one, sequence in zip(batch, sequences, strict=True)]

    def _text(self, asked: _Asked, sequence: list[int]) -> _Output:
        end = next((place for place, token in enumerate(sequence) if token in self._ends), None)
        text = self._tokenizer.decode(sequence[:end], skip_special_tokens=True)
        answer = Answer(text, finish_reason="length" if end is None else "stop")
        return _Output((Choice(answer),), len(asked.ids), len(sequence) if end is None else end + 1)

    def _reply(self, output: Any) -> ChatReply:
        cost = ForecastCost(prompt_tokens=output.prompt_tokens, completion_tokens=output.completion_tokens)
        return ChatReply(output.choices, cost)


def _batches(pending: Sequence[_Asked], room: int) -> Iterator[list[_Asked]]:
    """Runs of requests that take ``room`` tokens at most when padded to the longest, which comes first."""
    start = 0
    while start < len(pending):
        count = max(1, room // pending[start].tokens)
        yield list(pending[start : start + count])
        start += count


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(name, "train") from None


def _load(settings: LanguageModelSettings) -> tuple[Any, Any]:
    """Model and tokenizer; weights keep their own type on a GPU, and are float32 on a CPU, which is faster there."""
    torch, transformers = _imported("torch"), _imported("transformers")
    cuda = torch.cuda.is_available()
    arguments: dict[str, Any] = {"dtype": "auto" if cuda else "float32"} | settings.engine
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(settings.model, **arguments)
        if settings.lora is not None:
            model = _imported("peft").PeftModel.from_pretrained(model, settings.lora).merge_and_unload()
    except (OSError, ValueError, RuntimeError) as error:
        reason = printable(" ".join(str(error).split())[:300])
        raise ConfigError(f"surrogate.forecaster: {settings.model} cannot be loaded: {reason}") from None
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"surrogate.forecaster.model: {settings.model} has no chat template: take one that has"
        )
    if cuda and "device_map" not in settings.engine:
        model = model.to("cuda")
    return model.eval(), tokenizer


def _end_ids(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer, as the model and its tokenizer name them."""
    named = model.generation_config.eos_token_id
    ids = named if isinstance(named, list) else [named]
    return sorted({token for token in (*ids, tokenizer.eos_token_id) if token is not None})
