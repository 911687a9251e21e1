"""Prompts read and answers written the way a language model in an evolutionary host would.

A host asks for either SEARCH/REPLACE blocks or a whole program in a fence. Both are written here so that
what the host makes of them is exactly the intended kernel; :func:`write_answer` proves it before it answers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.errors import ProposalError
from gpu_forecasters_plugin.recorded.tagged_answers import apply_in_place, editable_part, in_tags

__all__ = ["AnswerFormat", "ProposalRequest", "apply_blocks", "read_request", "write_answer"]

AnswerFormat = Literal["diff", "full", "tagged_diff", "tagged_full"]
"""SEARCH/REPLACE blocks or a whole program; ``tagged``: in the tags that ShinkaEvolve reads."""

_SEARCH, _DIVIDER, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
_MARKER_LINE = re.compile(rf"^[ \t]*({_SEARCH}|{_DIVIDER}|{_REPLACE})[ \t]*\r?$", re.MULTILINE)
_FENCE = re.compile(r"^```([^\s`]*)[ \t]*$")
_PARENT_HEADING = "# current program"
_TAG = "<NAME>"
_MAX_CLOSINGS = 8
"""A program may hold fences of its own (in a docstring): a block may end at a later fence than the next."""


@dataclass(frozen=True)
class ProposalRequest:
    """What a prompt asks for: to change ``parent_code``, answered in ``fmt``, fenced as ``language``."""

    parent_code: str
    fmt: AnswerFormat
    language: str


def _message_texts(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _candidate_blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Line ranges (opening and closing fence) that may hold the parent, the likeliest first."""
    fences = [index for index, line in enumerate(lines) if _FENCE.match(line)]
    headings = [index for index, line in enumerate(lines) if line.strip().lower() == _PARENT_HEADING]
    after_heading = [next((f for f in fences if f > heading), -1) for heading in reversed(headings)]
    for opening in dict.fromkeys((*(f for f in after_heading if f >= 0), *reversed(fences))):
        closings = [f for f in fences if f > opening and lines[f].rstrip() == "```"]
        for closing in closings[:_MAX_CLOSINGS]:
            yield opening, closing


def _wanted_format(before: str, after: str) -> AnswerFormat:
    if _TAG in before:
        return "tagged_diff" if _SEARCH in before else "tagged_full"
    # Instructions mostly follow the program; only when they say nothing does what precedes it count.
    if _SEARCH in after:
        return "diff"
    if "```" in after or "rewrite" in after.lower():
        return "full"
    return "diff" if _SEARCH in before else "full"


def read_request(messages: Sequence[Mapping[str, Any]], is_known: Callable[[str], bool]) -> ProposalRequest:
    """Find the parent program and the wanted format in a chat prompt.

    The parent is the block under the last "# Current Program" heading, else the last fenced block whose
    source ``is_known``; a prompt may hold other programs and outputs besides.

    Raises:
        ProposalError: no known program in the prompt.
    """
    text = "\n\n".join(_message_texts(messages))
    lines = text.replace("\r\n", "\n").split("\n")
    for opening, closing in _candidate_blocks(lines):
        code = "\n".join(lines[opening + 1 : closing])
        if not is_known(code):
            continue
        before, after = "\n".join(lines[:opening]), "\n".join(lines[closing + 1 :])
        fence = _FENCE.match(lines[opening])
        tail = [match.group(1) for line in lines[closing + 1 :] if (match := _FENCE.match(line))]
        language = next((name for name in tail if name), fence.group(1) if fence else "") or "python"
        return ProposalRequest(code, _wanted_format(before, after), language)
    raise ProposalError("the prompt holds no program of this recorded task, so there is nothing to change")


def _find(lines: Sequence[str], wanted: Sequence[str]) -> int:
    """First place of ``wanted``: exactly, else with trailing white space ignored; -1 if absent."""
    for clean in (lambda line: line, str.rstrip):
        haystack, needle = [clean(line) for line in lines], [clean(line) for line in wanted]
        for start in range(len(haystack) - len(needle) + 1):
            if haystack[start : start + len(needle)] == needle:
                return start
    return -1


def apply_blocks(code: str, blocks: Iterable[tuple[str, str]]) -> str | None:
    """What a host makes of SEARCH/REPLACE blocks; ``None`` if a SEARCH does not occur.

    Blocks lose trailing white space, apply one after the other, and replace the first match by whole lines
    (as OpenEvolve does).
    """
    lines = code.split("\n")
    for search, replacement in blocks:
        wanted = search.rstrip().split("\n")
        start = _find(lines, wanted)
        if start < 0:
            return None
        lines[start : start + len(wanted)] = replacement.rstrip().split("\n")
    return "\n".join(lines)


def _diff_blocks(parent: str, child: str) -> Iterator[list[tuple[str, str]]]:
    """Ever larger sets of blocks that might turn parent into child; the last replaces the whole program."""
    old, new = parent.split("\n"), child.split("\n")
    for context in (1, 2, 4, 8, 16):
        # A matcher each time: grouping trims the matcher's own list of edits to the context asked for.
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        yield [
            ("\n".join(old[group[0][1] : group[-1][2]]), "\n".join(new[group[0][3] : group[-1][4]]))
            for group in matcher.get_grouped_opcodes(context)
        ]
    yield [(parent, child)]


def _same_source(text: str | None, child: str) -> bool:
    if text is None:
        return False
    # Equal text is the usual case, and costs no tokenising.
    return text.strip() == child.strip() or source_key(text) == source_key(child)


@lru_cache(maxsize=4096)
def write_answer(parent: str, child: str, fmt: AnswerFormat, language: str = "python") -> str | None:
    """An answer that turns ``parent`` into ``child`` in the host's hands.

    ``None`` if there is no such answer in this format: a program that itself holds diff markers or fences.
    """
    tagged = fmt.startswith("tagged")
    if fmt.endswith("full"):
        if "```" in child:
            return None
        program = f"```{language}\n{child.rstrip()}\n```"
        return in_tags("CODE", program) if tagged else f"The kernel, rewritten as a whole:\n\n{program}\n"
    if _MARKER_LINE.search(parent) or _MARKER_LINE.search(child):
        return None
    base, apply = (editable_part(parent), apply_in_place) if tagged else (parent, apply_blocks)
    for blocks in _diff_blocks(base, child):
        # A SEARCH of blank lines only would match nearly anywhere.
        if all(search.strip() for search, _ in blocks) and _same_source(apply(base, blocks), child):
            texts = [f"{_SEARCH}\n{old}\n{_DIVIDER}\n{new}\n{_REPLACE}" for old, new in blocks]
            change = "\n\n".join(texts)
            return in_tags("DIFF", change) if tagged else f"Change of the kernel:\n\n{change}\n"
    return None
