"""What the forecaster costs on our side: a server in another process that answers at once.

The server parses nothing but where a request ends; all the time that passes is the client's, or the network's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice

from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names

__all__ = ["client_overhead"]

POOL = 16
_WARM_UP = 3


def _answer() -> bytes:
    labels = [{"token": str(number), "logprob": -2.0794, "bytes": [48 + number]} for number in range(1, 9)]
    others = [{"token": f"t{number}", "logprob": -12.0, "bytes": [116]} for number in range(12)]
    token = {"token": "4", "logprob": -2.0794, "bytes": [52], "top_logprobs": labels + others}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "4"},
        "finish_reason": "length",
        "logprobs": {"content": [token]},
    }
    usage = {"prompt_tokens": 2000, "completion_tokens": 1, "total_tokens": 2001}
    body = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


class _AtOnce(asyncio.Protocol):
    """Answers each request as soon as its last byte is there."""

    answer = _answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) >= length:
            self._received = rest[length:]
            self._transport.write(self.answer)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_AtOnce, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _server() -> Iterator[str]:
    """A server in a process of its own; its base URL."""
    with subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def client_overhead(pools: int = 60) -> dict[str, float]:
    """Forecasts per second of one process whose server answers at once, prompts of real kernels included.

    Args:
        pools: how many pools of 16 are forecast, one after the other; a few more come first to warm up.
    """
    task = load_task(recorded_task_names()[0])
    reference = task.reference.code
    codes = cycle(candidate.code for candidate in task.candidates.values())
    with _server() as base_url:
        section = {"kind": "openai_server", "base_url": base_url, "model": "none", "readout": "logprobs"}
        forecaster = OpenAIServerForecaster(parse_surrogate_config({"forecaster": section}).forecaster)
        seconds: list[float] = []
        busy: list[float] = []
        for _ in range(pools + _WARM_UP):
            queries = [Query(code[:32], code, reference, reference) for code in islice(codes, POOL)]
            started, worked = time.perf_counter(), time.process_time()
            outcomes = forecaster.forecast(queries)
            seconds.append(time.perf_counter() - started)
            busy.append(time.process_time() - worked)
            assert all(isinstance(outcome, Forecast) for outcome in outcomes), outcomes
        forecaster.close()
    lengths = [len(candidate.code) for candidate in task.candidates.values()]
    return {
        "pools": pools,
        "pool_size": POOL,
        "mean_kernel_characters": statistics.mean(lengths),
        "forecasts_per_second": POOL * pools / sum(seconds[_WARM_UP:]),
        "cpu_milliseconds_per_forecast": 1e3 * sum(busy[_WARM_UP:]) / (POOL * pools),
    }


if __name__ == "__main__":
    asyncio.run(_serve())
