"""The endpoints of one model: whom to ask, when to ask again, and what it means when nobody answers.

The only layer of retries. An endpoint that fails rests: as long as its ``Retry-After`` says, or for a while that
doubles with each failure in a row. After several it counts as down: requests go elsewhere, and where there is
no other they fail at once, until the rest is over and one round of requests finds out how it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatReply, ChatRequest, read_completion
from gpu_forecasters_plugin.forecasters.language_model.client import ApiClient, Connections
from gpu_forecasters_plugin.forecasters.language_model.dialect import Dialect
from gpu_forecasters_plugin.forecasters.language_model.model_names import same_model
from gpu_forecasters_plugin.forecasters.language_model.retrying import Failed
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

__all__ = ["Endpoint", "Endpoints"]

logger = logging.getLogger(__name__)

_FIRST_REST_S, _LONGEST_REST_S = 0.5, 30.0
_LONGEST_ASKED_REST_S = 300.0
_DOWN_AFTER = 4
_MOST_ATTEMPTS = 6
_LONGEST_MARGIN_S = 0.25
"""An attempt ends a tenth of its time, or this much, before its forecast does: the silence is the endpoint's."""


@dataclass
class Endpoint:
    """One base URL and how it has been doing; times are those of the event loop."""

    client: ApiClient
    dialect: Dialect
    in_flight: int = 0
    ready_at: float = 0.0
    failures: int = 0
    failed_at: float = 0.0
    failure: ForecastFailure = field(default=ForecastFailure(FailureKind.UNREACHABLE))
    another_model: bool = False

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.client.url

    @property
    def down(self) -> bool:
        """Whether it has failed so often in a row that it is not waited for."""
        return self.failures >= _DOWN_AFTER

    def succeeded(self) -> None:
        """It answered."""
        if self.failures:
            self.failures, self.ready_at = 0, 0.0

    def failed(self, failed: Failed, started: float, now: float) -> None:
        """It did not, asked at ``started``; what was under way before its last failure counts with that one."""
        if started < self.failed_at:
            return
        self.failed_at, self.failure = now, failed.failure
        if failed.wait_s is None:
            self.failures += 1
            rest = min(_LONGEST_REST_S, _FIRST_REST_S * 2 ** (self.failures - 1))
        else:
            rest = min(_LONGEST_ASKED_REST_S, max(failed.wait_s, _FIRST_REST_S))
        self.ready_at = now + rest


class Endpoints:
    """All endpoints of one forecaster, with one connection pool; belongs to one event loop.

    Args:
        settings: the forecaster's settings.

    Raises:
        MissingExtraError: ``openai`` is not installed.
        ConfigError: the API key, the environment's certificates or proxies, or a base URL cannot be used.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        self._connections = Connections(settings)
        self._model = settings.model or ""
        self._endpoints = [
            Endpoint(client, Dialect(settings, client.url)) for client in self._connections.clients
        ]

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def complete(self, request: ChatRequest, deadline: float) -> ChatReply | ForecastFailure:
        """The reply to a request, from whichever endpoint gives one.

        Args:
            request: what is asked.
            deadline: when to give up at the latest, in the loop's time.
        """
        clock = asyncio.get_running_loop().time
        tried: ForecastFailure | None = None
        attempts = 0
        while True:
            endpoint = self._best(clock())
            rest = endpoint.ready_at - clock()
            if rest > 0:
                if endpoint.down or clock() + rest >= deadline:
                    return tried or endpoint.failure
                await asyncio.sleep(rest)
                continue
            result = await self._attempt(endpoint, request, self._limit(endpoint, deadline, clock()))
            if not isinstance(result, Failed):
                return result
            attempts += 1
            if not result.again or attempts == _MOST_ATTEMPTS:
                return result.failure
            tried = result.failure

    def _best(self, now: float) -> Endpoint:
        """The one that is ready first, of these the one with the least to do."""
        return min(self._endpoints, key=lambda e: (max(e.ready_at, now), e.in_flight))

    def _limit(self, endpoint: Endpoint, deadline: float, now: float) -> float:
        """When an attempt ends: half-way to the deadline while another endpoint could answer from then on."""
        half_way = (now + deadline) / 2
        others = any(
            e is not endpoint and e.ready_at <= (now if e.down else half_way) for e in self._endpoints
        )
        return half_way if others else deadline - min(_LONGEST_MARGIN_S, (deadline - now) / 10)

    async def _attempt(
        self, endpoint: Endpoint, request: ChatRequest, limit: float
    ) -> ChatReply | ForecastFailure | Failed:
        clock = asyncio.get_running_loop().time
        started = clock()
        endpoint.in_flight += 1
        try:
            result = await self._ask(endpoint, request, limit)
        finally:
            endpoint.in_flight -= 1
        was_down = endpoint.down
        if not isinstance(result, Failed):
            endpoint.succeeded()
        elif result.again:
            endpoint.failed(result, started, clock())
        if endpoint.down != was_down:
            self._announce(endpoint)
        return result

    async def _ask(
        self, endpoint: Endpoint, request: ChatRequest, limit: float
    ) -> ChatReply | ForecastFailure | Failed:
        while True:
            sent = endpoint.dialect.parameters(request)
            answer = await endpoint.client.post("/chat/completions", sent, limit)
            if isinstance(answer, Failed):
                if answer.refused_parameters and endpoint.dialect.learn(answer.failure.detail, sent):
                    continue
                return answer
            reply = read_completion(answer)
            if isinstance(reply, ForecastFailure):
                return replace(reply, detail=endpoint.client.detail(reply.detail))
            self._note_model(endpoint, reply.model)
            return reply

    async def models(self, deadline: float) -> object | ForecastFailure:
        """What the first endpoint lists as its models, asked for once.

        Args:
            deadline: when to give up, in the loop's time.
        """
        answer = await self._endpoints[0].client.get("/models", deadline)
        return answer.failure if isinstance(answer, Failed) else answer

    def _note_model(self, endpoint: Endpoint, answered: str) -> None:
        """Say once that an endpoint serves another model than it was asked for."""
        if endpoint.another_model or same_model(self._model, answered):
            return
        endpoint.another_model = True
        logger.warning(
            "%s answers with model %s, not with %s: if it is not the one that you mean, mend forecaster.model or "
            "base_url, for its forecasts count as those of the model that was asked for",
            endpoint.url,
            printable(answered),
            printable(self._model),
        )

    def _announce(self, endpoint: Endpoint) -> None:
        """One of several is lost or back; with a single one, whoever asked for forecasts says so."""
        if len(self._endpoints) == 1:
            return
        if endpoint.down:
            logger.warning("endpoint is left out for a while: %s", endpoint.failure.detail)
        else:
            logger.warning("endpoint answers again: %s", endpoint.url)
