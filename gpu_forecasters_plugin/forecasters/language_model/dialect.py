"""How one endpoint wants to be asked: OpenAI's parameters, less those that it refuses."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from gpu_forecasters_plugin.forecasters.language_model.chat import ChatRequest
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["Dialect"]

logger = logging.getLogger(__name__)

_DISPENSABLE = ("structured_outputs", "guided_choice", "response_format", "seed", "temperature")
"""What a request can do without: the answer is read just as strictly."""
_UNKNOWN = re.compile(
    r"unsupported|not supported|does ?n[o']t support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed"
    r"|extra (?:fields|inputs)|invalid parameter",
    re.IGNORECASE,
)


class Dialect:
    """Turns requests into parameters, and learns from refusals.

    An endpoint that refuses a parameter by name is not sent it again; one that wants ``max_completion_tokens``
    gets that instead of ``max_tokens``. Each lesson is announced once.

    Args:
        settings: which model, and what further parameters go along.
        endpoint: whose dialect it is, for the announcement.
    """

    def __init__(self, settings: LanguageModelSettings, endpoint: str) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._left_out: set[str] = set()
        self._limit = "max_tokens"

    def parameters(self, request: ChatRequest) -> dict[str, Any]:
        """Body of ``POST /chat/completions``."""
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": request.messages,
            self._limit: request.max_tokens,
        }
        if request.n > 1:
            body["n"] = request.n
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.seed is not None:
            body["seed"] = request.seed
        if request.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        if request.schema is not None:
            schema = {"name": "forecast", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.choice:
            body |= self._constraint(request.choice)
        if self._settings.chat_template_kwargs:
            body["chat_template_kwargs"] = self._settings.chat_template_kwargs
        return {key: value for key, value in body.items() if key not in self._left_out} | (
            self._settings.extra_body
        )

    def _constraint(self, choice: tuple[str, ...]) -> dict[str, Any]:
        match self._settings.constraint:
            case "none":
                return {}
            case "guided_choice":
                return {"guided_choice": list(choice)}
            case _:
                return {"structured_outputs": {"choice": list(choice)}}

    def learn(self, refusal: str, sent: Mapping[str, Any]) -> bool:
        """Take note of why a request was refused.

        Args:
            refusal: what the endpoint said.
            sent: the refused parameters.

        Returns:
            Whether the same request, put in new words, is worth another try.
        """
        if not _UNKNOWN.search(refusal):
            return False
        if "max_tokens" in sent and "max_completion_tokens" in refusal:
            self._note("max_tokens", "max_completion_tokens is sent instead", self._limit == "max_tokens")
            self._limit = "max_completion_tokens"
            return True
        named = {name for name in _DISPENSABLE if name in refusal and name in sent}
        named -= self._settings.extra_body.keys()
        for name in sorted(named):
            self._note(name, "it is left out", name not in self._left_out)
        self._left_out |= named
        return bool(named)

    def _note(self, name: str, consequence: str, new: bool) -> None:
        if new:
            logger.warning("%s takes no %s: %s", self._endpoint, name, consequence)
