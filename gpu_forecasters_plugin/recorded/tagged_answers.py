"""Answers as ShinkaEvolve reads them: in tags, and changing nothing but what is between its two markers."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["BLOCK_END", "BLOCK_START", "apply_in_place", "editable_part", "in_tags"]

BLOCK_START, BLOCK_END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"

_EDITABLE = re.compile(
    rf"^[^\n]*{BLOCK_START}[^\n]*\n(.*)^[^\n]*{BLOCK_END}[^\n]*$", re.DOTALL | re.MULTILINE
)


def editable_part(code: str) -> str:
    """The lines between the markers; everything where there are none."""
    match = _EDITABLE.search(code)
    return match.group(1) if match else code


def apply_in_place(code: str, blocks: Iterable[tuple[str, str]]) -> str | None:
    """What ShinkaEvolve makes of SEARCH/REPLACE blocks; ``None`` if a SEARCH does not occur.

    Lines of a block lose trailing white space; the first match in the text is replaced, whole lines or not.
    """
    for search, replacement in blocks:
        # Its pattern takes blank lines at the start of a part for white space after the marker line.
        wanted, new = (_stripped(part) for part in (search, replacement))
        if wanted not in code:
            return None
        code = code.replace(wanted, new, 1)
    return code


def _stripped(part: str) -> str:
    lines = [line.rstrip() for line in part.split("\n")]
    while lines and not lines[0]:
        del lines[0]
    return "\n".join(lines)


def in_tags(name: str, content: str) -> str:
    """An answer with the parts that the prompt asks for.

    Args:
        name: ``DIFF`` or ``CODE``.
        content: the blocks, or the fenced program.
    """
    head = "<NAME>\nrecorded_step\n</NAME>\n\n<DESCRIPTION>\nA step in the recorded edit graph.\n</DESCRIPTION>\n\n"
    return f"{head}<{name}>\n{content}\n</{name}>\n"
