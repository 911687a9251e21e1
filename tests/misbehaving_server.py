"""A scripted OpenAI-compatible endpoint: each request gets the next behaviour, and then always the last one.

A behaviour is a coroutine function of an :class:`Exchange`; those that tests need often are here.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from helpers import let_time_pass

MODEL = "scripted"
PREDICTED = 6
"""The bin that a good answer predicts."""


@dataclass
class Exchange:
    """One request and the connection that waits for its answer."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    server: MisbehavingServer

    async def send(
        self, status: int, payload: Any, headers: Mapping[str, str] | None = None, *, cut: bool = False
    ) -> None:
        """Answer with JSON, or with a text as it is; ``cut``: only half of the body, then the end."""
        text = payload if isinstance(payload, str) else json.dumps(payload)
        data = text.encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode())
        self.writer.write(data[: len(data) // 2] if cut else data)
        await self.writer.drain()
        if cut:
            self.writer.close()

    async def together(self, number: int) -> None:
        """Wait until this many requests wait here at once; later ones pass."""
        server = self.server
        server.met += 1
        if server.met >= number:
            server.meeting.set()
        await server.meeting.wait()


Behaviour = Callable[[Exchange], Awaitable[None]]


def completion(*choices: Mapping[str, Any]) -> dict[str, Any]:
    """Body of a chat completion."""
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    return {"id": "c", "object": "chat.completion", "model": MODEL, "choices": list(choices), "usage": usage}


def choice(
    content: str | None = None, *, finish_reason: str | None = "stop", **message: Any
) -> dict[str, Any]:
    """One choice of a completion."""
    return {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish_reason,
    }


def verbalized(predicted: int = PREDICTED) -> str:
    """A well-formed verbalized answer."""
    numbers = {f"p_{number}": 0.65 if number == predicted else 0.05 for number in range(1, 9)}
    return json.dumps({"reasoning": "as it is", **numbers, "predicted_bin": predicted})


def label_tokens(masses: Mapping[str, float], token: str = str(PREDICTED)) -> dict[str, Any]:
    """Log-probabilities of one token: those given, by token text."""
    top = [{"token": text, "logprob": logprob, "bytes": None} for text, logprob in masses.items()]
    return {"content": [{"token": token, "logprob": masses.get(token, -9999.0), "top_logprobs": top}]}


_LOGPROBS = {"The": -7.0} | {str(number): -0.43 if number == PREDICTED else -3.0 for number in range(1, 9)}


async def good(exchange: Exchange) -> None:
    """What a server answers that does as it is asked, in whichever readout."""
    if exchange.body.get("logprobs"):
        answer = choice(str(PREDICTED), finish_reason="length") | {"logprobs": label_tokens(_LOGPROBS)}
        await exchange.send(200, completion(answer))
    elif "response_format" in exchange.body:
        await exchange.send(200, completion(choice(verbalized())))
    else:
        answers = [choice(str(PREDICTED)) for _ in range(exchange.body.get("n", 1))]
        await exchange.send(200, completion(*answers))


def answers(*choices: Mapping[str, Any]) -> Behaviour:
    """A completion of these choices."""
    return replies(200, completion(*choices))


def replies(status: int, payload: Any = None, **headers: str) -> Behaviour:
    """An answer with this status; ``Retry_After="2"`` makes a header."""
    body = {"error": {"message": f"scripted status {status}"}} if payload is None else payload
    fields = {name.replace("_", "-"): value for name, value in headers.items()}

    async def behave(exchange: Exchange) -> None:
        await exchange.send(status, body, fields)

    return behave


async def html(exchange: Exchange) -> None:
    """A page of a proxy, with status 200."""
    await exchange.send(200, "<html><body>Sign in</body></html>", {"Content-Type": "text/html"})


async def half_a_body(exchange: Exchange) -> None:
    """The connection ends in the middle of the answer."""
    await exchange.send(200, completion(choice(verbalized())), cut=True)


async def reset(exchange: Exchange) -> None:
    """The connection is gone without a word."""
    exchange.writer.transport.abort()


async def white_space(exchange: Exchange) -> None:
    """Blanks for ever, which keep a read timeout from firing."""
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    while not exchange.server.released.is_set():
        exchange.writer.write(b"   ")
        await exchange.writer.drain()
        await asyncio.sleep(0.01)


def floods(unit: bytes, *, status: int = 200, first: bytes = b"", **headers: str) -> Behaviour:
    """A body that never ends; what the client took of it is counted in the server's ``flooded``."""
    lines = {"Content-Type": "application/json", "Connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}

    async def behave(exchange: Exchange) -> None:
        # What lies on the way is not taken: as little of it as there can be.
        exchange.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        exchange.writer.write(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode() + first)
        while not exchange.server.released.is_set():
            exchange.writer.write(unit)
            await exchange.writer.drain()
            exchange.server.flooded += len(unit)

    return behave


async def silence(exchange: Exchange) -> None:
    """Nothing, until the test is over."""
    await exchange.server.released.wait()


def while_time_passes(behaviour: Behaviour, *seconds: float) -> Behaviour:
    """That behaviour, and so much time passes for whoever waits for the first answer, the second, and so on."""
    to_pass = list(seconds)

    async def behave(exchange: Exchange) -> None:
        if to_pass:
            asyncio.get_running_loop().call_later(0.02, let_time_pass, to_pass.pop(0))
        await behaviour(exchange)

    return behave


class MisbehavingServer:
    """Serves its script in a thread of its own while its ``with`` block runs.

    Attributes:
        requests: bodies of all completions asked for, in the order of their arrival.
        headers: their headers, names in lower case.
        models: what it answers when asked for its models.
        flooded: bytes that endless bodies have got rid of, what the sockets hold of them included.
    """

    def __init__(self, *script: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self._script = list(script) or [good]
        self._tls = tls
        self.models: Behaviour = replies(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.flooded = 0
        self._opened: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def base_url(self) -> str:
        """What a client takes as ``base_url``."""
        # Not localhost: that may be two addresses, and the same port of the other one somebody else's.
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/v1"

    def script(self, *behaviours: Behaviour) -> None:
        """Go on with another script."""
        self._script = list(behaviours)

    def __enter__(self) -> MisbehavingServer:
        self._thread.start()
        self._loop = self._opened.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self.released.set)
        self._thread.join()

    async def _serve(self) -> None:
        """Serve until the test is over, and leave nothing that anybody could complain of in a later one."""
        self.released = asyncio.Event()
        self.meeting = asyncio.Event()
        self.met = 0
        self._writers: list[asyncio.StreamWriter] = []
        try:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls, backlog=256)
        except OSError as error:
            self._opened.set_exception(error)
            return
        self.port = server.sockets[0].getsockname()[1]
        self._opened.set_result(asyncio.get_running_loop())
        await self.released.wait()
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)  # whoever has just come is served before it is sent away
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while (exchange := await self._read(reader, writer)) is not None:
                await self._answer(exchange)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        path = head[0].split()[1]
        return Exchange(path, headers, json.loads(data) if data else {}, writer, self)

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.path.endswith("/models"):
            await self.models(exchange)
            return
        self.requests.append(exchange.body)
        self.headers.append(exchange.headers)
        await (self._script.pop(0) if len(self._script) > 1 else self._script[0])(exchange)
