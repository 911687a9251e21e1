"""Parsing Python text, from as many threads as like."""

from __future__ import annotations

import ast
import os
import threading
import warnings
from contextlib import suppress

__all__ = ["parse_python"]

_RETRIES = 20

_parsing = threading.RLock()
"""CPython up to 3.11.7 and 3.12.1 counts the depth of all trees that are built at once in one place: a thread that
takes over in the middle of another's tree spoils it (python/cpython issue 106905). `warnings.catch_warnings` is no
better."""


def _renew_lock() -> None:
    global _parsing
    _parsing = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def parse_python(text: str) -> ast.Module | None:
    """The syntax tree of a text; ``None`` where it is not Python, or too deep for the parser.

    Raises:
        SystemError: the interpreter's parser failed again and again; says nothing about the text.
    """
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a candidate's own SyntaxWarnings are nobody's business here
        for _ in range(_RETRIES):
            with suppress(
                SystemError
            ):  # spoilt by somebody else's parsing, which the lock does not hold back
                return _tree(text)
        return _tree(text)


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
