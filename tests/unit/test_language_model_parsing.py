from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_forecasters_plugin.forecast import FailureKind, Forecast
from gpu_forecasters_plugin.forecasters.language_model.parsing import (
    VERBALIZED_SCHEMA,
    Answer,
    ReadFailure,
    ReadForecast,
    ReadLabel,
    read_label,
    read_verbalized,
)

EIGHTHS = [0.05, 0.05, 0.1, 0.3, 0.2, 0.1, 0.1, 0.1]


def answer_object(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"reasoning": "Fewer passes."}
    found |= {f"p_{index}": value for index, value in enumerate(EIGHTHS, start=1)}
    found |= {"predicted_bin": 4} | changes
    return {key: value for key, value in found.items() if value is not ...}


def text_of(**changes: Any) -> str:
    return json.dumps(answer_object(**changes))


def finished(content: str | None, **more: Any) -> Answer:
    return Answer(content, **{"finish_reason": "stop"} | more)


def forecast_of(answer: Answer) -> ReadForecast:
    reading = read_verbalized(answer)
    assert isinstance(reading, ReadForecast), reading
    return reading


def failure_of(answer: Answer) -> ReadFailure:
    reading = read_verbalized(answer)
    assert isinstance(reading, ReadFailure), reading
    return reading


def test_an_answer_of_the_schema_is_read_as_it_stands() -> None:
    reading = forecast_of(finished(text_of()))
    assert reading.probabilities == pytest.approx(EIGHTHS)
    assert reading.raw_sum == pytest.approx(1.0)
    assert not reading.disagrees
    assert set(answer_object()) == set(VERBALIZED_SCHEMA["properties"]) == set(VERBALIZED_SCHEMA["required"])


@pytest.mark.parametrize(("scale", "certain"), [(0.74, False), (0.76, True), (1.24, True), (1.26, False)])
def test_a_sum_near_one_is_normalised_and_another_is_no_forecast(scale: float, certain: bool) -> None:
    answer = finished(text_of(**{f"p_{i}": p * scale for i, p in enumerate(EIGHTHS, start=1)}))
    if not certain:
        assert "sum to" in failure_of(answer).detail
        return
    reading = forecast_of(answer)
    assert reading.raw_sum == pytest.approx(scale)
    assert reading.probabilities == pytest.approx(EIGHTHS)


@pytest.mark.parametrize(
    ("predicted", "disagrees"),
    [
        (4, False),
        (4.0, False),
        (5, True),
        (9, True),
        (0, True),
        ("4", True),
        (True, True),
        (4.5, True),
        (..., False),
    ],
)
def test_a_named_bin_that_is_not_the_most_probable_is_recorded(predicted: Any, disagrees: bool) -> None:
    assert forecast_of(finished(text_of(predicted_bin=predicted))).disagrees is disagrees


def test_one_of_two_equally_probable_bins_agrees() -> None:
    assert not forecast_of(finished(text_of(p_4=0.25, p_5=0.25, predicted_bin=5))).disagrees


@pytest.mark.parametrize(
    "value",
    [
        ...,
        None,
        "0.3",
        "30%",
        True,
        [0.3],
        {"p": 0.3},
        -0.3,
        1.2,
        30,
        float("nan"),
        float("inf"),
        10**400,
        -math.inf,
    ],
    ids=str,
)
def test_a_bin_that_is_missing_or_no_probability_is_no_forecast(value: Any) -> None:
    assert failure_of(finished(text_of(p_4=value))).kind is FailureKind.INVALID


@pytest.mark.parametrize("value", [1.1, float("nan")])
def test_one_bin_that_is_no_probability_spoils_a_sum_that_would_do(value: float) -> None:
    others = {f"p_{index}": 0.0 for index in range(1, 9)}
    assert "p_4 is not a probability" in failure_of(finished(text_of(**others | {"p_4": value}))).detail


