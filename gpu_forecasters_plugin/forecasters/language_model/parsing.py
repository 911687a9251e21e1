"""What a language model answered, read strictly: a forecast where the meaning is certain, else a typed failure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecast import FailureKind

__all__ = [
    "VERBALIZED_SCHEMA",
    "Answer",
    "ReadFailure",
    "ReadForecast",
    "ReadLabel",
    "Reading",
    "read_label",
    "read_verbalized",
]

PROBABILITY_KEYS = tuple(f"p_{index}" for index in range(1, N_BINS + 1))
MIN_RAW_SUM, MAX_RAW_SUM = 0.75, 1.25
"""Probabilities that sum to less or more are not probabilities of these eight bins."""

VERBALIZED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        **{key: {"type": "number"} for key in PROBABILITY_KEYS},
        "predicted_bin": {"type": "integer", "enum": list(range(1, N_BINS + 1))},
    },
    "required": ["reasoning", *PROBABILITY_KEYS, "predicted_bin"],
    "additionalProperties": False,
}
"""JSON schema of a verbalized answer: flat, without ranges, which not every server's grammar knows."""

_FINISHED = {"stop", "tool_calls", "function_call", "eos_token", "end_turn"}
"""A normal end, under the names that servers give it."""
_LABEL = re.compile(rf"\A[\s\"'*`(\[]*([1-{N_BINS}])[\s\"'*`)\].]*\Z")
_BIN_KEY = re.compile(r"p_\d+")
_EXCERPT = 120


@dataclass(frozen=True)
class Answer:
    """One choice of a chat completion, as the server sent it.

    Attributes:
        content: the message's text.
        tool_arguments: arguments of its first tool call.
        reasoning: the thought, under whichever of its names the server uses.
        finish_reason: why the model stopped.
        refusal: the text of a refusal.
    """

    content: str | None = None
    tool_arguments: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class ReadForecast:
    """Eight probabilities that sum to 1.

    Attributes:
        probabilities: from bin 1 to bin 8.
        raw_sum: what they summed to in the answer.
        disagrees: whether the bin that the answer calls its prediction is not its most probable one.
    """

    probabilities: tuple[float, ...]
    raw_sum: float
    disagrees: bool = False


@dataclass(frozen=True)
class ReadLabel:
    """One bin number, 1 to 8."""

    bin: int


@dataclass(frozen=True)
class ReadFailure:
    """Nothing that can be relied on, and why."""

    kind: FailureKind
    detail: str


Reading = ReadForecast | ReadFailure


class _Unreadable(ValueError):
    """Why an answer cannot be read."""


def read_verbalized(answer: Answer) -> Reading:
    """The forecast in an answer that was asked for one JSON object of :data:`VERBALIZED_SCHEMA`.

    It is looked for in the content, then in the tool arguments, then, when both are blank, in the thought, and
    only when the model finished normally. Around it prose or a fence may stand, not a second object; a thought
    must be the object alone, for it may hold drafts. The sum of the probabilities may lie between 0.75 and
    1.25.
    """
    failure = _not_finished(answer)
    if failure is not None:
        return failure
    try:
        return _forecast(_parse(_text_with_object(answer)))
    except _Unreadable as problem:
        return ReadFailure(FailureKind.INVALID, str(problem))


def read_label(answer: Answer) -> ReadLabel | ReadFailure:
    """The bin number in an answer that was asked for one digit, with nothing but quotes around it."""
    failure = _not_finished(answer)
    if failure is not None:
        return failure
    text = _after_thinking(answer.content or "")
    if _blank(text):
        return ReadFailure(FailureKind.EMPTY, "a thought without an answer")
    match = _LABEL.match(text)
    if match is None:
        return ReadFailure(FailureKind.INVALID, f"not one digit from 1 to {N_BINS}: {_excerpt(text)}")
    return ReadLabel(int(match.group(1)))


