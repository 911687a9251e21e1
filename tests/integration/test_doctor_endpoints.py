"""What ``gpu-forecasters doctor`` finds out about endpoints, on a scripted one."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Command, wait_until
from misbehaving_server import (
    MODEL,
    PREDICTED,
    Behaviour,
    Exchange,
    MisbehavingServer,
    choice,
    completion,
    good,
    html,
    label_tokens,
    replies,
    silence,
    while_time_passes,
    white_space,
)

from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.doctor import forecasters
from gpu_forecasters_plugin.doctor.prompts import judge_prefix_caching
from gpu_forecasters_plugin.forecast import FailureKind, ForecastCost
from gpu_forecasters_plugin.forecasters.language_model.trimming import estimated_tokens
from gpu_forecasters_plugin.look import ADVICE

CHECKS = (
    *("models", "chat", "served model", "reasoning"),
    *("structured output", "logprobs", "prefix caching", "context length"),
)
WITHOUT_THOUGHT = completion(choice("No.")) | {
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
}
KEY = "sk-hush-hush-4711"
DEADLINE = 50.0
"""Of a check, in seconds: long, because one that hangs only seems to take them."""
SOON_OVER = DEADLINE - 0.2
"""So much later an attempt is given up, and nothing else is."""


def listing(**more: Any) -> Behaviour:
    """The list of models of a server that says more of its model."""
    return replies(200, {"object": "list", "data": [{"id": MODEL, "object": "model", **more}]})


async def obedient(exchange: Exchange) -> None:
    """Does everything that it is asked for, whatever the schema."""
    schema = exchange.body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if "side" in schema.get("properties", {}):
        await exchange.send(200, completion(choice('{"side": "left"}')))
    elif not {"response_format", "structured_outputs"} & exchange.body.keys():
        await exchange.send(200, WITHOUT_THOUGHT)
    else:
        await good(exchange)


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer(obedient) as running:
        running.models = listing(max_model_len=32768)
        yield running


class Doctor:
    """``gpu-forecasters doctor`` on the settings of one language model."""

    def __init__(self, command: Command, folder: Path, ledger: Path) -> None:
        self._command, self._folder, self._ledger = command, folder, ledger

    def __call__(self, *urls: str, **settings: Any) -> Doctor:
        forecaster = {"kind": "openai_server", "base_url": list(urls), "model": MODEL} | settings
        section = {"forecaster": forecaster, "device": "NVIDIA H100", "ledger": str(self._ledger)}
        (self._folder / "config.yaml").write_text(json.dumps({"surrogate": section}))
        arguments = ("--config", self._folder / "config.yaml", "--out", self._folder)
        said = self._command("doctor", *arguments, "--deadline", str(DEADLINE))
        self.code, self.printed = said.code, said.out + said.err
        self.summary = (self._folder / "summary.json").read_text()
        self.checks = json.loads(self.summary)["checks"]
        return self

    def statuses(self, url: str | None = None) -> dict[str, str]:
        """Status of each check of endpoints."""
        chosen = [c for c in self.checks if c["name"] in CHECKS and url in (None, c["subject"])]
        return {check["name"]: check["status"] for check in chosen}

    def __getitem__(self, name: str) -> tuple[str, str]:
        """Status and text of one check."""
        (check,) = [check for check in self.checks if check["name"] == name]
        return check["status"], f"{check['seen']}; {check['advice']}"


@pytest.fixture
def doctor(
    gpu_forecasters: Command, empty_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Doctor:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return Doctor(gpu_forecasters, tmp_path, empty_ledger)


@pytest.mark.parametrize("readout", ["logprobs", "verbalized", "samples"])
def test_of_a_good_endpoint_everything_is_fine(
    doctor: Doctor, server: MisbehavingServer, readout: str
) -> None:
    found = doctor(server.base_url, readout=readout)
    assert found.code == 0, found.printed
    assert found.statuses() == dict.fromkeys(CHECKS, "ok")
    assert "132 multiprocessors" in found["hardware facts"][1]
    status, text = found["forecaster"]
    assert status == "ok" and "significant speed-up" in text


def test_a_server_that_is_not_there_is_told_once_and_nothing_else_is_tried(doctor: Doctor) -> None:
    found = doctor("http://127.0.0.1:1/v1")
    assert found.code == 1
    status, text = found["models"]
    assert status == "fail" and text.startswith("unreachable: http://127.0.0.1:1/v1: ")
    assert set(found.statuses().values()) == {"fail", "skipped"}
    assert found["forecaster"] == ("skipped", "no endpoint answers; ")


@pytest.mark.parametrize("hanging", [silence, white_space])
@pytest.mark.parametrize("place", ["models", "chat"])
def test_an_endpoint_that_hangs_hangs_nothing(
    doctor: Doctor, server: MisbehavingServer, hanging: Behaviour, place: str
) -> None:
    if place == "models":
        server.models = while_time_passes(hanging, SOON_OVER)
    else:
        server.script(while_time_passes(hanging, SOON_OVER))
    found = doctor(server.base_url)
    assert found.code == 1
    status, text = found[place]
    assert status == "fail" and text.startswith("timeout: ")
    assert [s for name, s in found.statuses().items() if name not in ("models", place)] == ["skipped"] * (
        len(CHECKS) - (1 if place == "models" else 2)
    )
    assert len(server.requests) == (0 if place == "models" else 1), "what hangs is asked once"


def test_what_hangs_in_one_check_is_not_asked_for_in_the_next(
    doctor: Doctor, server: MisbehavingServer
) -> None:
    hanging = while_time_passes(silence, SOON_OVER, SOON_OVER)  # here, and for the forecast at the end
    server.script(varied(hanging, "structured_outputs"))
    found = doctor(server.base_url, deadline_s=DEADLINE)
    assert found["structured output"] == (
        "fail",
        f"timeout: {server.base_url} gave no whole answer in time; {ADVICE[FailureKind.TIMEOUT]}",
    )
    skipped = [name for name, status in found.statuses().items() if status == "skipped"]
    assert skipped == ["logprobs", "prefix caching", "context length"]


def test_ctrl_c_ends_it_while_an_endpoint_hangs(server: MisbehavingServer, tmp_path: Path) -> None:
    server.script(silence)
    forecaster = {"kind": "openai_server", "base_url": [server.base_url], "model": MODEL}
    (tmp_path / "config.yaml").write_text(json.dumps({"surrogate": {"forecaster": forecaster}}))
    command = [sys.executable, "-m", "gpu_forecasters_plugin", "doctor", "--config", "config.yaml"]
    with subprocess.Popen(
        [*command, "--deadline", "600"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: server.requests)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=180)
    assert process.returncode == 130 and errors.splitlines() == ["interrupted; nothing was written"]


def test_each_of_several_endpoints_is_examined(doctor: Doctor, server: MisbehavingServer) -> None:
    gone = "http://127.0.0.1:1/v1"
    found = doctor(server.base_url, gone)
    assert found.statuses(server.base_url) == dict.fromkeys(CHECKS, "ok")
    assert found.statuses(gone)["models"] == "fail" and found.code == 1
    assert found["forecaster"][0] == "ok", "one endpoint is enough for a forecast"


@pytest.mark.parametrize(
    ("models", "status", "text"),
    [
        (replies(404), "warn", "lists no models"),
        (html, "warn", "lists no models"),
        (
            replies(200, {"data": [{"id": "scripted-7b"}, {"id": "other"}, 3, {}]}),
            "warn",
            "did you mean 'scripted-7b'?",
        ),
        (replies(200, [1]), "warn", "there are: none"),
        (listing(context_length=4096), "ok", "4096 tokens of context"),
        (listing(max_model_len=True, context_length=4096), "ok", "4096 tokens of context"),
        (listing(max_model_len=10**300), "ok", "unknown number of tokens"),
        (replies(200, {"data": [{"id": "s" * 10**5}, {"id": ["scripted"]}]}), "warn", "there are: none"),
    ],
)
def test_a_model_that_is_not_listed_may_answer_all_the_same(
    doctor: Doctor, server: MisbehavingServer, models: Behaviour, status: str, text: str
) -> None:
    server.models = models
    found = doctor(server.base_url)
    assert found["models"][0] == status and text in found["models"][1]
    assert found["chat"][0] == found["forecaster"][0] == "ok" and found.code == 0


@pytest.mark.parametrize(
    ("answered", "status", "text"),
    [
        (f"{MODEL}-2025-08-07", "ok", f"answers come from {MODEL}-2025-08-07"),
        ("cheaper", "warn", f"'{MODEL}' is asked, 'cheaper' answers; if it is not the one"),
        (None, "ok", "answers name no model"),
    ],
)
def test_an_endpoint_that_serves_another_model_is_warned_of(
    doctor: Doctor, server: MisbehavingServer, answered: str | None, status: str, text: str
) -> None:
    server.script(replies(200, WITHOUT_THOUGHT | {"model": answered}), obedient)
    found = doctor(server.base_url)
    assert found["served model"][0] == status and text in found["served model"][1]
    assert found.code == 0


def test_a_refused_key_fails_without_being_shown(doctor: Doctor, server: MisbehavingServer) -> None:
    said = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    server.models = replies(401, said)
    server.script(replies(401, said))
    found = doctor(server.base_url)
    assert found.code == 1
    status, text = found["chat"]
    assert status == "fail" and "Incorrect API key" in text
    assert KEY not in found.summary + found.printed
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def varied(behaviour: Behaviour, field: str) -> Behaviour:
    """That behaviour for requests with a parameter, obedience to all others."""

    async def behave(exchange: Exchange) -> None:
        await (behaviour if field in exchange.body else obedient)(exchange)

    return behave


def prose(text: str = "The sea is wide.", **message: Any) -> Behaviour:
    return replies(200, completion(choice(text, **message)))


@pytest.mark.parametrize(
    ("readout", "field", "text"),
    [
        ("verbalized", "response_format", "ignores a JSON schema"),
        ("samples", "structured_outputs", "ignores a choice"),
    ],
)
def test_a_form_that_is_ignored_is_a_warning_and_the_forecast_decides(
    doctor: Doctor, server: MisbehavingServer, readout: str, field: str, text: str
) -> None:
    server.script(varied(prose(), field))
    found = doctor(server.base_url, readout=readout)
    assert found["structured output"][0] == "warn" and text in found["structured output"][1]
    assert found["forecaster"][0] == "fail" and found.code == 1


@pytest.mark.parametrize(
    ("readout", "status", "code"), [("logprobs", "fail", 1), ("verbalized", "skipped", 0)]
)
def test_log_probabilities_must_come_only_where_they_are_read(
    doctor: Doctor, server: MisbehavingServer, readout: str, status: str, code: int
) -> None:
    server.script(varied(prose("6"), "logprobs"))
    found = doctor(server.base_url, readout=readout)
    assert found["logprobs"][0] == status and "no log-probabilities" in found["logprobs"][1]
    assert found.code == code


@pytest.mark.parametrize(
    ("masses", "status", "text"),
    [
        ({"6": -0.1, "The": -3.0}, "warn", "1 of 8 labels observed; they have 90.5% of the model's"),
        ({"6": -3.0, "The": -0.1}, "fail", "min_label_mass is 0.5"),
        ({"The": -0.1}, "fail", "min_label_mass is 0"),
    ],
)
def test_the_labels_share_of_the_probability_is_judged(
    doctor: Doctor, server: MisbehavingServer, masses: dict[str, float], status: str, text: str
) -> None:
    answer = choice(str(PREDICTED), finish_reason="length") | {"logprobs": label_tokens(masses)}
    server.script(varied(replies(200, completion(answer)), "logprobs"))
    found = doctor(server.base_url)
    assert found["logprobs"][0] == status and text in found["logprobs"][1]


def test_an_answer_that_is_held_to_the_labels_is_asked_for_once_more_without(
    doctor: Doctor, server: MisbehavingServer
) -> None:
    own = choice("The", finish_reason="length") | {"logprobs": label_tokens({"6": -3.0, "The": -0.1}, "The")}
    held = label_tokens(dict.fromkeys("12345678", -math.log(8)), "6")
    constrained = replies(200, completion(choice("6", finish_reason="length") | {"logprobs": held}))

    async def behave(exchange: Exchange) -> None:
        is_free = "logprobs" in exchange.body and "structured_outputs" not in exchange.body
        await (replies(200, completion(own)) if is_free else varied(constrained, "logprobs"))(exchange)

    server.script(behave)
    status, text = doctor(server.base_url)["logprobs"]
    assert (
        status == "warn" and "8 of 8 labels observed; they have 5.0% of the model's probability when" in text
    )


@pytest.mark.parametrize(
    ("reply", "reasoning", "status", "text"),
    [
        (prose("No.", reasoning="7 * 13"), False, "fail", "set reasoning: true"),
        (prose("<think>7 * 13</think>No."), True, "fail", "--reasoning-parser"),
        (prose("No.", reasoning_content="7 * 13"), True, "ok", "thinks"),
    ],
)
def test_a_thought_must_be_expected_and_apart_from_the_answer(
    doctor: Doctor, server: MisbehavingServer, reply: Behaviour, reasoning: bool, status: str, text: str
) -> None:
    server.script(reply, obedient)
    found = doctor(server.base_url, reasoning=reasoning)
    assert found["reasoning"][0] == status and text in found["reasoning"][1]


def test_a_model_that_never_thinks_is_a_warning_where_a_thought_is_expected(
    doctor: Doctor, server: MisbehavingServer
) -> None:
    server.script(replies(200, WITHOUT_THOUGHT), obedient)
    assert doctor(server.base_url, reasoning=True)["reasoning"][0] == "warn"


def test_the_prefix_cache_is_tried_with_a_prompt_that_nobody_has_asked_before(
    doctor: Doctor, server: MisbehavingServer
) -> None:
    doctor(server.base_url)
    doctor(server.base_url)
    asked = [r["messages"] for r in server.requests if r["messages"][0]["content"].startswith("Probe")]
    first, again, other, other_again = asked
    assert first == again and other == other_again and first != other
    assert len(first[0]["content"]) > 1000


@pytest.mark.parametrize(
    ("cached", "seconds", "status", "text"),
    [
        (960, (0.5, 0.5), "ok", "960 of 1000 prompt tokens came from it"),
        (0, (0.5, 0.1), "ok", "--enable-prompt-tokens-details"),
        (0, (0.5, 0.4), "warn", "--enable-prefix-caching"),
        (0, (0.004, 0.001), "warn", "no sign of it"),
    ],
)
def test_a_prefix_cache_shows_in_tokens_or_else_in_time(
    cached: int, seconds: tuple[float, float], status: str, text: str
) -> None:
    found = judge_prefix_caching(ForecastCost(prompt_tokens=1000, cached_tokens=cached), *seconds)
    assert found.status == status and text in f"{found.seen}; {found.advice}"


@pytest.mark.parametrize(
    ("context", "status", "text"),
    [(32768, "ok", ""), (4096, "warn", "set max_kernel_tokens: "), (64, "fail", "longer context")],
)
def test_the_longest_prompt_is_held_against_the_context(
    doctor: Doctor, server: MisbehavingServer, context: int, status: str, text: str
) -> None:
    server.models = listing(max_model_len=context)
    found = doctor(server.base_url)
    assert found["context length"][0] == status and text in found["context length"][1]


def test_the_advised_kernel_length_is_one_that_fits(doctor: Doctor, server: MisbehavingServer) -> None:
    server.models = listing(max_model_len=4096)
    advice = doctor(server.base_url)["context length"][1]
    room = int(advice.partition("max_kernel_tokens: ")[2].partition(",")[0])
    assert doctor(server.base_url, max_kernel_tokens=room)["context length"][0] == "ok"
    assert doctor(server.base_url, max_kernel_tokens=room + 1)["context length"][0] == "warn"


@pytest.mark.parametrize(("refused", "status"), [(False, "ok"), (True, "warn")])
def test_an_endpoint_that_does_not_say_its_context_is_tried(
    doctor: Doctor, server: MisbehavingServer, refused: bool, status: str
) -> None:
    async def behave(exchange: Exchange) -> None:
        is_long = len(exchange.body["messages"][-1]["content"]) > 20_000
        await (replies(400, {"error": {"message": "too long"}}) if refused and is_long else obedient)(
            exchange
        )

    server.models = listing()
    server.script(behave)
    found = doctor(server.base_url)
    assert found["context length"][0] == status
    longest = max((request["messages"][-1]["content"] for request in server.requests), key=len)
    assert estimated_tokens(longest) > 2 * 8000, "longer than two kernels of the longest length"


@pytest.mark.parametrize(
    ("installed", "adapter", "status", "text"),
    [
        (False, True, "fail", "gpu-forecasters-plugin[vllm]"),
        (True, False, "fail", "no LoRA adapter in "),
        (True, True, "ok", "it is loaded when a run starts"),
    ],
)
def test_of_a_model_in_this_process_only_what_would_be_loaded_is_examined(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    adapter: bool,
    status: str,
    text: str,
) -> None:
    monkeypatch.setattr(forecasters, "find_spec", lambda name: object() if installed else None)
    if adapter:
        (tmp_path / "adapter_config.json").write_text("{}")
    settings = ForecasterConfig(kind="vllm_local", model=str(tmp_path), lora=str(tmp_path))
    found = forecasters.check_local_model(settings)
    assert found.status == status and text in f"{found.seen}; {found.advice}"
