"""The endpoints of one model: whom to ask, when to ask again, and what it means when nobody answers.

The only layer of retries. An endpoint that fails rests: as long as its ``Retry-After`` says, or for a while that
doubles with each failure in a row. After several it counts as down: requests go elsewhere, and where there is
no other they fail at once, until the rest is over and one round of requests finds out how it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatReply, ChatRequest, read_completion
from gpu_forecasters_plugin.forecasters.language_model.dialect import Dialect
from gpu_forecasters_plugin.forecasters.language_model.event_loop import quieten
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    import openai

__all__ = ["NO_KEY", "Endpoint", "Endpoints", "api_key", "import_openai", "retry_after_s"]

logger = logging.getLogger(__name__)

NO_KEY = "EMPTY"
"""What vLLM's own examples send where there is no key."""
_FIRST_REST_S, _LONGEST_REST_S = 0.5, 30.0
_LONGEST_ASKED_REST_S = 300.0
_DOWN_AFTER = 4
_MOST_ATTEMPTS = 6
_LONGEST_MARGIN_S = 0.25
"""An attempt ends a tenth of its time, or this much, before its forecast does: the silence is the endpoint's."""
_LONGEST_DETAIL = 300
_RETRIED_STATUS = frozenset({408, 409, 425, 429, *range(500, 600)})


def import_openai() -> Any:
    """The ``openai`` package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import openai
    except ImportError:
        raise MissingExtraError("openai", "openai") from None
    return openai


def api_key(variable: str) -> str:
    """The key in an environment variable; :data:`NO_KEY` where there is none.

    Raises:
        ConfigError: what it holds cannot be sent, and its error would repeat it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"environment variable {variable} holds no API key: it has blanks or other odd characters"
        )
    return key or NO_KEY


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that an answer's headers ask to wait; ``None`` where they ask for nothing sensible.

    Args:
        headers: the answer's headers; names in any case.
        now: seconds since the epoch, for dates.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        try:
            seconds = float(text) / unit
        except ValueError:
            seconds = _seconds_until(text, now)
        if 0.0 <= seconds < float("inf"):
            return seconds
    return None