def test_percentages_are_no_forecast() -> None:
    answer = finished(text_of(**{f"p_{i}": p * 100 for i, p in enumerate(EIGHTHS, start=1)}))
    assert failure_of(answer).kind is FailureKind.INVALID


@pytest.mark.parametrize("key", ["p_0", "p_9", "p_10"])
def test_a_bin_that_does_not_exist_means_another_scale(key: str) -> None:
    assert "does not exist" in failure_of(finished(text_of(**{key: 0.0}))).detail


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "\n\n {} \n",
        "```json\n{}\n```",
        "````\n{}\n````",
        "Here is my forecast:\n{}\nI hope that this helps.",
        "<think>maybe {{1, 2}} or so</think>\n{}",
        "[{}]",
    ],
)
def test_one_object_is_found_in_a_fence_in_prose_and_behind_a_thought(around: str) -> None:
    assert forecast_of(finished(around.replace("{}", text_of(), 1))).probabilities == pytest.approx(EIGHTHS)


@pytest.mark.parametrize(
    "text",
    [
        text_of() + text_of(),
        text_of() + "\nor rather\n" + text_of(p_4=0.2, p_5=0.3),
        "for (...) { x } gives " + text_of(),
        text_of()[:-1],
        text_of()[: len(text_of()) // 2],
        text_of() + "}",
        json.dumps({"probabilities": answer_object()}),
        text_of().replace('"p_2"', '"p_1"'),
        text_of().replace("}", ', "p_8": 0.1}'),
        json.dumps(text_of()),
        '{"a":' * 100_000,
        '{"p_1": ' + "9" * 10_000 + "}",
        '{"p_1": 1e999}',
        "<think>" + text_of(),
        "I cannot say.",
        "{}",
        "<html><body>502 Bad Gateway</body></html>",
    ],
    ids=lambda text: text[:20] + text[-20:],
)
def test_what_is_not_exactly_one_complete_object_is_no_forecast(text: str) -> None:
    assert failure_of(finished(text)).kind is FailureKind.INVALID


@pytest.mark.parametrize("content", [None, "", " \n\t "])
def test_tool_arguments_and_then_the_thought_stand_in_for_a_blank_content(content: str | None) -> None:
    other = text_of(p_4=0.2, p_5=0.3, predicted_bin=5)
    both = finished(content, tool_arguments=text_of(), reasoning=other, finish_reason="tool_calls")
    assert forecast_of(both).probabilities == pytest.approx(EIGHTHS)
    assert forecast_of(finished(content, reasoning=other)).probabilities[4] == pytest.approx(0.3)
    fenced = f"\n```json\n{other}\n```\n"
    assert forecast_of(finished(content, reasoning=fenced)).probabilities[4] == pytest.approx(0.3)


def test_the_content_comes_before_everything_else() -> None:
    other = text_of(p_4=0.2, p_5=0.3)
    answer = finished(text_of(), tool_arguments=other, reasoning=other)
    assert forecast_of(answer).probabilities == pytest.approx(EIGHTHS)
    assert failure_of(finished(text_of(p_4=-1), tool_arguments=other)).kind is FailureKind.INVALID


@pytest.mark.parametrize("thought", ["Perhaps " + text_of(), text_of() + " No, faster.", "I do not know."])
def test_a_draft_in_a_thought_is_no_answer(thought: str) -> None:
    assert failure_of(finished(None, reasoning=thought)).kind is FailureKind.INVALID
    assert failure_of(finished("I am done.", reasoning=text_of())).kind is FailureKind.INVALID


@pytest.mark.parametrize("read", [read_verbalized, read_label])
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"finish_reason": "length"}, FailureKind.TRUNCATED),
        ({"finish_reason": "content_filter"}, FailureKind.REFUSED),
        ({"refusal": "I cannot help with that."}, FailureKind.REFUSED),
        ({"refusal": "No.", "finish_reason": "length"}, FailureKind.REFUSED),
        ({"finish_reason": None}, FailureKind.INVALID),
        ({"finish_reason": "abort"}, FailureKind.INVALID),
        ({"content": None}, FailureKind.EMPTY),
        ({"content": " \n\u2003"}, FailureKind.EMPTY),
        ({"content": None, "finish_reason": "length"}, FailureKind.TRUNCATED),
    ],
)
def test_an_answer_that_did_not_end_normally_is_not_read(
    read: Any, changes: dict[str, Any], kind: FailureKind
) -> None:
    content = "4" if read is read_label else text_of()
    reading = read(Answer(**{"content": content, "finish_reason": "stop"} | changes))
    assert isinstance(reading, ReadFailure)
    assert reading.kind is kind


