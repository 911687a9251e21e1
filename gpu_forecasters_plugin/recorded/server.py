"""A small OpenAI-compatible chat endpoint in front of the recorded proposer.

Answers ``POST .../chat/completions`` and ``GET .../models`` under any prefix. Token counts are estimates
(characters / 4), because nothing is tokenised. Errors have OpenAI's shape.
"""

from __future__ import annotations

import json
import math
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.errors import GpuForecastersError, ProposalError
from gpu_forecasters_plugin.recorded.answers import read_request

if TYPE_CHECKING:
    from gpu_forecasters_plugin.recorded.proposer import RecordedProposer

__all__ = ["MODEL_NAME", "ProposerServer", "serve"]

MODEL_NAME = "recorded-proposer"
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_CHOICES = 64


def _estimated_tokens(text: str) -> int:
    return math.ceil(len(text) / 4)


def _checked(body: Any) -> tuple[list[dict[str, Any]], int, int | None]:
    """Messages, number of choices and seed of a chat request.

    Raises:
        ProposalError: the body is not one that can be answered.
    """
    if not isinstance(body, dict):
        raise ProposalError(f"the body must be a JSON object, got {type(body).__name__}")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ProposalError("'messages' must be a list of objects")
    if body.get("stream"):
        raise ProposalError("streaming is not supported: send 'stream': false")
    choices, seed = body.get("n"), body.get("seed")
    choices = 1 if choices is None else choices
    if isinstance(choices, bool) or not isinstance(choices, int) or not 1 <= choices <= MAX_CHOICES:
        raise ProposalError(f"'n' must be between 1 and {MAX_CHOICES}, got {choices!r:.40}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ProposalError(f"'seed' must be an integer, got {seed!r:.40}")
    return messages, choices, seed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet per answer: an unbuffered header followed by a body meets delayed acknowledgement (40 ms).
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: a host logs its own requests."""

    def _send(self, status: int, payload: dict[str, Any]) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status >= 400:
            # The body may be unread; a connection in an unknown state is not kept.
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        self._send(status, {"error": error})

    def do_GET(self) -> None:
        """Models: one."""
        if not self.path.partition("?")[0].rstrip("/").endswith("/models"):
            return self._fail(404, f"no such path: {self.path}")
        model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "gpu-forecasters-plugin"}
        return self._send(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        """Chat completions."""
        if not self.path.partition("?")[0].rstrip("/").endswith("/chat/completions"):
            return self._fail(404, f"no such path: {self.path}")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            return self._fail(411, "a Content-Length is needed")
        if int(length) > MAX_BODY_BYTES:
            return self._fail(413, f"the request has {length} bytes; the limit is {MAX_BODY_BYTES}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            return self._fail(400, f"the body is not JSON: {error}")
        try:
            return self._send(200, self.server.complete(body))
        except GpuForecastersError as error:
            return self._fail(400, str(error))


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's class: that one asks the resolver for the host's name, which can take seconds.
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proposer: RecordedProposer, host: str, port: int) -> None:
        self.proposer = proposer
        self._count = 0
        self._count_lock = threading.Lock()
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up (a host's time-out) is no event; what breaks here is shown as usual."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def complete(self, body: Any) -> dict[str, Any]:
        """The chat completion that answers a request body.

        Raises:
            ProposalError: it cannot be answered.
        """
        messages, choices, seed = _checked(body)
        request = read_request(messages, lambda code: self.proposer.graph.find(code) is not None)
        proposals = [
            self.proposer.propose(request.parent_code, request.fmt, seed, language=request.language)
            for _ in range(choices)
        ]
        with self._count_lock:
            self._count += 1
            number = self._count
        prompt_tokens = _estimated_tokens(json.dumps(messages, ensure_ascii=False))
        completion_tokens = sum(_estimated_tokens(text) for _, text in proposals)
        return {
            "id": f"chatcmpl-recorded-{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": MODEL_NAME,
            "choices": [
                {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for index, (_, text) in enumerate(proposals)
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "recorded": {
                "child_ids": [child for child, _ in proposals],
                "usage": "estimated, characters / 4",
            },
        }


class ProposerServer:
    """A running endpoint; closes when its ``with`` block ends."""

    def __init__(self, proposer: RecordedProposer, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = _Server(proposer, host, port)
        self.host = host
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            daemon=True,
            name="recorded-proposer",
        )
        self._thread.start()

    @property
    def base_url(self) -> str:
        """What a client takes as ``base_url``."""
        return f"http://{self.host}:{self.port}/v1"

    def wait(self) -> None:
        """Block until the server is closed."""
        self._thread.join()

    def close(self) -> None:
        """Stop answering and free the port; may be called twice."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> ProposerServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(proposer: RecordedProposer, host: str = "127.0.0.1", port: int = 0) -> ProposerServer:
    """Start serving in a background daemon thread; port 0 picks a free one.

    Raises:
        OSError: the address cannot be bound.
    """
    return ProposerServer(proposer, host, port)
