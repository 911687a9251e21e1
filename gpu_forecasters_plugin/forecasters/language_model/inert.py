"""A kernel's source as data: nothing in it can steer a prompt, and what tries to is named.

Detection is by known forms. A text that talks round them is still inert as far as tokens and delimiters go, and
the instructions call it data; what it cannot do is leave its place in the prompt.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["InertText", "delimited", "make_inert"]


@dataclass(frozen=True)
class InertText:
    """A text that can stand in a prompt.

    Attributes:
        text: the source with control tokens, fences and invisible characters made plain to see and powerless.
        suspicions: why a forecast about it must not be trusted; empty for ordinary code.
    """

    text: str
    suspicions: tuple[str, ...] = ()


_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that show nothing, or change the order in which others show."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_CLOSE = "[>\uff1e]"
_CONTROL_TOKEN = re.compile(
    rf"""
    [<\uff1c\[](?:
        (?<!\[)(?:
            # ChatML, harmony, Llama 3, DeepSeek; one-sided ones as in newer Gemma
            [|\uff5c](?:[^\s<>|\uff5c]|\ ){{1,60}}[|\uff5c]{_CLOSE}
            | [|\uff5c]\w{{2,40}}{_CLOSE} | /?\w{{2,40}}[|\uff5c]{_CLOSE}
            # Llama 2; Gemma, sentencepiece; tags of thoughts and tools
            | [<\uff1c]/?SYS{_CLOSE}{_CLOSE}
            | (?:start_of_turn|end_of_turn|start_of_image|bos|eos|/s){_CLOSE}
            | /?(?:think|answer|tool_calls?|tool_response|function_calls|function_results){_CLOSE}
            | function=\w | invoke\ name | parameter[= ]\w
        )
        # Llama 2, Mistral, GLM
        | (?<=\[)/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|gMASK)\]
    )
    """,
    re.VERBOSE,
)
_QUIET_TOKEN = re.compile(r"<(?:s|pad|unk|mask)>")
"""Tokens that are also ordinary template arguments: made inert, but no reason for suspicion."""
_FENCE = re.compile("`{3,}")
_DELIMITER = re.compile(r"[<\uff1c](?:/\s*kernel|kernel-[0-9a-f]{6})", re.IGNORECASE)
_LOOK_ALIKES = str.maketrans("<>[]`\uff1c\uff1e", "‹›⟦⟧ˋ‹›")


def _escape(match: re.Match[str]) -> str:
    return ascii(match.group())[1:-1]


def _look_alike(match: re.Match[str]) -> str:
    return match.group().translate(_LOOK_ALIKES)


_HARMFUL = (
    ("invisible characters", _INVISIBLE, _escape),
    ("", _UNPRINTABLE, _escape),
    ("a control token", _CONTROL_TOKEN, _look_alike),
    ("a delimiter of the prompt", _DELIMITER, _look_alike),
    ("a fence", _FENCE, _look_alike),
    ("", _QUIET_TOKEN, _look_alike),
)
"""What is replaced, by what, in this order; with the name of the suspicion that it raises."""


class _Rule(NamedTuple):
    """A form of address to the forecaster.

    Attributes:
        kind: what it is called.
        signs: every match holds one of these texts; they are much quicker to look for than a pattern.
        pattern: for lower-case text.
    """

    kind: str
    signs: tuple[str, ...]
    pattern: re.Pattern[str]


_IN_SOURCE = (
    _Rule(
        "a fake answer",
        (*('"p_', "'p_", '"p1', "'p1", '"p8', "'p8"), "predicted_bin"),
        re.compile(r"""["']p_?[1-8]\\?["']\s*:|\bpredicted_bin\b"""),
    ),
    _Rule(
        "a fake tool call",
        (
            "tool_call",
            "tool_use",
            "function_call",
            "arguments'",
            'arguments"',
            "parameters'",
            'parameters"',
            "arguments\\",
            "parameters\\",
            "to=functions.",
        ),
        re.compile(
            r"""["'](?:tool_calls?|function_call|tool_use)\\?["']\s*:"""
            r"""|["']name\\?["']\s*:\s*\\?["'][\w.-]{1,60}\\?["']\s*,\s*\\?["'](?:arguments|parameters)\\?["']\s*:"""
            r"""|\bto=functions\.\w"""
        ),
    ),
    _Rule(
        "a fake turn of a conversation",
        ("human", "assistant", "##"),
        re.compile(
            r"(?:^|//|#)[\s#/*\"']{0,9}(?:human|assistant)\s*:"
            r"|##\s*(?:system|user|human|assistant|instruction|response)s?\s*:",
            re.MULTILINE,
        ),
    ),
)
"""Looked for in the source as it stands."""

