"""Kernels that are too long for a prompt: how long they are, and how their middle is left out."""

from __future__ import annotations

import math

__all__ = ["CHARACTERS_PER_TOKEN", "MIN_KERNEL_TOKENS", "estimated_tokens", "trim"]

CHARACTERS_PER_TOKEN = 1.8
"""Fewer than any kernel of the recorded tasks has with the tokenizer of a small model (SmolLM2: 1.9 to 4.0, half of
them under 2.5); a larger vocabulary takes fewer tokens."""
_LONGEST_LINE_SHARE = 4
_MARKER_TOKENS = 34
MIN_KERNEL_TOKENS = 4 * _MARKER_TOKENS
"""Below this the markers would be most of what is left."""


def estimated_tokens(text: str) -> int:
    """Tokens that a text will take, by its length alone: no tokenizer of the endpoint's model is at hand.

    A token per 1.8 ASCII characters, and one per UTF-8 byte of the others, which is the most that a byte-level
    tokenizer can make of them. Only text that is nothing like code (random symbols) takes more.
    """
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size == len(text):
        return math.ceil(size / CHARACTERS_PER_TOKEN)
    ascii_count = sum(character < "\x80" for character in text)
    return math.ceil(ascii_count / CHARACTERS_PER_TOKEN) + size - ascii_count


def trim(text: str, max_tokens: int) -> tuple[str, int]:
    """The text within a budget of estimated tokens, and how many were left out.

    The beginning and the end of a program say most about it (parameters; launch), so the middle goes: first out of
    lines that take more than a quarter of the budget, then whole lines. A marker says in each place how much is
    missing.

    Args:
        text: a kernel's source.
        max_tokens: the budget, at least :data:`MIN_KERNEL_TOKENS`.
    """
    tokens = estimated_tokens(text)
    if tokens <= max_tokens:
        return text, 0
    lines = [_shortened(line, max_tokens // _LONGEST_LINE_SHARE) for line in text.split("\n")]
    kept = "\n".join(lines)
    if estimated_tokens(kept) > max_tokens:
        kept = _without_middle(lines, max_tokens - _MARKER_TOKENS)
    return kept, max(1, tokens - estimated_tokens(kept))


def _without_middle(lines: list[str], room: int) -> str:
    """The first and the last lines that fit, each into half of the room, with the marker between them."""
    head = _fitting(lines, room // 2)
    tail = _fitting(lines[::-1], room - room // 2)
    missing = len(lines) - head - tail
    marker = f"[... {missing} lines of this kernel are left out here ...]"
    return "\n".join([*lines[:head], marker, *lines[len(lines) - tail :]])


def _fitting(lines: list[str], room: int) -> int:
    """How many of the first lines fit."""
    for count, line in enumerate(lines):
        room -= estimated_tokens(line + "\n")
        if room < 0:
            return count
    return len(lines)


def _shortened(line: str, max_tokens: int) -> str:
    """A line of at most so many tokens."""
    if estimated_tokens(line) <= max_tokens:
        return line
    keep = len(line) // 2
    while keep and estimated_tokens(line[:keep] + line[-keep:]) > max_tokens - _MARKER_TOKENS:
        keep = keep * 3 // 4
    missing = len(line) - 2 * keep
    return (
        f"{line[:keep]} [... {missing} characters of this line are left out ...] {line[len(line) - keep :]}"
    )
