"""A proposed kernel and its identity.

Two sources are the same candidate when they differ in comments, blank lines and formatting only. The
identity is computed once, here, and used for duplicates, ledger keys and seeded tie-breaking.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from gpu_forecasters_plugin.python_syntax import parse_python

__all__ = ["MAX_SOURCE_CHARACTERS", "Candidate", "decode_source", "normalise_source", "source_key"]

MAX_SOURCE_CHARACTERS = 512 * 1024
"""Longer sources are refused as ``invalid_source``: no forecaster reads half a million characters."""

_LAYOUT_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER}
# Python 3.12 and newer take f-strings apart (3.14 template strings too); before, each was one token.
_LITERAL_STARTS = {getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")}
_LITERAL_ENDS = {getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")}
_C_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL)
_C_STRING_MARK = re.compile(r"__global__|#include|__device__")
_DIRECTIVE = re.compile(r"^#(?:define|include|pragma|undef|if|ifdef|ifndef|endif)\b", re.MULTILINE)
_DIRECTIVE_LINE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*$", re.MULTILINE)
_C_FAMILY = re.compile(
    r"__global__|__device__|;\s*(?:$|\}|//|/\*)|^\s*(?:#include\b|#define\b|//|/\*)", re.MULTILINE
)
_SPACE = re.compile(r"\s+")


def decode_source(data: bytes) -> str:
    """Text of a source file as a host wrote it.

    UTF-8 with or without byte-order mark; bytes that are not UTF-8 become surrogate escapes, so that nothing
    is lost and the identity stays one to one.
    """
    return data.decode("utf-8-sig", errors="surrogateescape")


def _normalise_c(text: str) -> str:
    """C-family text without comments; white space folded to one blank, but where a directive ends."""
    text = _C_COMMENT.sub(lambda match: match.group(1) or " ", text)
    text = _DIRECTIVE_LINE.sub(lambda match: f"\x00{match.group().strip()}\x00", text)
    return _SPACE.sub(" ", text).strip()


def _normalise_lines(text: str) -> str:
    """Text of no known language: trailing blanks and blank lines out."""
    return "\n".join(line for raw in text.split("\n") if (line := raw.rstrip()))


def _is_python(text: str) -> bool:
    """Whether it parses as Python and is no file of preprocessor lines, which Python reads as comments."""
    tree = parse_python(text)
    if tree is None:
        return False
    return bool(tree.body) or _DIRECTIVE.search(text) is None


def _python_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Type and text of each token, a string literal of any kind in one piece: the same under every Python."""
    lines = io.StringIO(text).readlines()
    open_literals: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
        if token.type in _LITERAL_STARTS:
            open_literals.append(token.start)
        if not open_literals:
            yield token.type, token.string
        elif token.type in _LITERAL_ENDS:
            (row, column), (last_row, last_column) = open_literals.pop(), token.end
            if not open_literals:
                within = [*lines[row - 1 : last_row - 1], lines[last_row - 1][:last_column]]
                yield tokenize.STRING, "".join(within)[column:]


def _normalise_python(text: str) -> str:
    """Token stream of Python text; CUDA C++ inside string literals is normalised as C.

    Raises:
        SyntaxError: the text does not tokenise as Python.
        tokenize.TokenError: likewise.
    """
    parts: list[str] = []
    for kind, string in _python_tokens(text):
        if kind in _LAYOUT_TOKENS:
            # A logical line's end is meaning in Python; a run of them is not.
            if kind == tokenize.NEWLINE:
                parts.append("\n")
        elif kind == tokenize.INDENT:
            parts.append("\x01")
        elif kind == tokenize.DEDENT:
            parts.append("\x02")
        elif kind == tokenize.STRING and _C_STRING_MARK.search(string):
            parts.append(_normalise_c(string))
        else:
            parts.append(string)
    return "\x00".join(parts)


def normalise_source(text: str) -> str:
    """The part of a source that matters for identity.

    Python (Triton, PyTorch) is compared token by token, C-family text without comments and with white space
    folded. What is neither, or Python too new for this interpreter, is compared line by line: measuring twice
    is better than one answer for two different kernels.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if _is_python(text):
        try:
            return _normalise_python(text)
        except (SyntaxError, tokenize.TokenError):
            pass  # the tokeniser is stricter than the parser in places
    return _normalise_c(text) if _C_FAMILY.search(text) else _normalise_lines(text)


def source_key(text: str) -> str:
    """Hash (32 hex digits) of the normalised source: the identity of a candidate."""
    return _hash(normalise_source(text))


def _source_problem(text: str, normalised: str) -> str | None:
    """Why a source cannot be a kernel at all, or ``None``; only what is certain without a compiler."""
    if len(text) > MAX_SOURCE_CHARACTERS:
        return f"source has {len(text):,} characters; the limit is {MAX_SOURCE_CHARACTERS:,}"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"source is not valid UTF-8 (character {error.start})"
    if not normalised.strip("\x00\x01\x02\n "):
        return "source is empty but for comments and blank space"
    return None


@lru_cache(maxsize=64)
def _remembered_key(text: str) -> str:
    """As :func:`source_key`; the children of a parent come one after the other."""
    return source_key(text)


def _hash(normalised: str) -> str:
    return hashlib.sha256(normalised.encode("utf-8", errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Candidate:
    """A proposed kernel.

    Attributes:
        id: name that the host knows it by; unique within a run.
        code: full source text, as the host would measure it.
        parent_code: source of the program that it was derived from, when the host tells.
        key: identity by normalised source (see :func:`source_key`); computed.
        problem: why the source cannot be a kernel at all (empty, not UTF-8, too long); computed.
    """

    id: str
    code: str
    parent_code: str | None = None
    key: str = field(init=False, repr=False, compare=False)
    problem: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("candidate id must not be empty")
        # Too long to read is too long to normalise: its identity is then the plain text's.
        readable = len(self.code) <= MAX_SOURCE_CHARACTERS
        normalised = normalise_source(self.code) if readable else self.code
        object.__setattr__(self, "key", _hash(normalised))
        object.__setattr__(self, "problem", _source_problem(self.code, normalised))

    @property
    def parent_key(self) -> str | None:
        """Identity of the program that it was derived from, when the host tells."""
        return None if self.parent_code is None else _remembered_key(self.parent_code)
