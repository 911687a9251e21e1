"""The border to the ``openai`` package: one base URL, one question, and every error of it as a typed failure."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.bodies import UnreadableBodyError, bounded_http_client
from gpu_forecasters_plugin.forecasters.language_model.event_loop import quieten
from gpu_forecasters_plugin.forecasters.language_model.retrying import Failed, failed_by_status
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    import openai

__all__ = ["NO_KEY", "ApiClient", "Connections", "api_key", "import_openai"]

NO_KEY = "EMPTY"
"""What vLLM's own examples send where there is no key."""
_LONGEST_DETAIL = 300
_READ_AT_ONCE = 2**18
"""Larger bodies are read in a thread of their own, one at a time: the event loop has deadlines to keep."""


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


class Connections:
    """The connections to all endpoints of one forecaster, in one pool; they belong to one event loop.

    Args:
        settings: the forecaster's settings.

    Raises:
        MissingExtraError: ``openai`` is not installed.
        ConfigError: the API key, the environment's certificates or proxies, or a base URL cannot be used.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        vendor = import_openai()
        quieten("httpx", "httpx2")
        key = api_key(settings.api_key_env)
        _check_certificates()
        try:
            self._http = bounded_http_client(vendor, settings.largest_body)
        except Exception as error:  # its words may hold a proxy's password
            raise ConfigError(
                f"no HTTP client can be built ({type(error).__name__}): look at the environment variables HTTP_PROXY, "
                "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
            ) from None
        self._reader = ThreadPoolExecutor(1, "gpu-forecasters-reader")
        self.clients = [self._client(vendor, url, key, settings) for url in settings.base_url]

    def _client(self, vendor: Any, url: str, key: str, settings: LanguageModelSettings) -> ApiClient:
        try:
            self._http.build_request("POST", f"{url}/chat/completions")
            sdk = vendor.AsyncOpenAI(
                base_url=url,
                api_key=key,
                max_retries=0,
                timeout=settings.deadline_s,
                http_client=self._http,
            )
        except Exception as error:  # its InvalidURL is of no base that both of openai's HTTP libraries share
            raise ConfigError(f"forecaster.base_url {url}: {_described(error)}") from None
        return ApiClient(vendor, sdk, url, key, settings.api_key_env, self._reader)

    async def close(self) -> None:
        """Close all of them."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._http.aclose()


def _check_certificates() -> None:
    """Refuse certificates that are not there: some HTTP libraries fall silent about them, and trust nobody.

    Raises:
        ConfigError: an environment variable names them.
    """
    for variable, exists, what in (
        ("SSL_CERT_FILE", Path.is_file, "file"),
        ("SSL_CERT_DIR", Path.is_dir, "folder"),
    ):
        path = os.environ.get(variable)
        if path and not exists(Path(path)):
            raise ConfigError(
                f"environment variable {variable} names {path}, which is no {what}: mend it, or unset it"
            )


class ApiClient:
    """Asks one base URL; whatever comes of it is a document or a typed failure.

    Args:
        vendor: the ``openai`` package.
        sdk: its client.
        url: the base URL.
        key: the API key, which is in nothing that is returned: servers like to repeat it.
        key_variable: the environment variable that it is from, named where it is refused.
        reader: reads large bodies.
    """

    def __init__(
        self,
        vendor: Any,
        sdk: openai.AsyncOpenAI,
        url: str,
        key: str,
        key_variable: str,
        reader: ThreadPoolExecutor,
    ) -> None:
        self.url = url
        self._vendor = vendor
        self._sdk = sdk
        self._key = key
        self._key_variable = key_variable
        self._reader = reader

    async def post(self, path: str, parameters: Mapping[str, Any], limit: float) -> object | Failed:
        """The JSON document that answers a request.

        Args:
            path: below the base URL.
            parameters: the request's body.
            limit: when to give up, in the loop's time.
        """
        return await self._request("post", path, limit, body=parameters)

    async def get(self, path: str, limit: float) -> object | Failed:
        """The JSON document at a path below the base URL; ``limit`` as for :meth:`post`."""
        return await self._request("get", path, limit)

    async def _request(self, method: str, path: str, limit: float, **more: Any) -> object | Failed:
        try:
            async with asyncio.timeout_at(limit):
                body = await getattr(self._sdk, method)(path, cast_to=bytes, **more)
                return await self._document(body)
        except (self._vendor.OpenAIError, OSError) as error:
            return self._failed(error)
        except (ValueError, RecursionError) as error:
            detail = self.detail(f"the answer is not JSON ({type(error).__name__})")
            return Failed(ForecastFailure(FailureKind.INVALID, detail), again=False)

    async def _document(self, body: bytes) -> object:
        if len(body) <= _READ_AT_ONCE:
            return self._read(body)
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, body)

    def _read(self, body: bytes) -> object:
        return self._without_key(json.loads(body))

    def _without_key(self, value: object) -> object:
        """What the endpoint said, less the key: all that is read may be shown."""
        if self._key == NO_KEY:
            return value
        match value:
            case str():
                return value.replace(self._key, "***")
            case list():
                return [self._without_key(entry) for entry in value]
            case dict():
                return {self._without_key(key): self._without_key(entry) for key, entry in value.items()}
            case _:
                return value

    def _failed(self, error: Exception) -> Failed:
        vendor = self._vendor
        if isinstance(error, vendor.APIStatusError):
            return failed_by_status(error.status_code, self._words(error), error.response.headers)
        if isinstance(error, TimeoutError | vendor.APITimeoutError):
            return Failed(ForecastFailure(FailureKind.TIMEOUT, f"{self.url} gave no whole answer in time"))
        root = _root(error)
        if isinstance(root, UnreadableBodyError | zlib.error):
            return Failed(ForecastFailure(FailureKind.INVALID, self.detail(str(root))), again=False)
        failure = ForecastFailure(FailureKind.UNREACHABLE, self.detail(_described(root)))
        return Failed(failure, again=not isinstance(root, ssl.SSLError))

    def _words(self, error: openai.APIStatusError) -> str:
        """What the endpoint said together with a status."""
        if error.status_code in range(300, 400):
            return self.detail("it redirects: set base_url to where the API is")
        body = error.body
        said = body.get("message") or body.get("detail") if isinstance(body, dict) else None
        text = said if isinstance(said, str) else str(body or "")
        return self.detail(f"status {error.status_code} {self._hint(error.status_code, text)}{text}")

    def _hint(self, status: int, text: str) -> str:
        """What is most often the reason for a status, ahead of the endpoint's own words, which may be cut."""
        if status in (401, 403):
            source = "is not set" if self._key == NO_KEY else "holds the key that was sent"
            return f"(environment variable {self._key_variable} {source}) "
        if status in (404, 405) and "model" not in text.lower():
            return "(is base_url right? most end in /v1) "
        return ""

    def detail(self, text: str) -> str:
        """A failure's detail: one line, safe to print, without the key."""
        line = " ".join(str(self._without_key(text))[: 4 * _LONGEST_DETAIL].split())
        return printable(f"{self.url}: {line[:_LONGEST_DETAIL]}")


def _root(error: BaseException) -> BaseException:
    """What began the chain of causes."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain[-1]


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