def _not_finished(answer: Answer) -> ReadFailure | None:
    reason = (answer.finish_reason or "").lower()
    if not _blank(answer.refusal) or reason == "content_filter":
        return ReadFailure(FailureKind.REFUSED, _excerpt(answer.refusal or reason))
    if reason == "length":
        return ReadFailure(FailureKind.TRUNCATED, "the answer hit the limit of tokens")
    if reason not in _FINISHED:
        return ReadFailure(FailureKind.INVALID, f"ended with finish_reason {answer.finish_reason!r:.40}")
    if all(_blank(text) for text in (answer.content, answer.tool_arguments, answer.reasoning)):
        return ReadFailure(FailureKind.EMPTY, "the answer is empty")
    return None


def _text_with_object(answer: Answer) -> str:
    content = _after_thinking(answer.content or "")
    for text in (content, answer.tool_arguments or ""):
        if "{" in text:
            return text
    if _blank(answer.content) and _blank(answer.tool_arguments):
        thought = _without_fence(answer.reasoning or "")
        if thought.startswith("{") and thought.endswith("}"):
            return thought
        raise _Unreadable("a thought without an answer")
    raise _Unreadable(f"no JSON object: {_excerpt(content or answer.tool_arguments or '')}")


def _without_fence(text: str) -> str:
    lines = text.strip().split("\n")
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1] if fenced else lines).strip()


def _after_thinking(content: str) -> str:
    """The answer behind a thought that the server left in the content; nothing when the thought never ends."""
    _, end, rest = content.rpartition("</think>")
    if not end and "<think>" in rest:
        return ""
    return rest


def _parse(text: str) -> dict[str, Any]:
    """The one JSON object in a text."""
    start = text.index("{")
    try:
        found, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise _Unreadable("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _Unreadable(f"not one complete JSON object: {error.msg}") from None
    if "{" in text[end:] or "}" in text[end:]:
        raise _Unreadable("more than one JSON object")
    return dict(found)


def _forecast(found: dict[str, Any]) -> ReadForecast:
    unknown = [key for key in found if _BIN_KEY.fullmatch(key) and key not in PROBABILITY_KEYS]
    if unknown:
        raise _Unreadable(f"a bin that does not exist: {_excerpt(unknown[0])}")
    weights = [_probability(found, key) for key in PROBABILITY_KEYS]
    total = math.fsum(weights)
    if not MIN_RAW_SUM <= total <= MAX_RAW_SUM:
        raise _Unreadable(f"the probabilities sum to {total:.4g}, not to 1")
    probabilities = tuple(weight / total for weight in weights)
    predicted = found.get("predicted_bin")
    return ReadForecast(probabilities, total, _disagrees(predicted, probabilities))


def _probability(found: dict[str, Any], key: str) -> float:
    if key not in found:
        raise _Unreadable(f"{key} is missing")
    value = found[key]
    if not isinstance(value, float):  # the decoder makes every JSON number a float; true is none
        shown = _excerpt(value) if isinstance(value, str) else type(value).__name__
        raise _Unreadable(f"{key} is not a number: {shown}")
    if not 0.0 <= value <= 1.0:
        raise _Unreadable(f"{key} is not a probability: {value:.4g}")
    return abs(value)  # -0.0


def _disagrees(predicted: Any, probabilities: tuple[float, ...]) -> bool:
    """Whether the named prediction is another than the most probable bin; one that was not named says nothing."""
    if predicted is None:
        return False
    if not (isinstance(predicted, float) and predicted in range(1, N_BINS + 1)):
        return True
    return probabilities[int(predicted) - 1] < max(probabilities)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Unreadable("a key stands in it twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=float)


def _blank(text: str | None) -> bool:
    return text is None or not text.strip()


def _excerpt(text: str) -> str:
    """The beginning of a text of any length, on one line, safe to print."""
    return ascii(" ".join(text[:_EXCERPT].split()))
