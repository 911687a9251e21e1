"""A variant: one kernel source of a pool, and its identity."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_CODE_CHARACTERS = 12000
LANGUAGES = ("triton", "cuda", "pytorch")

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Variant:
    """One kernel source of a pool, with the choices that made it.

    Attributes:
        key: The choices, as sorted (name, value) pairs; two variants are one edit apart if one pair differs.
        code: A full, self-contained Python module that defines ``run(*inputs)``.
        language: ``triton``, ``cuda`` (CUDA C++ built from within the module) or ``pytorch``.
    """

    key: Key
    code: str
    language: str

    @property
    def id(self) -> str:
        """A short, stable identifier: the hash of the source text."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:12]

    @property
    def choices(self) -> dict[str, str]:
        """The key as a dictionary."""
        return dict(self.key)

    @property
    def broken(self) -> bool:
        """Whether the variant was made to fail (its key has an entry ``bug``)."""
        return "bug" in self.choices


def make_key(choices: Mapping[str, object]) -> Key:
    """Returns the sorted, textual form of a variant's choices; choices that are None are left out."""
    return tuple(sorted((name, str(value)) for name, value in choices.items() if value is not None))


def normalised(variant: Variant) -> str:
    """Returns the source without comments, blank lines and differences of white space."""
    text = variant.code
    c = variant.language == "cuda"
    try:
        parts = [
            (
                token.type,
                _without_c_comments(token.string) if token.type == tokenize.STRING and c else token.string,
            )
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)
        ]
        text = " ".join(string if kind != tokenize.INDENT else "<indent>" for kind, string in parts)
    except (tokenize.TokenError, SyntaxError):
        text = re.sub(r"(?m)#(?!\s*(include|define|pragma|if|endif|else|undef)).*$", "", text)
    return " ".join(text.split())


def _without_c_comments(text: str) -> str:
    return re.sub(r"//.*", " ", re.sub(r"/\*.*?\*/", " ", text, flags=re.S))


def check_distinct(variants: Sequence[Variant]) -> None:
    """Raises ValueError if two variants share a key or a source, or if one breaks the contract."""
    keys: dict[Key, Variant] = {}
    sources: dict[str, Variant] = {}
    for variant in variants:
        if variant.language not in LANGUAGES:
            raise ValueError(f"unknown language {variant.language!r}: {variant.key}")
        if len(variant.code) >= MAX_CODE_CHARACTERS:
            raise ValueError(f"source of {len(variant.code)} characters: {variant.key}")
        if tuple(sorted(variant.key)) != variant.key:
            raise ValueError(f"unsorted key: {variant.key}")
        if variant.key in keys:
            raise ValueError(f"two variants with the key {variant.key}")
        keys[variant.key] = variant
        source = normalised(variant)
        if source in sources:
            raise ValueError(f"same source: {sources[source].key} and {variant.key}")
        sources[source] = variant
