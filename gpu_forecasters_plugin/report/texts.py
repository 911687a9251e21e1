"""Text of unknown origin, as a page can show it: inert, and no longer than anybody reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.printable import printable

__all__ = ["CodeLine", "code_lines", "diff_lines", "on_one_line"]

_LONGEST_TEXT = 400
_LONGEST_LINE = 240
_MOST_LINES = 400
_MOST_COMPARED = 3000
"""Lines of each source that a diff looks at: it takes time that grows with their product."""
_TAB = 4


@dataclass(frozen=True)
class CodeLine:
    """A line of a source or of a diff.

    Attributes:
        kind: ``added``, ``removed``, ``place`` (where in the file), ``note`` (our own words) or ``same``.
        text: what to show, without line end.
    """

    kind: str
    text: str


def _cut(text: str, longest: int) -> str:
    """The beginning of a text, and how much of it is missing."""
    left = len(text) - longest
    return text if left <= 0 else f"{text[:longest]} … [{left:,} more characters]"


def on_one_line(text: str) -> str:
    """Any text, cut, with control and format characters as escapes."""
    return printable(_cut(text, _LONGEST_TEXT))


def _lines(source: str) -> list[str]:
    return source.replace("\r\n", "\n").split("\n")


def _shown(line: str) -> str:
    # Cut before tabs are widened: a megabyte of tabs would be four.
    return printable(_cut(line, _LONGEST_LINE).expandtabs(_TAB))


def _bounded(lines: Iterable[CodeLine], total: int) -> list[CodeLine]:
    shown = [line for _, line in zip(range(_MOST_LINES), lines, strict=False)]
    left = total - len(shown)
    return [*shown, CodeLine("note", f"… {left:,} more lines")] if left > 0 else shown


def code_lines(source: str) -> list[CodeLine]:
    """The lines of a source: cut where they are long, and no more than anybody reads."""
    lines = _lines(source.rstrip("\n"))
    return _bounded((CodeLine("same", _shown(line)) for line in lines), len(lines))


def diff_lines(before: str, after: str) -> list[CodeLine]:
    """Unified diff from one source to another; empty when both have the same lines."""
    old, new = _lines(before), _lines(after)
    notes = [
        CodeLine(
            "note", f"only the first {_MOST_COMPARED:,} of {len(lines):,} lines of the {name} are compared"
        )
        for name, lines in (("reference", old), ("best kernel", new))
        if len(lines) > _MOST_COMPARED
    ]
    unified = difflib.unified_diff(old[:_MOST_COMPARED], new[:_MOST_COMPARED], lineterm="", n=3)
    compared: Sequence[str] = list(unified)[2:]  # without the names of files that are none
    return [*notes, *_bounded(map(_diff_line, compared), len(compared))]


def _diff_line(line: str) -> CodeLine:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return CodeLine(kinds.get(line[0], "same"), line[0] + _shown(line[1:]))
