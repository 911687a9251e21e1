"""One endpoint of a language-model forecaster, asked outside any run, through the forecaster's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, TypeVar

from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatReply, ChatRequest
from gpu_forecasters_plugin.forecasters.language_model.endpoints import Endpoints
from gpu_forecasters_plugin.forecasters.language_model.event_loop import loop_thread
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.look import ADVICE

__all__ = ["EndpointProbe", "ListedModels", "failed"]

T = TypeVar("T")

_GRACE_S = 2.0
_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""What vLLM, OpenRouter, Groq and Mistral call the length of a model's context."""

_MOST_MODELS, _LONGEST_NAME = 2000, 400
"""Of what an endpoint lists, no more is read; a model's name in the settings is no longer either."""

ListedModels = dict[str, int | None]
"""Names of the models that an endpoint lists, with the length of their context where it says so."""


class EndpointProbe:
    """Asks one endpoint; synchronous, for one thread.

    Args:
        settings: the forecaster's settings.
        url: which of its endpoints.
        deadline_s: how long one question may take, in seconds.
    """

    def __init__(self, settings: LanguageModelSettings, url: str, deadline_s: float) -> None:
        self.settings = settings.model_copy(update={"base_url": [url]})
        self.url = url
        self._deadline_s = deadline_s
        self._endpoints: Endpoints | None = None

    def ask(self, request: ChatRequest) -> ChatReply | ForecastFailure:
        """The reply to one request, retried as a forecast's would be."""
        return self._run(self._ask(request))

    def ask_text(self, text: str, max_tokens: int, **form: Any) -> ChatReply | ForecastFailure:
        """The reply to a text.

        Args:
            text: what is asked.
            max_tokens: longest answer.
            form: what else a :class:`ChatRequest` holds.
        """
        # A thinking model's server knows best at which temperature it thinks.
        temperature = None if self.settings.reasoning else 0.0
        messages = [{"role": "user", "content": text}]
        return self.ask(ChatRequest(messages, max_tokens, temperature=temperature, **form))

    @cached_property
    def first_reply(self) -> ChatReply | ForecastFailure:
        """What it answers to an easy question, in a few tokens."""
        return self.ask_text("Is 91 a prime number? Answer yes or no.", 64)

    @cached_property
    def models(self) -> ListedModels | ForecastFailure:
        """The models that it lists; none where the list is not one."""
        listed = self._run(self._list())
        if isinstance(listed, ForecastFailure):
            return listed
        rows = listed.get("data") if isinstance(listed, dict) else None
        return {
            row["id"]: _context(row)
            for row in (rows[:_MOST_MODELS] if isinstance(rows, list) else [])
            if isinstance(row, dict) and _is_name(row.get("id"))
        }

    def close(self) -> None:
        """Close its connections."""
        if self._endpoints is not None:
            self._run(self._endpoints.close())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return loop_thread().run(coroutine, self._deadline_s + _GRACE_S)

    async def _ask(self, request: ChatRequest) -> ChatReply | ForecastFailure:
        return await self._connected().complete(request, self._deadline())

    async def _list(self) -> object | ForecastFailure:
        return await self._connected().models(self._deadline())

    def _connected(self) -> Endpoints:
        if self._endpoints is None:
            self._endpoints = Endpoints(self.settings)
        return self._endpoints

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME


def _context(row: dict[str, Any]) -> int | None:
    """The first length that is one: true is no number, and no model has a context of 2^31 tokens."""
    found = (row.get(key) for key in _CONTEXT_KEYS)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**31), None)


def failed(name: str, failure: ForecastFailure, status: Status = Status.FAIL) -> CheckResult:
    """The result of a check that got no answer."""
    hung = failure.kind is FailureKind.TIMEOUT
    return CheckResult(name, status, f"{failure.kind}: {failure.detail}", ADVICE[failure.kind], hung=hung)
