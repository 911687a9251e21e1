"""What the generators of recorded tasks share: a variant, its identity, and the graph of edits between variants."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_CODE_CHARACTERS = 8000
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


def make_variant(choices: Mapping[str, object], code: str, language: str) -> Variant:
    """Builds a variant from a dictionary of choices; the code is stripped and ends in one newline."""
    return Variant(make_key(choices), code.strip("\n") + "\n", language)


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


def distance(left: Variant, right: Variant) -> int:
    """Counts the choices in which two variants differ; one that only one of them has counts once."""
    a, b = left.choices, right.choices
    return sum(a.get(name) != b.get(name) for name in a.keys() | b.keys())


def edit_graph(
    variants: Sequence[Variant],
    extra_edges: Iterable[tuple[Mapping[str, object] | Key, Mapping[str, object] | Key]] = (),
    *,
    min_degree: int = 2,
    max_degree: int = 24,
) -> dict[str, list[str]]:
    """Connects the variants that are one edit apart.

    Two variants are neighbours if exactly one choice of their keys differs, or if `extra_edges` names the pair
    (by full keys, or dictionaries of them). Two broken variants never are: to trade one mistake for another is
    two edits. Whatever then has fewer than `min_degree` neighbours is joined to the sound variants nearest in
    distance, and separate parts of the graph are joined by their nearest pair. Above `max_degree`, edges that
    neither end needs and that nobody named are dropped, the longest-connected ends first.

    Args:
        variants: The pool; keys must be distinct.
        extra_edges: Pairs of keys, for example a change of algorithm between two families.
        min_degree: Every variant gets at least so many neighbours (if the pool is large enough).
        max_degree: The degree above which plain edges are thinned out.

    Returns:
        For each variant's id the sorted ids of its neighbours.
    """
    by_key = {variant.key: index for index, variant in enumerate(variants)}
    links: list[set[int]] = [set() for _ in variants]
    fixed: set[tuple[int, int]] = set()

    def join(i: int, j: int, *, keep: bool = False) -> None:
        links[i].add(j)
        links[j].add(i)
        if keep:
            fixed.add((min(i, j), max(i, j)))

    for i, left in enumerate(variants):
        for j in range(i):
            right = variants[j]
            if not (left.broken and right.broken) and distance(left, right) == 1:
                join(i, j, keep=left.broken or right.broken)
    for one, other in extra_edges:
        ends = [make_key(end) if isinstance(end, Mapping) else end for end in (one, other)]
        for end in ends:
            if end not in by_key:
                raise KeyError(f"extra edge names an unknown variant: {end}")
        join(by_key[ends[0]], by_key[ends[1]], keep=True)

    _thin(links, fixed, max_degree)

    for i, variant in enumerate(variants):
        if len(links[i]) >= min_degree:
            continue
        near = sorted(
            (distance(variant, other), len(links[j]), other.id, j)
            for j, other in enumerate(variants)
            if j != i and j not in links[i] and not other.broken
        )
        for _, _, _, j in near[: min_degree - len(links[i])]:
            join(i, j)

    while True:
        parts = _components(links)
        if len(parts) < 2:
            break
        smallest = min(parts, key=len)
        rest = set(range(len(variants))) - smallest
        options = [
            (
                variants[i].broken + variants[j].broken,
                distance(variants[i], variants[j]),
                variants[i].id,
                i,
                j,
            )
            for i in smallest
            for j in rest
        ]
        _, _, _, i, j = min(options)
        join(i, j)

    return {variant.id: sorted(variants[j].id for j in links[i]) for i, variant in enumerate(variants)}


def _thin(links: list[set[int]], fixed: set[tuple[int, int]], max_degree: int) -> None:
    """Drops plain edges between crowded variants until none exceeds `max_degree` by such edges."""
    edges = sorted((i, j) for i in range(len(links)) for j in links[i] if i < j and (i, j) not in fixed)
    # A deterministic shuffle, so that no end of the list is favoured.
    edges.sort(key=lambda edge: hashlib.sha256(f"{edge}".encode()).digest())
    for i, j in edges:
        if max(len(links[i]), len(links[j])) > max_degree and min(len(links[i]), len(links[j])) > 4:
            links[i].discard(j)
            links[j].discard(i)


def _components(links: list[set[int]]) -> list[set[int]]:
    """Returns the connected parts of the graph."""
    unseen = set(range(len(links)))
    parts = []
    while unseen:
        part: set[int] = set()
        stack = [unseen.pop()]
        while stack:
            node = stack.pop()
            part.add(node)
            new = links[node] & unseen
            unseen -= new
            stack.extend(new)
        parts.append(part)
    return parts


def edits_between(graph: Mapping[str, Sequence[str]], start: str) -> dict[str, int]:
    """Returns the number of edits from `start` to every variant that can be reached."""
    steps = {start: 0}
    frontier = [start]
    while frontier:
        following = []
        for node in frontier:
            for neighbour in graph[node]:
                if neighbour not in steps:
                    steps[neighbour] = steps[node] + 1
                    following.append(neighbour)
        frontier = following
    return steps


def fill(template: str, **slots: object) -> str:
    """Fills the ``@name@`` slots of a template.

    A slot that stands alone on its line takes several lines, indented as it is, and the line goes away if the
    value is empty. Raises KeyError for a slot without a value.
    """
    lines = []
    for line in template.strip("\n").split("\n"):
        alone = re.fullmatch(r"(\s*)@(\w+)@", line)
        if alone:
            text = str(slots[alone[2]])
            lines += [(alone[1] + part) if part.strip() else "" for part in text.split("\n")] if text else []
        else:
            lines.append(re.sub(r"@(\w+)@", lambda match: str(slots[match[1]]), line))
    return "\n".join(lines) + "\n"


def reskin(code: str, key: Key, renames: Mapping[str, Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Gives a source another author's manner: other names, with or without comments, with a docstring.

    The manner follows from the hash of the key, so that it says nothing about speed.

    Args:
        code: The source.
        key: The variant's choices.
        renames: For a name the names that other authors would use; one list index serves all of them.
        notes: Texts for a module docstring, one of which some authors write.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    if renames:
        author = digest[0] % (1 + max(len(names) for names in renames.values()))
        if author:
            table = {name: names[(author - 1) % len(names)] for name, names in renames.items()}
            names = "|".join(map(re.escape, table))
            # A lower-case name before "=" without a space is a keyword argument of somebody else's function.
            code = re.sub(rf"(?<![\w.])({names})\b(?!(?<=[a-z])=\S)", lambda m: table[m[1]], code)
    manner = digest[1] % 3
    if manner == 1:
        code = re.sub(r"(?m)^[ \t]*# .*\n", "", code)
    elif manner == 2 and notes and not code.lstrip().startswith('"""'):
        code = f'"""{notes[digest[2] % len(notes)]}"""\n\n' + code
    return code