def _seconds_until(date: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


@dataclass(frozen=True)
class _Failed:
    """An attempt without a reply.

    Attributes:
        failure: what a forecast that gets no further attempt says.
        again: whether another attempt may do better.
        wait_s: what the endpoint asks to wait.
    """

    failure: ForecastFailure
    again: bool = True
    wait_s: float | None = None


@dataclass
class Endpoint:
    """One base URL and how it has been doing; times are those of the event loop."""

    url: str
    client: openai.AsyncOpenAI
    dialect: Dialect
    in_flight: int = 0
    ready_at: float = 0.0
    failures: int = 0
    failed_at: float = 0.0
    failure: ForecastFailure = field(default=ForecastFailure(FailureKind.UNREACHABLE))

    @property
    def down(self) -> bool:
        """Whether it has failed so often in a row that it is not waited for."""
        return self.failures >= _DOWN_AFTER

    def succeeded(self) -> None:
        """It answered."""
        if self.failures:
            self.failures, self.ready_at = 0, 0.0

    def failed(self, failed: _Failed, started: float, now: float) -> None:
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
        ConfigError: the API key cannot be sent.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        vendor = import_openai()
        quieten("httpx", "httpx2")
        self._openai = vendor
        # The last two are a body that is no JSON.
        self._errors = (vendor.OpenAIError, OSError, ValueError, RecursionError)
        self._key = api_key(settings.api_key_env)
        self._http = vendor.DefaultAsyncHttpxClient(follow_redirects=False)
        self._endpoints = [
            Endpoint(
                url,
                vendor.AsyncOpenAI(
                    base_url=url,
                    api_key=self._key,
                    max_retries=0,
                    timeout=settings.deadline_s,
                    http_client=self._http,
                ),
                Dialect(settings, url),
            )
            for url in settings.base_url
        ]

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

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
            if not isinstance(result, _Failed):
                return result
            attempts += 1
            if not result.again or attempts == _MOST_ATTEMPTS:
                return result.failure
            tried = result.failure

    def _best(self, now: float) -> Endpoint:
        """The one that is ready first, of these the one with the least to do."""
        return min(self._endpoints, key=lambda e: (max(e.ready_at, now), e.in_flight))

    def _limit(self, endpoint: Endpoint, deadline: float, now: float) -> float:
        """When an attempt ends: half-way to the deadline while another endpoint could still answer."""
        others = any(e is not endpoint and e.ready_at <= now for e in self._endpoints)
        return (now + deadline) / 2 if others else deadline - min(_LONGEST_MARGIN_S, (deadline - now) / 10)

    async def _attempt(
        self, endpoint: Endpoint, request: ChatRequest, limit: float
    ) -> ChatReply | ForecastFailure | _Failed:
        clock = asyncio.get_running_loop().time
        started = clock()
        endpoint.in_flight += 1
        try:
            result = await self._ask(endpoint, request, limit)
        finally:
            endpoint.in_flight -= 1
        was_down = endpoint.down
        if not isinstance(result, _Failed):
            endpoint.succeeded()
        elif result.again:
            endpoint.failed(result, started, clock())
        if endpoint.down != was_down:
            self._announce(endpoint)
        return result

    async def _ask(
        self, endpoint: Endpoint, request: ChatRequest, limit: float
    ) -> ChatReply | ForecastFailure | _Failed:
        vendor = self._openai
        while True:
            sent = endpoint.dialect.parameters(request)
            try:
                async with asyncio.timeout_at(limit):
                    body = await endpoint.client.post("/chat/completions", cast_to=object, body=sent)
                reply = read_completion(self._without_key(body))
                if isinstance(reply, ForecastFailure):
                    return replace(reply, detail=self._detail(endpoint, reply.detail))
                return reply
            except vendor.APIStatusError as error:
                refusal = self._words(endpoint, error)
                if error.status_code in (400, 422) and endpoint.dialect.learn(refusal, sent):
                    continue
                return self._failed(endpoint, error)
            except self._errors as error:
                return self._failed(endpoint, error)

    async def models(self, deadline: float) -> object | ForecastFailure:
        """What the first endpoint lists as its models, asked for once.

        Args:
            deadline: when to give up, in the loop's time.
        """
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout_at(deadline):
                return self._without_key(await endpoint.client.get("/models", cast_to=object))
        except self._errors as error:
            failed = self._failed(endpoint, error)
            return failed.failure if isinstance(failed, _Failed) else failed

    def _without_key(self, value: object) -> object:
        """What an endpoint said, less the key: servers like to repeat it, and all that is read may be shown."""
        match value:
            case str():
                return value if self._key == NO_KEY else value.replace(self._key, "***")
            case list():
                return [self._without_key(entry) for entry in value]
            case dict():
                return {self._without_key(key): self._without_key(entry) for key, entry in value.items()}
            case _:
                return value

    def _failed(self, endpoint: Endpoint, error: Exception) -> ForecastFailure | _Failed:
        """What an error of :attr:`_errors` means."""
        vendor = self._openai
        if isinstance(error, vendor.APIStatusError):
            return _by_status(error.status_code, self._words(endpoint, error), error.response.headers)
        if isinstance(error, TimeoutError | vendor.APITimeoutError):
            return _Failed(ForecastFailure(FailureKind.TIMEOUT, f"{endpoint.url} does not answer"))
        if isinstance(error, vendor.OpenAIError | OSError):
            certificate = isinstance(_root(error), ssl.SSLError)
            detail = self._detail(endpoint, _described(_root(error)))
            return _Failed(ForecastFailure(FailureKind.UNREACHABLE, detail), again=not certificate)
        detail = self._detail(endpoint, f"the answer is not JSON ({type(error).__name__})")
        return ForecastFailure(FailureKind.INVALID, detail)

    def _words(self, endpoint: Endpoint, error: openai.APIStatusError) -> str:
        """What the endpoint said together with a status."""
        if error.status_code in range(300, 400):
            return self._detail(endpoint, "it redirects: set base_url to where the API is")
        body = error.body
        said = body.get("message") or body.get("detail") if isinstance(body, dict) else None
        text = said if isinstance(said, str) else str(body or "")
        return self._detail(endpoint, f"status {error.status_code} {text}")

    def _detail(self, endpoint: Endpoint, text: str) -> str:
        """A failure's detail: one line, safe to print, without the key, which servers like to repeat."""
        line = " ".join(text.replace(self._key, "***")[: 4 * _LONGEST_DETAIL].split())
        return printable(f"{endpoint.url}: {line[:_LONGEST_DETAIL]}")

    def _announce(self, endpoint: Endpoint) -> None:
        """One of several is lost or back; with a single one, whoever asked for forecasts says so."""
        if len(self._endpoints) == 1:
            return
        if endpoint.down:
            logger.warning("endpoint is left out for a while: %s", endpoint.failure.detail)
        else:
            logger.warning("endpoint answers again: %s", endpoint.url)


def _by_status(status: int, detail: str, headers: Mapping[str, str]) -> _Failed:
    wait = retry_after_s(headers, time()) if status in _RETRIED_STATUS else None
    if wait is not None:
        detail = f"{detail} (asks to wait {wait:.0f} s)"
    if status == 429:
        kind = FailureKind.RATE_LIMITED
    elif status in _RETRIED_STATUS or status < 400:
        kind = FailureKind.UNREACHABLE
    else:
        kind = FailureKind.REFUSED
    return _Failed(ForecastFailure(kind, detail), again=status in _RETRIED_STATUS, wait_s=wait)


def _root(error: BaseException) -> BaseException:
    """What began the chain of causes."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain[-1]


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
