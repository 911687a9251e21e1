"""Settings of the forecasters that are language models, as they stand under ``forecaster:``."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gpu_forecasters_plugin.forecasters.language_model.trimming import MIN_KERNEL_TOKENS
from gpu_forecasters_plugin.section import Fraction, Section
from gpu_forecasters_plugin.validation import SECRET_WORDS

__all__ = ["JsonArguments", "LanguageModelSettings", "json_compatible", "without_secrets"]

_SECRET = re.compile(
    rf"(?:(?:^|[_-])(?:token|key)|api_?keys?|access_?tokens?|{SECRET_WORDS})$", re.IGNORECASE
)
_OUR_OWN = {"model", "messages", "stream", "n", "logprobs", "top_logprobs", "max_tokens"}
"""Parameters of a request that a readout needs as it sets them."""
_DEFAULT_PLAIN_TOKENS = {"verbalized": 1024, "logprobs": 1, "samples": 8}
_DEFAULT_REASONING_TOKENS = 8192


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _base_url(text: str) -> str:
    """A base URL without a trailing slash.

    Raises:
        ValueError: it is none, or holds what belongs into an environment variable.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # a port that is no number, brackets that do not close, a host with an empty part
        usable = False
    if not usable or any(character.isspace() for character in text):
        raise ValueError("must be a URL such as http://localhost:8000/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must hold no user, password or query: a key comes from the environment variable api_key_env"
        )
    return text.rstrip("/")


def without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """The mapping, which is written into the ledger and must hold nothing secret.

    Raises:
        ValueError: a key of it, at any depth, is called like one that does.
    """
    pending: list[Any] = [values]
    for value in pending:
        if isinstance(value, dict):
            named = next((key for key in value if _SECRET.search(str(key))), None)
            if named is not None:
                raise ValueError(
                    f"must hold no secret, and {named!r} is called like one: leave it to the environment"
                )
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return values


def json_compatible(values: dict[str, Any]) -> dict[str, Any]:
    """The mapping, which travels as JSON."""
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be what JSON can hold ({error}): put dates in quotes") from None
    return values


def _not_ours(values: dict[str, Any]) -> dict[str, Any]:
    """The mapping, unless it would change what is asked for rather than how."""
    named = sorted(_OUR_OWN & values.keys())
    if named:
        raise ValueError(f"must not hold {named[0]!r}: the forecaster sets it by its own settings")
    return values


BaseUrl = Annotated[str, AfterValidator(_base_url)]
Arguments = Annotated[dict[str, Any], AfterValidator(without_secrets)]
JsonArguments = Annotated[Arguments, AfterValidator(json_compatible)]
Model = Annotated[str, Field(min_length=1, max_length=400)]


class LanguageModelSettings(Section):
    """How a language model is asked.

    Attributes:
        base_url: ``openai_server``: the endpoint, up to and including ``/v1``; a list spreads the load.
        model: its name, as the endpoint calls it; for ``vllm_local`` a folder or a name on Hugging Face.
        readout: where the probabilities come from: ``logprobs`` (the model's own, of one token), ``verbalized``
            (eight numbers that it writes), ``samples`` (how often it answers which bin).
        reasoning: the model thinks before it answers. A vLLM server needs its ``--reasoning-parser`` then.
        samples: answers per forecast of the ``samples`` readout.
        temperature: sampling temperature; ``None``: 1 for samples, else 0; for reasoning models the server's own.
        max_tokens: longest answer, thought included; ``None``: 1 (``logprobs``), 8 (``samples``) or 1024
            (``verbalized``) without a thought, 8192 with one.
        deadline_s: longest time from the question to the forecast, in seconds, whatever it waits for meanwhile.
            With several endpoints the first asked has half of it. ``vllm_local`` answers a pool in one piece and
            has none.
        concurrency: requests in flight at once, over all endpoints.
        min_label_mass: ``logprobs``: a forecast whose eight bins together have less of the model's probability
            is a failure. A server that holds the answer to the bins hides what they had without: ``constraint:
            none`` shows it.
        max_kernel_tokens: estimated tokens that one kernel may take in the prompt; the middle of a longer one is
            left out, visibly.
        static_profile: where candidates are screened, a table of what the compiler made of baseline and candidate
            stands beside the candidate; for ``learned``: it is among its features.
        constraint: how the answer is held to the eight bins: vLLM's ``structured_outputs``, ``guided_choice``
            (vLLM before 0.11), ``none``; ``auto`` is ``structured_outputs`` for as long as the endpoint takes it.
        api_key_env: environment variable that holds the API key; unset means an endpoint without one.
        chat_template_kwargs: what the model's chat template takes, such as ``{enable_thinking: false}``.
        extra_body: ``openai_server``: further parameters of a request, such as ``{reasoning_effort: low}``.
        server_gpus: GPUs behind all endpoints together; their seconds are written into the ledger when it is set.
        lora: folder of a LoRA adapter, relative to the configuration's folder, or in this process its name on a hub.
            ``openai_server``: the one that the endpoint serves as ``model``, if its folder can be read from here; it is
            not loaded, but what it was trained with is compared with how it is asked.
        engine: in this process: further arguments of ``vllm.LLM`` or of transformers' ``from_pretrained``, by their
            own names.
    """

    base_url: Annotated[list[BaseUrl], BeforeValidator(_as_list)] = Field(default_factory=list)
    model: Model | None = None
    readout: Literal["logprobs", "verbalized", "samples"] = "logprobs"
    reasoning: bool = False
    samples: Annotated[int, Field(ge=2, le=128)] = 8
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**20)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 32
    min_label_mass: Fraction = 0.5
    max_kernel_tokens: Annotated[int, Field(ge=MIN_KERNEL_TOKENS)] = 8000
    static_profile: bool = True
    constraint: Literal["auto", "structured_outputs", "guided_choice", "none"] = "auto"
    api_key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    chat_template_kwargs: JsonArguments = Field(default_factory=dict)
    extra_body: Annotated[JsonArguments, AfterValidator(_not_ours)] = Field(default_factory=dict)
    server_gpus: Annotated[float, Field(gt=0)] | None = None
    lora: Annotated[str, Field(min_length=1)] | None = None
    engine: Arguments = Field(default_factory=dict)

    def asking_hash(self, prompts: str) -> str:
        """Identity of prompts and of all settings that change a model's answer to them, 32 hexadecimal digits.

        Args:
            prompts: identity of how a question becomes a prompt.
        """
        names = (
            "readout reasoning samples temperature max_tokens min_label_mass constraint chat_template_kwargs "
            "extra_body lora"
        ).split()
        document = json.dumps([prompts, self.model_dump(mode="json", include=set(names))], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:32]

    @property
    def answer_tokens(self) -> int:
        """Longest answer in tokens."""
        if self.max_tokens is not None:
            return self.max_tokens
        return _DEFAULT_REASONING_TOKENS if self.reasoning else _DEFAULT_PLAIN_TOKENS[self.readout]

    @property
    def largest_body(self) -> int:
        """Most bytes of one answer, unpacked: 4 MiB, and 2 KiB for every token that it may hold, at most 64 MiB.

        A token with its twenty most probable alternatives takes 1.5 KB, a long list of models 1 MB.
        """
        return min(64 * 2**20, 4 * 2**20 + 2 * 2**10 * self.answer_tokens)

    @property
    def answer_temperature(self) -> float | None:
        """Sampling temperature; ``None`` leaves it to the server, whose model card knows best how it thinks."""
        if self.temperature is not None or self.reasoning:
            return self.temperature
        return 1.0 if self.readout == "samples" else 0.0
