"""One question to a chat model and what it answered, whoever runs the model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.forecast import FailureKind, ForecastCost, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer

__all__ = ["LAST_TOKENS", "ChatReply", "ChatRequest", "Choice", "TokenLogprobs", "read_completion"]

LAST_TOKENS = 64
"""The answer's label stands among its last tokens; a thought before it may have thousands."""
_MOST_CHOICES = 128
"""As many as the ``samples`` readout can ask for."""
_MOST_ALTERNATIVES = 100
_LONGEST_MODEL = 400


@dataclass(frozen=True)
class ChatRequest:
    """What a model is asked.

    Attributes:
        messages: OpenAI chat messages.
        max_tokens: longest answer, thought included.
        n: how many answers.
        temperature: sampling temperature; ``None`` leaves it to whoever runs the model.
        seed: seed of the sampling.
        schema: JSON schema that the answer follows.
        choice: texts of which the answer is one.
        top_logprobs: how many alternatives of each token come back with their log-probabilities.
    """

    messages: Sequence[Mapping[str, Any]]
    max_tokens: int
    n: int = 1
    temperature: float | None = None
    seed: int | None = None
    schema: Mapping[str, Any] | None = None
    choice: tuple[str, ...] = ()
    top_logprobs: int = 0


@dataclass(frozen=True)
class TokenLogprobs:
    """One token of an answer, and what might have stood in its place: log-probability by text."""

    token: str
    alternatives: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """One answer; ``tokens`` are its last ones, as far as log-probabilities came with them."""

    answer: Answer
    tokens: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class ChatReply:
    """All answers to one request, what they cost, and which model the endpoint says they come from, if it does."""

    choices: tuple[Choice, ...]
    cost: ForecastCost = ForecastCost()
    model: str = ""


def read_completion(document: object) -> ChatReply | ForecastFailure:
    """The answers in the body of a chat completion; a body that is none is a failure.

    Nothing in it is taken for granted: servers differ, and a proxy may have answered in a server's stead.
    """
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(choices, list):
        error = _mapping(document).get("error")
        said = f": {_mapping(error).get('message') or error}" if error else ""
        return ForecastFailure(FailureKind.INVALID, f"the answer is not a chat completion{said}")
    if not choices:
        return ForecastFailure(FailureKind.EMPTY, "the answer has no choices", cost=_cost(document))
    model = (_text(document.get("model")) or "")[:_LONGEST_MODEL]
    read = tuple(_choice(_mapping(choice)) for choice in choices[:_MOST_CHOICES])
    return ChatReply(read, _cost(document), model)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _choice(choice: Mapping[str, Any]) -> Choice:
    message = _mapping(choice.get("message"))
    calls = message.get("tool_calls")
    call = _mapping(calls[0]) if isinstance(calls, list) and calls else {}
    answer = Answer(
        content=_text(message.get("content")),
        tool_arguments=_text(_mapping(call.get("function")).get("arguments")),
        # Two names for one thing: vLLM's and OpenRouter's, and the one of DeepSeek and older vLLM.
        reasoning=_text(message.get("reasoning")) or _text(message.get("reasoning_content")),
        finish_reason=_text(choice.get("finish_reason")),
        refusal=_text(message.get("refusal")),
    )
    tokens = _mapping(choice.get("logprobs")).get("content")
    last = tokens[-LAST_TOKENS:] if isinstance(tokens, list) else []
    return Choice(answer, tuple(_token(_mapping(token)) for token in last))


def _token(token: Mapping[str, Any]) -> TokenLogprobs:
    top = token.get("top_logprobs")
    entries = [
        token,
        *(_mapping(entry) for entry in (top[:_MOST_ALTERNATIVES] if isinstance(top, list) else [])),
    ]
    alternatives = {
        entry["token"]: float(entry["logprob"])
        for entry in entries
        if isinstance(entry.get("token"), str) and _is_number(entry.get("logprob"))
    }
    return TokenLogprobs(_text(token.get("token")) or "", alternatives)


def _is_number(value: object) -> bool:
    """Whether it is a finite number; JSON has integers that no float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _cost(document: Mapping[str, Any]) -> ForecastCost:
    usage = _mapping(document.get("usage"))
    prompt = _mapping(usage.get("prompt_tokens_details"))
    completion = _mapping(usage.get("completion_tokens_details"))
    return ForecastCost(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(prompt.get("cached_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0
