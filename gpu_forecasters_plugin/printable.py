"""Text of unknown origin, as a terminal can show it."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

__all__ = ["listed", "printable"]

_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and format characters, lone surrogates, line and paragraph separators."""


def printable(text: str) -> str:
    """The text on one line, with what would steer a terminal, or what no encoding takes, as an escape."""
    return "".join(
        ascii(character)[1:-1] if unicodedata.category(character) in _HARMFUL else character
        for character in text
    )


def listed(names: Collection[object], most: int = 5) -> str:
    """The first ``most`` names, and how many more there are."""
    first = ", ".join(str(name) for name, _ in zip(names, range(most), strict=False))
    return first if len(names) <= most else f"{first} and {len(names) - most} more"
