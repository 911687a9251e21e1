"""How the generator of a recorded task is built: families draft sources, a pool collects them.

A *family* is a function from a few choices to a `Draft`: it fills a template with them. Whatever a task needs to name
one of its sources, to put it into the pool, to break it, to wrap it or to link it, it calls the family:

    pool = Pool()
    pool.add(two_pass(block, warps) for block, warps in product((256, 1024), (4, 8)))
    pool.add_broken(two_pass(256, 4), half_row={"range(0, n, BLOCK)": "range(0, n // 2, BLOCK)"})
    pool.link(two_pass(1024, 8), full_row(8))

The keys of a pool are distinct, and whatever is broken or linked must be in it: a slip raises ValueError.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.generators.text import Manner, wrap_run
from benchmarks.generators.variant import Key, Variant, make_key

# Stands in a draft for a number made from the variant's key, where no two sources may share a name.
KEY_HASH = "<key hash>"


@dataclass(frozen=True)
class Draft:
    """A source as its family writes it, before it gets its author's manner.

    Attributes:
        choices: What made it; those that are None do not count.
        code: The text, with `KEY_HASH` where the key's hash belongs.
        language: See `Variant`.
        manner: The manners to choose from; None leaves the text as it is.
    """

    choices: Mapping[str, object]
    code: str
    language: str = "triton"
    manner: Manner | None = None

    @property
    def key(self) -> Key:
        """The key of the variant that this becomes."""
        return make_key(self.choices)

    def variant(self) -> Variant:
        """The finished source; it ends in one newline."""
        code = self.code.replace(KEY_HASH, f"{zlib.crc32(repr(self.key).encode()):08x}")
        if self.manner:
            code = self.manner.rewrite(code, self.key)
        return Variant(self.key, code.strip("\n") + "\n", self.language)

    def broken(self, bug: str, changes: Mapping[str, str]) -> Draft:
        """The same with a mistake: each text is replaced by another, every place where it occurs."""
        code = self.code
        for old, new in changes.items():
            if old not in code:
                raise ValueError(f"no place for the mistake {bug}: {old!r} is not in {self.key}")
            code = code.replace(old, new)
        return replace(self, choices={**self.choices, "bug": bug}, code=code)

    def wrapped(self, wrap: str, outer: str) -> Draft:
        """The finished source inside a ``run`` of another hand; see `wrap_run`."""
        code = wrap_run(self.variant().code, outer)
        return Draft({**self.choices, "wrap": wrap}, code, self.language)


class Pool:
    """Collects the variants of a task, in order, and the edits between them that it names.

    Args:
        steps: What fills the pool, one after the other.

    Attributes:
        edges: The pairs of keys that were linked: the edits that `edit_graph` cannot tell from the keys.
    """

    def __init__(self, *steps: Callable[[Pool], None]) -> None:
        self._variants: dict[Key, Variant] = {}
        self.edges: list[tuple[Key, Key]] = []
        for step in steps:
            step(self)

    @property
    def variants(self) -> list[Variant]:
        """All variants, in the order in which they came."""
        return list(self._variants.values())

    def add(self, drafts: Iterable[Draft]) -> None:
        """Finishes the drafts and takes them in."""
        for draft in drafts:
            if draft.key in self._variants:
                raise ValueError(f"two variants with the key {draft.key}")
            self._variants[draft.key] = draft.variant()

    def add_broken(self, parent: Draft, **mistakes: Mapping[str, str]) -> None:
        """Takes in one failing variant per mistake; each says what text it replaces by what."""
        self._require(parent)
        self.add(parent.broken(bug, changes) for bug, changes in mistakes.items())

    def add_wrapped(self, parents: Iterable[Draft], wraps: Mapping[str, str]) -> None:
        """Takes in each parent inside each wrapper; a wrapper is the text of a ``run`` that calls ``launch``."""
        self.add(parent.wrapped(wrap, outer) for parent in parents for wrap, outer in wraps.items())

    def link(self, *path: Draft) -> None:
        """Makes each step along the path count as one edit: a change of algorithm, say."""
        for draft in path:
            self._require(draft)
        self.edges += pairwise(draft.key for draft in path)

    def link_retuned(self) -> None:
        """Makes it one edit to change two sizes of a sound variant together."""
        sound = [variant for variant in self.variants if not variant.broken]
        for index, variant in enumerate(sound):
            self.edges += [
                (variant.key, other.key)
                for other in sound[:index]
                if _retuned(variant.choices, other.choices)
            ]

    def _require(self, draft: Draft) -> None:
        if draft.key not in self._variants:
            raise ValueError(f"not in the pool: {draft.key}")


def _retuned(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tells whether only two sizes differ, neither by more than a factor of 4."""
    if one.keys() != other.keys():
        return False
    pairs = [(one[name], other[name]) for name in one if one[name] != other[name]]
    if len(pairs) != 2 or not all(a.isdigit() and b.isdigit() for a, b in pairs):
        return False
    return all(max(int(a), int(b)) <= 4 * min(int(a), int(b)) for a, b in pairs)
