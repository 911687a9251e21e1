"""A language model behind an OpenAI-compatible endpoint: a vLLM server, or a hosted one."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.language_model.chat import Choice
from gpu_forecasters_plugin.forecasters.language_model.endpoints import Endpoints, api_key, import_openai
from gpu_forecasters_plugin.forecasters.language_model.event_loop import loop_thread
from gpu_forecasters_plugin.forecasters.language_model.prompting import Prompt, PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.readouts import readout
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["OpenAIServerForecaster", "request_seed"]

_GRACE_S = 2.0
"""What the loop may take beyond its forecasts' deadline before its caller goes on without it."""


def request_seed(seed: int, query: Query) -> int:
    """Seed of one candidate's sampling: the same in every pool and in every order."""
    return int(keyed_uniform(seed, "language model", query.candidate_key) * 2**31)


class OpenAIServerForecaster(Forecaster):
    """Asks a chat model about all candidates of a pool at once.

    Every forecast has one deadline, from the question to the answer, that includes its turn in the limit of
    concurrent requests, retries and what an endpoint asks to wait. Whatever an endpoint does makes typed failures.
    It may be used after a fork: each process has an event loop and connections of its own.

    Args:
        settings: which endpoints and model, and how to ask.
        seed: the run's seed.
        writer: of prompts; the one that the settings describe when left out.

    Raises:
        MissingExtraError: ``openai`` or ``jinja2`` is not installed.
        ConfigError: the API key cannot be sent.
    """

    def __init__(
        self, settings: LanguageModelSettings, *, seed: int = 0, writer: PromptWriter | None = None
    ) -> None:
        import_openai()
        api_key(settings.api_key_env)  # one that cannot be sent shows before anything runs
        self.settings = settings
        self._seed = seed
        self._readout = readout(settings)
        self._writer = writer or PromptWriter.from_settings(settings)
        self.name = f"openai_server:{settings.model}"
        self.model = settings.model or ""
        self.prompt_hash = settings.asking_hash(self._writer.hash)
        self._connection: tuple[int, _Connection] | None = None

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """Ask about all of them concurrently."""
        if not queries:
            return []
        prompts = [self._writer.write(query) for query in queries]
        limit = self.settings.deadline_s + _GRACE_S
        try:
            return loop_thread().run(self._pool(queries, prompts), limit)
        except TimeoutError:
            failure = ForecastFailure(FailureKind.TIMEOUT, "the event loop is stuck", self.name)
            return [replace(failure, suspicions=prompt.suspicions) for prompt in prompts]

    def close(self) -> None:
        """Close the connections; the next forecast opens new ones."""
        if self._connection is not None and self._connection[0] == os.getpid():
            loop_thread().run(self._connection[1].endpoints.close(), _GRACE_S)
        self._connection = None

    def _connected(self) -> _Connection:
        process = os.getpid()
        if self._connection is None or self._connection[0] != process:
            connection = _Connection(self.settings)
            weakref.finalize(self, _close_in_loop, connection, process).atexit = False
            self._connection = process, connection
        return self._connection[1]

    async def _pool(self, queries: Sequence[Query], prompts: Sequence[Prompt]) -> list[ForecastOutcome]:
        connection = self._connected()
        deadline = asyncio.get_running_loop().time() + self.settings.deadline_s
        busy_before = connection.busy_seconds()
        asked = (
            self._forecast(connection, query, prompt, deadline)
            for query, prompt in zip(queries, prompts, strict=True)
        )
        outcomes = await asyncio.gather(*asked)
        if self.settings.server_gpus is None:
            return outcomes
        # The server works for the whole pool at once: each of its forecasts pays an equal share.
        busy = connection.busy_seconds() - busy_before
        share = ForecastCost(gpu_seconds=busy * self.settings.server_gpus / len(outcomes))
        return [replace(outcome, cost=outcome.cost + share) for outcome in outcomes]

    async def _forecast(
        self, connection: _Connection, query: Query, prompt: Prompt, deadline: float
    ) -> ForecastOutcome:
        clock = asyncio.get_running_loop().time
        started = clock()
        spent: list[ForecastCost] = []
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await self._ask(connection, query, prompt, deadline, spent)
        except TimeoutError:
            detail = f"no answer within {self.settings.deadline_s:g} s, waiting for a turn included"
            outcome = ForecastFailure(FailureKind.TIMEOUT, detail)
        cost = sum(spent, ForecastCost(seconds=clock() - started))
        return replace(outcome, source=self.name, cost=cost, suspicions=prompt.suspicions)

    async def _ask(
        self,
        connection: _Connection,
        query: Query,
        prompt: Prompt,
        deadline: float,
        spent: list[ForecastCost],
    ) -> ForecastOutcome:
        """Ask until all answers that the readout wants are there; what each request cost goes to ``spent``."""
        choices: list[Choice] = []
        seed = request_seed(self._seed, query)
        while len(choices) < self._readout.wanted:
            request = self._readout.request(prompt.messages, seed, len(choices))
            async with connection.turns:
                with connection:
                    reply = await connection.endpoints.complete(request, deadline)
            spent.append(reply.cost)
            if isinstance(reply, ForecastFailure):
                return reply
            choices += reply.choices
        return self._readout.read(choices)


class _Connection:
    """What belongs to one process's event loop: endpoints, turns, and a clock of when requests were under way."""

    def __init__(self, settings: LanguageModelSettings) -> None:
        self.endpoints = Endpoints(settings)
        self.turns = asyncio.Semaphore(settings.concurrency)
        self.loop = asyncio.get_running_loop()
        self._under_way = 0
        self._busy = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        if self._under_way == 0:
            self._since = self.loop.time()
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._busy += self.loop.time() - self._since

    def busy_seconds(self) -> float:
        """Seconds so far in which at least one request was under way."""
        return self._busy + (self.loop.time() - self._since if self._under_way else 0.0)


def _close_in_loop(connection: _Connection, process: int) -> None:
    """Close what a forgotten forecaster has left open."""
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(connection.endpoints.close(), connection.loop)
