from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from misbehaving_server import choice, completion, label_tokens

from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatReply, Choice, read_completion
from gpu_forecasters_plugin.forecasters.language_model.dialect import Dialect
from gpu_forecasters_plugin.forecasters.language_model.label_logprobs import LABELS, read_label_logprobs
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer
from gpu_forecasters_plugin.forecasters.language_model.readouts import readout
from gpu_forecasters_plugin.forecasters.language_model.retrying import retry_after_s
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

SENTINELS = (-math.inf, -9999.0, -10000.0, math.nan)
MESSAGES = [{"role": "user", "content": "how fast?"}]


def settings(**values: Any) -> LanguageModelSettings:
    section = {"kind": "openai_server", "base_url": "http://host/v1", "model": "m"} | values
    return parse_surrogate_config({"forecaster": section}).forecaster


def forecast(outcome: Forecast | ForecastFailure) -> Forecast:
    assert isinstance(outcome, Forecast), outcome
    return outcome


def label(content: str | None, finish_reason: str = "stop") -> Choice:
    return Choice(Answer(content, finish_reason=finish_reason))


# -- label log-probabilities ------------------------------------------------------------------------------------


def test_both_tokens_of_a_label_count_and_the_covered_mass_is_kept() -> None:
    logs = {"3": math.log(0.3), " 3": math.log(0.2), "\u01208": math.log(0.25), "The": math.log(0.25)}
    read = forecast(read_label_logprobs(logs, 0.5))
    assert read.covered_mass == pytest.approx(0.75)
    assert read.probabilities == pytest.approx((0, 0, 2 / 3, 0, 0, 0, 0, 1 / 3))


@pytest.mark.parametrize("sentinel", SENTINELS)
def test_a_sentinel_is_no_observation(sentinel: float) -> None:
    masses = dict.fromkeys(LABELS, sentinel) | {"2": math.log(0.9)}
    assert forecast(read_label_logprobs(masses, 0.5)) == forecast(
        read_label_logprobs({"2": math.log(0.9)}, 0.5)
    )


@pytest.mark.parametrize("sentinel", SENTINELS)
def test_sentinels_alone_are_no_forecast(sentinel: float) -> None:
    read = read_label_logprobs(dict.fromkeys(LABELS, sentinel), 0.0)
    assert isinstance(read, ForecastFailure) and read.kind is FailureKind.INVALID


@pytest.mark.parametrize("token", ["9", "0", "12", "1.", "three", "-3", "\uff13", ""])
def test_other_tokens_are_no_labels(token: str) -> None:
    assert isinstance(read_label_logprobs({token: -0.01}, 0.0), ForecastFailure)


def test_the_mass_is_unknown_where_the_server_leaves_other_tokens_no_chance() -> None:
    even = dict.fromkeys(LABELS, math.log(1 / 8))
    assert forecast(read_label_logprobs(even | {"The": -9999.0}, 0.5)).covered_mass is None
    assert forecast(read_label_logprobs(even | {"The": -20.0}, 0.5)).covered_mass == pytest.approx(1.0)


def test_mass_below_the_limit_is_a_failure_that_names_both() -> None:
    read = read_label_logprobs({"1": math.log(0.125)}, 0.5)
    assert isinstance(read, ForecastFailure) and "0.125" in read.detail and "0.5" in read.detail


def test_numbers_that_are_no_log_probabilities_are_refused() -> None:
    assert isinstance(read_label_logprobs({"1": 0.0, "2": 0.0}, 0.5), ForecastFailure)


@given(st.dictionaries(st.sampled_from([*LABELS, *(f" {x}" for x in LABELS), "The", "9"]), st.floats()))
def test_whatever_is_read_is_a_distribution_over_what_was_observed(logs: dict[str, float]) -> None:
    read = read_label_logprobs(logs, 0.0)
    if isinstance(read, Forecast):
        assert read.covered_mass is None or 0.0 < read.covered_mass <= 1.0
        assert all(p == 0.0 or f"{i + 1}" in map(str.strip, logs) for i, p in enumerate(read.probabilities))