_IGNORE = r"\b(?:ignore|disregard|forget|override|bypass|do not follow|don t follow)"
_ORDERS = r"(?:instructions?|prompts?|rules|guidelines|directions|orders)\b"
_SAYS = r"\b(?:report|predict|answer|repl(?:y|ie)|respond|forecast|classif(?:y|ie)|rate)(?:s|d|ed|ing)?\b"
_BIN = r"\b(?:bin|bucket|label)(?: number)? ?[=:]? ?(?:[1-8]|one|two|three|four|five|six|seven|eight)\b"
_SURE = r"\b(?:probabilit(?:y|ies)|confidence|certainty|100 ?%)"
_READERS = (
    *("forecaster", "language model", "llm", "ai model", "assistant", "grader", "judge"),
    *("surrogate", "predictor", "chatbot"),
)
_READER = rf"(?:{'|'.join(_READERS)})s?\b"
_VERDICTS = ("rated", "ranked", "scored", "classified", "predicted", "trusted", "skipped")
_IN_WORDS = (
    _Rule(
        "instructions to the forecaster",
        (
            "instruction",
            "prompt",
            "rules",
            "guidelines",
            "directions",
            "orders",
            "jailbreak",
            "json",
            "digit",
        ),
        re.compile(
            rf"{_IGNORE} (?:\w+ ){{0,2}}(?:previous|prior|above|earlier|preceding|all|any|your|these|those|system)\b"
            rf" (?:\w+ ){{0,3}}{_ORDERS}"
            rf"|{_IGNORE} (?:the )?{_ORDERS}"
            r"|\bsystem prompt\b|\bprompt injection\b|\bjailbreak"
            r"|\b(?:answer|reply|respond|output) (?:only |exclusively )?(?:with )?(?:only |just )?"
            r"(?:the |a |this )?(?:following )?(?:json|digit)\b"
        ),
    ),
    _Rule(
        "a forecast of its own",
        ("bin", "bucket", "label", "speed up", "speedup", "probab", "confidence", "certainty"),
        re.compile(
            rf"{_SAYS}.{{0,40}}{_BIN}"
            rf"|{_SAYS}.{{0,30}}\b(?:highest|top|last|fastest|best|extreme)\b.{{0,12}}\b(?:bin|speed ?up)\b"
            rf"|{_BIN}.{{0,40}}{_SURE}"
            rf"|{_SURE}.{{0,30}}{_BIN}"
            rf"|{_SAYS}.{{0,60}}\b(?:with|at) (?:a )?(?:probability|confidence|certainty)\b"
        ),
    ),
    _Rule(
        "words to the forecaster",
        (*_READERS, "reading this", *(f" be {verdict}" for verdict in _VERDICTS)),
        re.compile(
            r"\bforecasters?\b"
            r"|\b(?:dear|hey|hello|note to|note for|message to|message for|instructions? to|instructions? for)"
            rf" (?:the |any |all |our |every )?{_READER}"
            rf"|\b(?:you are|act as|acting as) (?:an? |the )?(?:\w+ ){{0,3}}?{_READER}"
            rf"|\bif you are (?:an? |the )?(?:\w+ )?(?:{_READER}|ai\b|reading this)"
            r"|\b(?:this|the) (?:kernel|candidate|program|code|implementation) "
            rf"(?:must|should|shall|has to|needs to) be (?:{'|'.join(_VERDICTS)})\b"
        ),
    ),
)
"""Looked for in the words alone: lower case, comment marks and line ends gone."""

_BETWEEN_WORDS = re.compile(r"[\s#*/\\\"'`_.,;()-]+")
_EXCERPT = 60


def make_inert(source: str) -> InertText:
    """A source as it can stand in a prompt, and what in it is no business of a kernel.

    Characters change, nothing is removed: a control token keeps its letters and loses its brackets to look-alikes
    that no tokenizer knows, an invisible character becomes its escape. Code such as ``kernel<<<blocks,
    threads>>>(x)`` stays as it is.
    """
    plain = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    suspicions = []
    text = plain
    for kind, pattern, powerless in _HARMFUL:
        if found := pattern.search(text):
            text = pattern.sub(powerless, text)
            if kind:
                suspicions.append(_named(kind, found))
    return InertText(text, (*suspicions, *_addresses(plain)))


def delimited(text: InertText) -> str:
    """An inert text between tags that it cannot hold: their name comes from a hash of the text itself."""
    digest = hashlib.sha256(text.text.encode()).hexdigest()[:16]
    return f"<kernel-{digest}>\n{text.text.rstrip()}\n</kernel-{digest}>"


def _addresses(plain: str) -> Iterator[str]:
    """Where a source speaks to the forecaster: one of each kind, with what it was seen by."""
    source = unicodedata.normalize("NFKC", _INVISIBLE.sub("", plain)).lower()
    words = _BETWEEN_WORDS.sub(" ", source)
    for rules, where in ((_IN_SOURCE, source), (_IN_WORDS, words)):
        for rule in rules:
            if any(sign in where for sign in rule.signs) and (found := rule.pattern.search(where)):
                yield _named(rule.kind, found)


def _named(kind: str, found: re.Match[str]) -> str:
    return f"{kind}: {ascii(found.group().strip())[1:-1][:_EXCERPT]}"
