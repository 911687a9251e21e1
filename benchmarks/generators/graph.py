"""The graph of edits between the variants of a pool."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.generators.variant import Key, Variant

MIN_DEGREE = 2
MAX_DEGREE = 24


def distance(left: Variant, right: Variant) -> int:
    """Counts the choices in which two variants differ; one that only one of them has counts once."""
    a, b = left.choices, right.choices
    return sum(a.get(name) != b.get(name) for name in a.keys() | b.keys())


def edit_graph(
    variants: Sequence[Variant], named_edges: Iterable[tuple[Key, Key]] = ()
) -> dict[str, list[str]]:
    """Connects the variants that are one edit apart.

    Two variants are neighbours if exactly one choice of their keys differs, or if `named_edges` has the pair. Two
    broken variants never are: to trade one mistake for another is two edits. Above `MAX_DEGREE`, edges that nobody
    named and that lead to no broken variant are dropped, in an order that favours none. Whatever has fewer than
    `MIN_DEGREE` neighbours is joined to the sound variants nearest in distance, and separate parts of the graph are
    joined by their nearest pair.

    Args:
        variants: The pool; keys must be distinct.
        named_edges: Pairs of keys, for example a change of algorithm between two families.

    Returns:
        For each variant's id the sorted ids of its neighbours.
    """
    graph = _EditGraph(variants)
    graph.join_single_edits()
    graph.join_named(named_edges)
    graph.thin()
    graph.join_lonely()
    graph.join_parts()
    return graph.neighbours()


class _EditGraph:
    """A graph of edits while it is built; a variant is its index."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = variants
        self.links: list[set[int]] = [set() for _ in variants]
        self.kept: set[tuple[int, int]] = set()

    def join(self, i: int, j: int, *, keep: bool = False) -> None:
        """Makes two variants neighbours, for good if `keep` is set."""
        self.links[i].add(j)
        self.links[j].add(i)
        if keep:
            self.kept.add((min(i, j), max(i, j)))

    def join_single_edits(self) -> None:
        """Joins what differs in one choice; the few edges of broken variants stay."""
        for i, left in enumerate(self.variants):
            for j, right in enumerate(self.variants[:i]):
                if not (left.broken and right.broken) and distance(left, right) == 1:
                    self.join(i, j, keep=left.broken or right.broken)

    def join_named(self, edges: Iterable[tuple[Key, Key]]) -> None:
        """Joins pairs of keys; raises KeyError if there is no such variant."""
        by_key = {variant.key: index for index, variant in enumerate(self.variants)}
        for one, other in edges:
            self.join(by_key[one], by_key[other], keep=True)

    def thin(self) -> None:
        """Drops edges that need not be kept, between crowded variants."""
        edges = [
            (i, j) for i, near in enumerate(self.links) for j in near if i < j and (i, j) not in self.kept
        ]
        # A deterministic shuffle, so that no end of the list is favoured.
        edges.sort(key=lambda edge: hashlib.sha256(f"{edge}".encode()).digest())
        for i, j in edges:
            degrees = len(self.links[i]), len(self.links[j])
            if max(degrees) > MAX_DEGREE and min(degrees) > 4:
                self.links[i].discard(j)
                self.links[j].discard(i)

    def join_lonely(self) -> None:
        """Joins whatever has too few neighbours to the nearest sound variants."""
        for i, variant in enumerate(self.variants):
            missing = MIN_DEGREE - len(self.links[i])
            if missing <= 0:
                continue
            near = sorted(
                (distance(variant, other), len(self.links[j]), other.id, j)
                for j, other in enumerate(self.variants)
                if j != i and j not in self.links[i] and not other.broken
            )
            for *_, j in near[:missing]:
                self.join(i, j)

    def join_parts(self) -> None:
        """Joins the smallest part to the rest by its nearest pair, until the graph is one."""
        while len(parts := self.parts()) > 1:
            smallest = min(parts, key=len)
            rest = set(range(len(self.variants))) - smallest
            self.join(*min(((i, j) for i in smallest for j in rest), key=self._remoteness))

    def _remoteness(self, pair: tuple[int, int]) -> tuple[int, int, str, int, int]:
        i, j = pair
        left, right = self.variants[i], self.variants[j]
        return left.broken + right.broken, distance(left, right), left.id, i, j

    def parts(self) -> list[set[int]]:
        """The connected parts."""
        unseen = set(range(len(self.links)))
        parts = []
        while unseen:
            part: set[int] = set()
            stack = [unseen.pop()]
            while stack:
                node = stack.pop()
                part.add(node)
                new = self.links[node] & unseen
                unseen -= new
                stack.extend(new)
            parts.append(part)
        return parts

    def neighbours(self) -> dict[str, list[str]]:
        """The sorted ids of each variant's neighbours."""
        return {
            variant.id: sorted(self.variants[j].id for j in near)
            for variant, near in zip(self.variants, self.links, strict=True)
        }


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