# -- completions ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "logprobs", "token", "logprob", "usage"])
            | st.sampled_from(["top_logprobs", "tool_calls", "function", "prompt_tokens", "finish_reason"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_document_is_read_as_a_reply_or_a_failure(document: Any) -> None:
    for value in (document, {"choices": [document], "usage": document}, {"choices": [{"message": document}]}):
        read = read_completion(value)
        assert isinstance(read, ForecastFailure) or read.choices


@given(JSON)
def test_any_answer_is_read_in_every_readout(document: Any) -> None:
    read = read_completion({"choices": [{"message": {"content": "3"}, "logprobs": document}, document]})
    assert isinstance(read, ChatReply)
    for name in ("logprobs", "verbalized", "samples"):
        assert readout(settings(readout=name)).read(read.choices)


def test_numbers_that_are_no_counts_cost_nothing() -> None:
    for value in (None, -1, True, 1.5, "7", 2**40):
        read = read_completion({"choices": [{}], "usage": {"prompt_tokens": value}})
        assert read.cost.prompt_tokens == 0


def test_the_labels_place_is_the_last_token_that_reads_as_the_answer() -> None:
    tokens = [
        entry for text in ("6", "</think>", "6", "<|end|>") for entry in label_tokens({}, text)["content"]
    ]
    tokens[2]["top_logprobs"] = [{"token": "6", "logprob": -0.1}, {"token": "7", "logprob": -3.0}]
    document = completion(choice("6") | {"logprobs": {"content": tokens}})
    read = read_completion(document)
    assert isinstance(read, ChatReply)
    found = forecast(readout(settings(reasoning=True)).read(read.choices))
    assert found.predicted_bin == 6 and found.probabilities[6] > 0


def test_an_answer_without_log_probabilities_is_a_failure_that_says_so() -> None:
    read = readout(settings()).read([label("6", "length")])
    assert isinstance(read, ForecastFailure) and "log-probabilities" in read.detail


@pytest.mark.parametrize(("content", "finish"), [("6", "length"), (None, "length"), ("it is 6", "stop")])
def test_a_thought_without_a_finished_label_is_no_forecast(content: str | None, finish: str) -> None:
    assert isinstance(readout(settings(reasoning=True)).read([label(content, finish)]), ForecastFailure)


# -- samples ----------------------------------------------------------------------------------------------------


def test_samples_are_frequencies_of_the_usable_answers() -> None:
    choices = [label(text) for text in ("5", " 5", "6", "fast", "", "5")]
    read = forecast(readout(settings(readout="samples", samples=6)).read(choices))
    assert read.probabilities == (0, 0, 0, 0, 0.75, 0.25, 0, 0)
    assert read.raw_sum == pytest.approx(4 / 6)


@pytest.mark.parametrize(("usable", "expected"), [(4, Forecast), (3, ForecastFailure)])
def test_half_of_the_samples_must_be_usable(usable: int, expected: type) -> None:
    choices = [label("5")] * usable + [label("no", "length")] * (8 - usable)
    read = readout(settings(readout="samples", samples=8)).read(choices)
    assert isinstance(read, expected)
    if isinstance(read, ForecastFailure):
        assert read.kind is FailureKind.TRUNCATED and "3 of 8" in read.detail


# -- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"readout": "logprobs"}, {"max_tokens": 1, "temperature": 0.0, "top_logprobs": 20}),
        ({"readout": "verbalized"}, {"max_tokens": 1024, "temperature": 0.0}),
        ({"readout": "samples", "samples": 5}, {"max_tokens": 8, "temperature": 1.0, "n": 5}),
        (
            {"readout": "verbalized", "max_tokens": 77, "temperature": 0.3},
            {"max_tokens": 77, "temperature": 0.3},
        ),
        ({"constraint": "guided_choice"}, {"guided_choice": list(LABELS)}),
        ({"extra_body": {"reasoning_effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
    ],
    ids=str,
)
def test_what_is_asked_follows_from_the_settings(values: dict[str, Any], expected: dict[str, Any]) -> None:
    given = settings(**values)
    body = Dialect(given, "host").parameters(readout(given).request(MESSAGES, 7))
    assert {key: body.get(key) for key in expected} == expected
    assert body["seed"] == 7 and body["messages"] == MESSAGES and body["model"] == "m"


def test_a_model_that_thinks_is_given_room_and_its_own_temperature() -> None:
    given = settings(reasoning=True)
    body = Dialect(given, "host").parameters(readout(given).request(MESSAGES, 7))
    assert body["max_tokens"] == 8192 and "temperature" not in body
    assert body["structured_outputs"] == {"choice": list(LABELS)}


def test_a_refusal_for_another_reason_teaches_nothing() -> None:
    dialect = Dialect(settings(), "host")
    sent = dialect.parameters(readout(settings()).request(MESSAGES, 7))
    assert not dialect.learn("'max_tokens' or 'max_completion_tokens' is too large: 8192, temperature", sent)
    assert not dialect.learn("Unknown parameter: 'messages'", sent)
    assert dialect.parameters(readout(settings()).request(MESSAGES, 7)) == sent


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 5000}, 86_400.0),
        ({"retry-after-ms": "1" + "0" * 300}, 86_400.0),
        ({"retry-after": "-" + "9" * 5000}, None),
        ({"retry-after": "Thu, 01 Jan 9999 00:00:00 GMT"}, 86_400.0),
        ({"retry-after": "Thu, 99 Jan 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_wait_is_read_in_every_form_and_only_when_sensible(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(headers, now=100.0) == seconds
