"""Source texts compared in bulk: possible duplicates, and nearest neighbours by shared token shingles."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

__all__ = ["nearest_neighbours", "possible_duplicates"]

_SHINGLE = 3
_DIMENSIONS = 2048
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPACE = re.compile(r"\s+")
_PYTHON_STRING_OR_COMMENT = re.compile(
    r"('''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")|#[^\n]*",
    re.DOTALL,
)
_C_STRING_OR_COMMENT = re.compile(
    r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')", re.DOTALL
)


def _without_c_comments(text: str) -> str:
    return _SPACE.sub("", _C_STRING_OR_COMMENT.sub(lambda match: match.group(1) or " ", text))


def _without_python_comments(text: str) -> str:
    # Strings may hold CUDA C++ whose comments do not count either; all of them are stripped, because a
    # fingerprint may be coarser than the identity but never finer.
    return _SPACE.sub(
        "",
        _PYTHON_STRING_OR_COMMENT.sub(
            lambda match: _without_c_comments(match.group(1)) if match.group(1) else " ", text
        ),
    )


def possible_duplicates(codes: Sequence[str]) -> list[int]:
    """Indices of the sources that may have the same normalised text as another one, ascending.

    Two cheap fingerprints (comments and white space out, read as Python and as C) are at least as coarse
    as :func:`~gpu_forecasters_plugin.candidate.normalise_source`, which costs twenty times as much: only
    what collides here needs the real key.
    """
    suspects: set[int] = set()
    for fingerprint in (_without_python_comments, _without_c_comments):
        first: dict[str, int] = {}
        for index, code in enumerate(codes):
            earlier = first.setdefault(fingerprint(code), index)
            if earlier != index:
                suspects.update((earlier, index))
    return sorted(suspects)


def _shingle_matrix(codes: Sequence[str]) -> Any:
    import numpy as np

    matrix = np.zeros((len(codes), _DIMENSIONS), dtype=np.float32)
    for row, code in enumerate(codes):
        tokens = _TOKEN.findall(code)
        last = max(1, len(tokens) - _SHINGLE + 1)
        shingles = {" ".join(tokens[start : start + _SHINGLE]) for start in range(last)}
        # crc32, not hash(): neighbours must be the same in every process.
        matrix[row, [zlib.crc32(s.encode("utf-8", "surrogatepass")) % _DIMENSIONS for s in shingles]] = 1.0
    return matrix


def _component(adjacency: Sequence[set[int]], start: int) -> set[int]:
    seen, frontier = {start}, [start]
    while frontier:
        for other in adjacency[frontier.pop()] - seen:
            seen.add(other)
            frontier.append(other)
    return seen


def nearest_neighbours(codes: Sequence[str], k: int = 8) -> list[tuple[int, ...]]:
    """For each source, the indices of those most like it, ascending.

    Likeness is the Jaccard similarity of the sets of hashed three-token shingles. The relation is made
    symmetric (so a popular source may have more than ``k``), and components that would stay apart are
    joined by their most similar pair, so that an edit walk can reach the whole pool. Takes about
    ``4 n**2`` bytes: meant for pools of up to some ten thousand sources.
    """
    import numpy as np

    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    count = len(codes)
    if count < 2:
        return [()] * count
    matrix = _shingle_matrix(codes)
    sizes = matrix.sum(axis=1)
    shared = matrix @ matrix.T
    similarity = shared / np.maximum(sizes[:, None] + sizes[None, :] - shared, 1.0)
    np.fill_diagonal(similarity, -1.0)
    # A stable sort breaks ties by position in the file, the same everywhere.
    order = np.argsort(-similarity, axis=1, kind="stable")[:, : min(k, count - 1)]
    adjacency: list[set[int]] = [set() for _ in range(count)]
    for index, row in enumerate(order.tolist()):
        for other in row:
            adjacency[index].add(other)
            adjacency[other].add(index)
    reached = _component(adjacency, 0)
    while len(reached) < count:
        inside = np.array(sorted(reached))
        outside = np.array(sorted(set(range(count)) - reached))
        block = similarity[np.ix_(inside, outside)]
        here, there = divmod(int(block.argmax()), len(outside))
        source, target = int(inside[here]), int(outside[there])
        adjacency[source].add(target)
        adjacency[target].add(source)
        reached |= _component(adjacency, target)
    return [tuple(sorted(others)) for others in adjacency]
