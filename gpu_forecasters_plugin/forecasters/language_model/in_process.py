"""A language model in this process, whatever runs it: the prompts and readouts of a server, without one."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_forecasters_plugin.forecast import (
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.contained import Containment
from gpu_forecasters_plugin.forecasters.language_model.adapter_card import warn_of_adapter
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatReply, ChatRequest
from gpu_forecasters_plugin.forecasters.language_model.prompting import Prompt, PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.readouts import readout
from gpu_forecasters_plugin.forecasters.language_model.server import request_seed
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["InProcessForecaster"]

_LOST = "one kernel"


class InProcessForecaster(Forecaster):
    """Asks a model that runs in this process; a pool is one batch.

    A batch cannot be interrupted: there is no deadline. An error of our own costs the forecast of its own query
    alone.

    Args:
        kind: of ``forecaster:``; with the model, the forecaster's name.
        settings: which model and adapter, and how to ask.
        seed: the run's seed.
        writer: of prompts; the one that the settings describe when left out.
    """

    def __init__(
        self, kind: str, settings: LanguageModelSettings, *, seed: int, writer: PromptWriter | None
    ) -> None:
        self.settings = settings
        self._seed = seed
        self._readout = readout(settings)
        self._writer = writer or PromptWriter.from_settings(settings)
        self.name = f"{kind}:{settings.model}"
        self._containment = Containment(self.name)
        self.model = "+".join(part for part in (settings.model, settings.lora) if part)
        self.prompt_hash = settings.asking_hash(self._writer.hash)
        warn_of_adapter(settings, self._writer.hash)

    @abstractmethod
    def _complete(self, requests: Sequence[ChatRequest]) -> list[Any]:
        """What the model made of each request, in order; one that cannot be answered is a failure, and fails alone."""

    @abstractmethod
    def _reply(self, output: Any) -> ChatReply:
        """One such output, which is no failure, as a chat's reply."""

    @abstractmethod
    def _gpus(self) -> float:
        """How many GPUs are held while the model works."""

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """Ask about all of them in one batch."""
        if not queries:
            return []
        started = time.perf_counter()
        prompts = [self._containment.attempt(partial(self._writer.write, query), _LOST) for query in queries]
        asked = [number for number, prompt in enumerate(prompts) if isinstance(prompt, Prompt)]
        requests = [
            self._readout.request(prompt.messages, request_seed(self._seed, query))
            for query, prompt in zip(queries, prompts, strict=True)
            if isinstance(prompt, Prompt)
        ]
        outputs = dict(zip(asked, self._complete(requests), strict=True))
        seconds = (time.perf_counter() - started) / len(queries)
        own = ForecastCost(seconds=seconds, gpu_seconds=seconds * self._gpus())
        outcomes: list[ForecastOutcome] = [
            prompt if isinstance(prompt, ForecastFailure) else self._outcome(outputs[number])
            for number, prompt in enumerate(prompts)
        ]
        return [
            replace(outcome, source=self.name, cost=own + outcome.cost, suspicions=prompt.suspicions)
            for outcome, prompt in zip(outcomes, prompts, strict=True)
        ]

    def _outcome(self, output: Any) -> ForecastOutcome:
        """What is read from the model's output for one query."""
        reply = (
            output
            if isinstance(output, ForecastFailure)
            else self._containment.attempt(partial(self._reply, output), _LOST)
        )
        if isinstance(reply, ForecastFailure):
            return reply
        outcome = self._containment.attempt(partial(self._readout.read, reply.choices), _LOST)
        return replace(outcome, cost=reply.cost)