@pytest.mark.parametrize("text", ["4", " 4\n", '"4"', "4.", "**4**", "<think>3? 5?</think>\n\n4"])
def test_a_label_is_one_digit(text: str) -> None:
    assert read_label(finished(text)) == ReadLabel(4)


@pytest.mark.parametrize("text", ["0", "9", "44", "4 or 5", "4.5", "-4", "bin 4", "٤", "<think>4", "four"])
def test_anything_else_is_no_label(text: str) -> None:
    assert isinstance(read_label(finished(text)), ReadFailure)


def test_a_detail_is_one_short_line_whatever_the_answer_holds() -> None:
    detail = failure_of(finished("\x1b[2J\n\u202e" * 10_000)).detail
    assert detail.isascii() and detail.isprintable() and len(detail) < 1000


@pytest.mark.parametrize("text", ["```\n" + "\n" * 10**6, "{" * 10**6, '{"a":[' * 10**5, "<think>" * 10**5])
def test_an_endless_answer_is_read_in_one_pass(text: str) -> None:
    assert failure_of(finished(text)).kind is FailureKind.INVALID
    assert failure_of(finished(None, reasoning=text)).kind is FailureKind.INVALID


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
near_objects = st.fixed_dictionaries(
    {},
    optional={f"p_{index}": st.floats(0, 0.3) | json_values for index in range(1, 9)}
    | {"predicted_bin": st.integers(0, 9) | json_values, "reasoning": st.text(max_size=9)},
)
good_objects = st.fixed_dictionaries({f"p_{index}": st.floats(0, 0.2) for index in range(1, 9)})
texts = (
    st.text()
    | (near_objects | good_objects).map(json.dumps)
    | st.tuples(st.text(max_size=9), good_objects.map(json.dumps), st.text(max_size=9)).map("".join)
    | st.tuples(good_objects.map(json.dumps), st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
)
answers = st.builds(
    Answer,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.sampled_from(["stop", "stop", "stop", "tool_calls", "length", None, "?"]),
    st.sampled_from([None, None, None, "", "no"]),
)


@given(answers)
def test_any_answer_is_a_distribution_or_a_typed_failure(answer: Answer) -> None:
    reading = read_verbalized(answer)
    if isinstance(reading, ReadForecast):
        assert 0.75 <= reading.raw_sum <= 1.25
        Forecast(reading.probabilities)  # raises unless they are probabilities that sum to 1
    else:
        assert isinstance(reading.kind, FailureKind) and reading.detail


@given(answers)
def test_any_answer_is_a_bin_or_a_typed_failure(answer: Answer) -> None:
    reading = read_label(answer)
    assert isinstance(reading, ReadFailure) or 1 <= reading.bin <= 8


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8).filter(lambda weights: sum(weights) > 0))
def test_what_was_written_is_what_is_read(weights: list[float]) -> None:
    total = math.fsum(weights)
    written = [weight / total for weight in weights]
    text = json.dumps({f"p_{index}": p for index, p in enumerate(written, start=1)})
    assert forecast_of(finished(text)).probabilities == pytest.approx(written, abs=1e-12)
