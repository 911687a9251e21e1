"""A language model behind an OpenAI-compatible endpoint: a vLLM server, or a hosted one."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.contained import Containment
from gpu_forecasters_plugin.forecasters.language_model.adapter_card import warn_of_adapter
from gpu_forecasters_plugin.forecasters.language_model.chat import Choice
from gpu_forecasters_plugin.forecasters.language_model.client import Connections
from gpu_forecasters_plugin.forecasters.language_model.endpoints import Endpoints
from gpu_forecasters_plugin.forecasters.language_model.event_loop import loop_thread
from gpu_forecasters_plugin.forecasters.language_model.prompting import Prompt, PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.readouts import readout
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["OpenAIServerForecaster", "request_seed"]

_GRACE_S = 2.0
"""What the loop may take beyond its forecasts' deadline before its caller goes on without it."""
_CLOSED = "given up: the run ends"
_LOST = "one kernel"


def request_seed(seed: int, query: Query) -> int:
    """Seed of one candidate's sampling: the same in every pool and in every order."""
    return int(keyed_uniform(seed, "language model", query.candidate_key) * 2**31)


class OpenAIServerForecaster(Forecaster):
    """Asks a chat model about all candidates of a pool at once.

    Every forecast has one deadline, from the question to the answer, that includes its turn in the limit of
    concurrent requests, retries and what an endpoint asks to wait. Whatever an endpoint does makes typed failures,
    and so does an error of our own, of its own query alone. It may be used after a fork: each process has an event
    loop and connections of its own.

    Args:
        settings: which endpoints and model, and how to ask.
        seed: the run's seed.
        writer: of prompts; the one that the settings describe when left out.

    Raises:
        MissingExtraError: ``openai`` is not installed.
        ConfigError: the API key, the environment's certificates or proxies, or a base URL cannot be used.
    """

    waits = True

    def __init__(
        self,
        settings: LanguageModelSettings,
        *,
        seed: int = 0,
        writer: PromptWriter | None = None,
    ) -> None:
        Connections(settings)  # what cannot be used shows before anything runs
        self.settings = settings
        self._seed = seed
        self._readout = readout(settings)
        self._writer = writer or PromptWriter.from_settings(settings)
        self.name = f"openai_server:{settings.model}"
        self.model = settings.model or ""
        self.prompt_hash = settings.asking_hash(self._writer.hash)
        warn_of_adapter(settings, self._writer.hash)
        self._containment = Containment(self.name)
        self._connection: tuple[int, _Connection] | None = None
        self._closed = False

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """Ask about all of them concurrently."""
        if not queries:
            return []
        # A source that trips the writer is no reason to lose its pool.
        prompts = [self._containment.attempt(partial(self._writer.write, query), _LOST) for query in queries]
        limit = self.settings.deadline_s + _GRACE_S
        try:
            return loop_thread().run(self._pool(queries, prompts), limit)
        except TimeoutError:
            failure = ForecastFailure(FailureKind.TIMEOUT, "the event loop is stuck", self.name)
            return [replace(failure, suspicions=prompt.suspicions) for prompt in prompts]

    def close(self) -> None:
        """Give up forecasts under way, within two seconds, and close the connections."""
        self._closed = True
        with suppress(TimeoutError):  # the loop is stuck, and so is whoever waits for its forecasts
            loop_thread().run(self._close(), _GRACE_S)

    async def _close(self) -> None:
        # In the loop, where no forecast can be between looking whether this is closed and being under way.
        connection, self._connection = self._connection, None
        if connection is not None and connection[0] == os.getpid():
            await connection[1].close()

    def _connected(self) -> _Connection:
        process = os.getpid()
        if self._connection is None or self._connection[0] != process:
            connection = _Connection(self.settings)
            weakref.finalize(self, _close_in_loop, connection, process).atexit = False
            self._connection = process, connection
        return self._connection[1]

    async def _pool(
        self, queries: Sequence[Query], prompts: Sequence[Prompt | ForecastFailure]
    ) -> list[ForecastOutcome]:
        if self._closed:
            failure = ForecastFailure(FailureKind.TIMEOUT, _CLOSED, self.name)
            return [replace(failure, suspicions=prompt.suspicions) for prompt in prompts]
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
        self, connection: _Connection, query: Query, prompt: Prompt | ForecastFailure, deadline: float
    ) -> ForecastOutcome:
        if isinstance(prompt, ForecastFailure):
            return replace(prompt, source=self.name)
        clock = asyncio.get_running_loop().time
        started = clock()
        spent: list[ForecastCost] = []
        outcome: ForecastOutcome
        try:
            async with connection.until(deadline):
                outcome = await self._ask(connection, query, prompt, deadline, spent)
        except TimeoutError:
            detail = f"no answer within {self.settings.deadline_s:g} s, waiting for a turn included"
            outcome = ForecastFailure(FailureKind.TIMEOUT, _CLOSED if self._closed else detail)
        except Exception as error:  # of our own, or of a package below that no list of errors knows
            outcome = self._containment.failure(error, _LOST)
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
        self._limits: set[asyncio.Timeout] = set()
        self._closed = False
        self._under_way = 0
        self._busy = 0.0
        self._since = 0.0

    @asynccontextmanager
    async def until(self, deadline: float) -> AsyncIterator[None]:
        """What runs inside ends at the deadline, or when this is closed, with ``TimeoutError``."""
        async with asyncio.timeout_at(deadline) as limit:
            if self._closed:
                raise TimeoutError
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def close(self) -> None:
        """End what is under way, then close the connections."""
        self._closed = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self.loop.time())
        while self._limits:
            await asyncio.sleep(0.01)
        await self.endpoints.close()

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
        asyncio.run_coroutine_threadsafe(connection.close(), connection.loop)
