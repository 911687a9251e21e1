"""An endpoint that sends more than anybody can hold, another model's answers, or nothing until the run is over."""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from helpers import candidate, let_time_pass, open_gate, source, surrogate, wait_until
from misbehaving_server import (
    MODEL,
    Behaviour,
    Exchange,
    MisbehavingServer,
    choice,
    completion,
    floods,
    good,
    replies,
    silence,
    verbalized,
)

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters.language_model.client import ApiClient
from gpu_forecasters_plugin.forecasters.language_model.prompting import Prompt
from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster
from gpu_forecasters_plugin.ledger import Ledger

pytest.importorskip("openai")

MIB = 2**20
LATER = 60.0
HOURS = 36_000.0
Build = Callable[..., OpenAIServerForecaster]


def query(number: int) -> Query:
    return Query(candidate(number).key, source(number), source(0), source(0), task="toy")


def failure(outcome: ForecastOutcome) -> ForecastFailure:
    assert isinstance(outcome, ForecastFailure), outcome
    return outcome


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- bodies -----------------------------------------------------------------------------------------------------


def gzip_bomb() -> tuple[bytes, bytes]:
    """How a gzip stream begins, and a piece of 1 KiB that unpacks to 1 MiB and may follow again and again."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(b" ") + packer.flush(zlib.Z_FULL_FLUSH)
    packer.compress(b" " * MIB)
    return first, packer.flush(zlib.Z_FULL_FLUSH)


FIRST, PIECE = gzip_bomb()
TOO_MUCH: dict[str, tuple[Behaviour, str, int]] = {
    "blanks": (floods(b" " * 2**16), "larger than 6 MiB", 32 * MIB),
    "gzip": (floods(PIECE, first=FIRST, Content_Encoding="gzip"), "larger than 6 MiB", 8 * MIB),
    "gzip in gzip": (floods(PIECE, first=FIRST, Content_Encoding="gzip, gzip"), "not asked for", 8 * MIB),
    "brotli": (floods(PIECE, Content_Encoding="br"), "not asked for", 8 * MIB),
    "no gzip": (floods(b"{} " * 100, Content_Encoding="gzip"), "header", 8 * MIB),
}


@pytest.mark.parametrize(("behaviour", "said", "most"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_body_without_end_is_a_failure_long_before_the_deadline(
    build: Build, behaviour: Behaviour, said: str, most: int
) -> None:
    with MisbehavingServer(behaviour) as server:
        (outcome,) = build(server.base_url, deadline_s=HOURS).forecast([query(1)])
        assert failure(outcome).kind is FailureKind.INVALID and said in failure(outcome).detail
        assert len(server.requests) == 1 and server.flooded < most


def test_of_an_error_without_end_the_beginning_is_read(build: Build) -> None:
    behaviour = floods(b"x" * 2**16, status=404, first=b"there is no such model ")
    with MisbehavingServer(behaviour) as server:
        (outcome,) = build(server.base_url, deadline_s=HOURS).forecast([query(1)])
        assert failure(outcome).kind is FailureKind.REFUSED and "no such model" in failure(outcome).detail
        assert server.flooded < 8 * MIB


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_compressed_answer_is_read(build: Build, pieces: int) -> None:
    packer = zlib.compressobj(wbits=31)
    data = packer.compress(json.dumps(completion(choice(verbalized()))).encode()) + packer.flush()

    async def behave(exchange: Exchange) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(data)}\r\n\r\n"
        exchange.writer.write(head.encode())
        for number in range(pieces):
            exchange.writer.write(data[number * len(data) // pieces : (number + 1) * len(data) // pieces])
            await exchange.writer.drain()

    with MisbehavingServer(behave) as server:
        (outcome,) = build(server.base_url).forecast([query(1)])
    assert isinstance(outcome, Forecast)


def test_a_thought_with_many_alternatives_is_not_too_large(build: Build) -> None:
    token = {"token": "x", "logprob": -1.5, "bytes": [120]}
    thought = [token | {"top_logprobs": [token] * 20}] * 8191
    label = [{"token": "6", "logprob": -0.1, "top_logprobs": [{"token": "6", "logprob": -0.1}]}]
    answer = choice("6", reasoning="x" * 8191) | {"logprobs": {"content": thought + label}}
    with MisbehavingServer(replies(200, completion(answer))) as server:
        forecaster = build(server.base_url, readout="logprobs", reasoning=True, deadline_s=HOURS)
        (outcome,) = forecaster.forecast([query(1)])
    assert isinstance(outcome, Forecast) and outcome.predicted_bin == 6


def test_while_a_large_body_is_read_other_forecasts_keep_their_deadlines(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, other_read, over = ApiClient._read, threading.Event(), threading.Event()

    def slow_for_large_ones(client: ApiClient, body: bytes) -> object:
        if len(body) > MIB:
            other_read.wait(2 * LATER)
            let_time_pass(LATER)
            over.wait(2 * LATER)
        else:
            other_read.set()
        return read(client, body)

    monkeypatch.setattr(ApiClient, "_read", slow_for_large_ones)
    large = json.dumps(completion(choice(verbalized()))) + " " * 2 * MIB
    with MisbehavingServer(replies(200, large), good) as server:
        outcomes = build(server.base_url, deadline_s=LATER).forecast([query(1), query(2)])
        over.set()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Forecast", "ForecastFailure"]
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, ForecastFailure)} == {
        FailureKind.TIMEOUT
    }


# -- errors of our own ------------------------------------------------------------------------------------------


def trip_over(monkeypatch: pytest.MonkeyPatch, forecaster: OpenAIServerForecaster, where: str) -> None:
    """Raise for the second kernel, in the writer of prompts, or for its answer, in the readout."""
    write, read = forecaster._writer.write, forecaster._readout.read

    def written(asked: Query) -> Prompt:
        if where == "writer" and "BLOCK = 2" in asked.candidate_code:
            raise LookupError("no template for this")
        return write(asked)

    def answered(choices: Any) -> Any:
        if where == "readout" and choices[0].answer.content.startswith(" "):
            raise LookupError("no reading for this")
        return read(choices)

    monkeypatch.setattr(forecaster._writer, "write", written)
    monkeypatch.setattr(forecaster._readout, "read", answered)


async def marked(exchange: Exchange) -> None:
    """A good answer, which begins with a blank for the second kernel."""
    second = "BLOCK = 2" in exchange.body["messages"][-1]["content"]
    await exchange.send(200, completion(choice(" " * second + verbalized())))


@pytest.mark.parametrize("where", ["writer", "readout"])
def test_an_unexpected_error_costs_one_forecast_and_is_said_once(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    with MisbehavingServer(marked) as server:
        forecaster = build(server.base_url)
        trip_over(monkeypatch, forecaster, where)
        for _ in range(2):
            outcomes = forecaster.forecast([query(number) for number in range(1, 5)])
            assert [type(outcome) for outcome in outcomes] == [Forecast, ForecastFailure, Forecast, Forecast]
            spoilt = failure(outcomes[1])
            assert spoilt.kind is FailureKind.INVALID and "LookupError" in spoilt.detail
            assert spoilt.source == f"openai_server:{MODEL}"
            assert (spoilt.cost.prompt_tokens > 0) is (where == "readout")  # what was paid for is kept
    assert len(loud(caplog)) == 1 and "one kernel goes without forecast" in loud(caplog)[0]


# -- the end of a run -------------------------------------------------------------------------------------------


def test_closing_gives_up_what_is_under_way_and_asks_no_more(build: Build) -> None:
    outcomes: list[ForecastOutcome] = []
    with MisbehavingServer(silence) as server:
        forecaster = build(server.base_url, deadline_s=HOURS, concurrency=2)
        asking = threading.Thread(
            target=lambda: outcomes.extend(forecaster.forecast([query(n) for n in range(1, 5)]))
        )
        asking.start()
        wait_until(lambda: len(server.requests) == 2)
        forecaster.close()
        asking.join(LATER)
        outcomes += forecaster.forecast([query(5)])
        assert len(server.requests) == 2
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert failure(outcome).kind is FailureKind.TIMEOUT and "the run ends" in failure(outcome).detail


def test_a_gate_that_is_closed_decides_without_forecasts_and_calls_it_no_outage(
    build: Build, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    decisions: list[Any] = []
    with MisbehavingServer(silence) as server:
        gate = open_gate(ledger, build(server.base_url, deadline_s=HOURS), config=surrogate())
        asking = threading.Thread(
            target=lambda: decisions.extend(gate.ask([candidate(n) for n in range(1, 9)]))
        )
        asking.start()
        wait_until(lambda: len(server.requests) == 8)
        gate.close()
        asking.join(LATER)
        decisions += gate.ask([candidate(n) for n in range(11, 19)])
        assert len(server.requests) == 8
    assert len(decisions) == 16 and sum(decision.measure for decision in decisions) == 4
    assert loud(caplog) == []


# -- which model answers ----------------------------------------------------------------------------------------


def named(model: str) -> Behaviour:
    return replies(200, completion(choice(verbalized())) | {"model": model})


def test_an_endpoint_that_serves_another_model_is_told_of_once(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with MisbehavingServer(named("cheap\x1b[31m" + "x" * MIB)) as proxy, MisbehavingServer(good) as fine:
        forecaster = build([proxy.base_url, fine.base_url], deadline_s=HOURS)
        for _ in range(2):
            outcomes = forecaster.forecast([query(number) for number in range(1, 9)])
            assert all(isinstance(outcome, Forecast) for outcome in outcomes)
    (line,) = loud(caplog)
    assert proxy.base_url in line and "\\x1b[31m" in line and len(line) < 1000


@pytest.mark.parametrize("answered", [f"{MODEL}-2025-08-07", f"somebody/{MODEL}:free", "", None, 7])
def test_an_alias_is_no_other_model(build: Build, caplog: pytest.LogCaptureFixture, answered: Any) -> None:
    with MisbehavingServer(named(answered)) as server:
        assert isinstance(build(server.base_url).forecast([query(1)])[0], Forecast)
    assert loud(caplog) == []


# -- settings that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base_url",
    [
        "http://localhost:0/v1",
        "http://localhost:99999/v1",
        "http://local..host/v1",
        f"http://{'a' * 64}.example/v1",
        "http://[::1/v1",
        "http://localhost/v1\x7f",
        "http://1.2.3.444/v1",
        "http://localhost/" + "a" * 70_000,
    ],
)
def test_a_base_url_that_cannot_be_asked_is_refused_before_anything_runs(build: Build, base_url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        build(base_url)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/nowhere/at/all.pem"),
        ("SSL_CERT_FILE", "/usr"),
        ("SSL_CERT_FILE", __file__),
        ("SSL_CERT_DIR", "/nowhere/at/all"),
        ("HTTPS_PROXY", "gopher://me:hush@localhost"),
        ("HTTPS_PROXY", "http://me:hu#sh@localhost"),
    ],
)
def test_an_environment_that_no_client_can_be_built_in_is_refused(
    build: Build, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=variable) as caught:
        build("https://localhost/v1")
    assert "hu" not in str(caught.value)
