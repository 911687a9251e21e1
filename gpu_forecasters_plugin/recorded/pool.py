"""Pool files: distinct kernels for one operation, each with its measured outcome.

A pool file is JSON Lines, gzip-compressed or not. The first row is ``{"pool": {"task", "device",
"reference_id", ...}}``; every further row is a candidate with ``id``, ``code``, ``language``, ``outcome``,
``time_us`` (null unless ``ok``) and, optionally, ``spread``, ``error`` and ``neighbours`` (ids one
edit away). The pools that ship with the package are named in :mod:`.shipped`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.json_lines import parse_json_lines, read_json_lines
from gpu_forecasters_plugin.recorded import shipped
from gpu_forecasters_plugin.recorded.shipped import recorded_task_names
from gpu_forecasters_plugin.recorded.similarity import nearest_neighbours

__all__ = [
    "RecordedCandidate",
    "RecordedPool",
    "is_pool_path",
    "load_pool",
    "load_task",
    "open_pool",
    "recorded_references",
    "recorded_task_names",
]


@dataclass(frozen=True)
class RecordedCandidate:
    """One kernel of a pool. Immutable.

    Attributes:
        id: name within the pool.
        code: full source text.
        language: ``triton``, ``cuda``, ``pytorch`` or whatever the pool says.
        outcome: how its measurement ended.
        time_us: run time in microseconds, positive; ``None`` unless ``outcome`` is ``ok``.
        spread: relative spread of the repeated measurements (0.02 is two per cent), if recorded.
        neighbours: ids one edit away as the file has them; empty if it has none
            (:meth:`RecordedPool.neighbours` then finds the nearest).
        error: why it failed, if recorded.
    """

    id: str
    code: str = field(repr=False)
    language: str
    outcome: Outcome
    time_us: float | None = None
    spread: float | None = None
    neighbours: tuple[str, ...] = field(default=(), repr=False)
    error: str | None = None

    @cached_property
    def key(self) -> str:
        """Identity by normalised source; computed on first use (milliseconds for a long source)."""
        return source_key(self.code)


@dataclass(frozen=True, eq=False)
class RecordedPool:
    """A recorded task. Immutable; safe to share between threads and to pickle.

    Attributes:
        task: name of the recorded task.
        device: name of the device that it was measured on.
        operation: what the kernels compute; the task's name unless the file says more.
        reference_id: id of the kernel that speed-ups are relative to.
        header: the file's header as read.
        candidates: by id, in the order of the file.
        source: the name or path that :func:`open_pool` finds it by again.
        repeats: runs of a kernel that its time is the median of; 1 unless the file says more.
        shapes: the inputs that its times are of, in words; empty unless the file says more.
    """

    task: str
    device: str
    operation: str
    reference_id: str
    header: Mapping[str, Any] = field(repr=False)
    candidates: Mapping[str, RecordedCandidate] = field(repr=False)
    source: str = ""
    repeats: int = 1
    shapes: str = ""

    @property
    def label(self) -> str:
        """What tables call it: its task, with the device where it was opened as ``task@device``."""
        device = "" if is_pool_path(self.source) else self.source.partition("@")[2]
        return f"{self.task}@{device}" if device else self.task

    @property
    def reference(self) -> RecordedCandidate:
        """The kernel that speed-ups are relative to."""
        return self.candidates[self.reference_id]

    @cached_property
    def _by_key(self) -> dict[str, RecordedCandidate]:
        return {candidate.key: candidate for candidate in self.candidates.values()}

    @cached_property
    def _by_text(self) -> dict[str, RecordedCandidate]:
        return {candidate.code.strip(): candidate for candidate in self.candidates.values()}

    def by_key(self, key: str) -> RecordedCandidate | None:
        """The candidate of that identity, or ``None``. The first call computes every key."""
        return self._by_key.get(key)

    def find(self, code: str) -> RecordedCandidate | None:
        """The candidate with this source, comments and formatting apart, or ``None``."""
        # The same text, as a replayed search mostly sends it, needs no key at all.
        return self._by_text.get(code.strip()) or self.by_key(source_key(code))

    def speedup(self, candidate_id: str) -> float | None:
        """Reference time / candidate time (above 1 is faster); ``None`` for a failure.

        Raises:
            KeyError: no such candidate.
        """
        time_us = self.candidates[candidate_id].time_us
        reference_us = self.reference.time_us
        return None if time_us is None or reference_us is None else reference_us / time_us

    @cached_property
    def best_id(self) -> str:
        """Id of the fastest candidate; the earlier one of two equals."""
        return min(self.candidates, key=lambda name: self.candidates[name].time_us or math.inf)

    @cached_property
    def best_speedup(self) -> float:
        """Largest speed-up in the pool; at least 1, since the reference is in it."""
        return self.speedup(self.best_id) or 1.0

    @cached_property
    def _edges(self) -> dict[str, tuple[str, ...]]:
        # An edit can be undone, so an edge counts from both ends even if the file names it at one only.
        edges: dict[str, set[str]] = {name: set(c.neighbours) for name, c in self.candidates.items()}
        for name, candidate in self.candidates.items():
            for other in candidate.neighbours:
                edges[other].add(name)
        lonely = {name for name, others in edges.items() if not others}
        if lonely:
            names = list(self.candidates)
            found = nearest_neighbours([self.candidates[name].code for name in names])
            for name, others in zip(names, found, strict=True):
                near = {names[index] for index in others}
                edges[name] |= near if name in lonely else near & lonely
        return {name: tuple(sorted(others - {name})) for name, others in edges.items()}

    def neighbours(self, candidate_id: str) -> tuple[str, ...]:
        """Ids one edit away, sorted; symmetric.

        Where the file names none, the eight nearest by token shingles (the first such call compares the
        whole pool: about a second for 3,000 candidates).

        Raises:
            KeyError: no such candidate.
        """
        return self._edges[candidate_id]


def load_pool(path: str | PathLike[str], *, strict: bool = False) -> RecordedPool:
    """The pool in a ``.jsonl`` or ``.jsonl.gz`` file.

    Args:
        path: the file.
        strict: a repeated source (comments and formatting apart) is an error. Otherwise the first is kept,
            the later ones are left out with one warning, and edges to them lead to the first.

    Raises:
        PoolFileError: it cannot be read or is not a valid pool; names the file and the line.
    """
    from gpu_forecasters_plugin.recorded.reading import parse_pool

    file = Path(path)
    rows = read_json_lines(file, str(file), PoolFileError)
    return parse_pool(rows, name=str(file), strict=strict)


def load_task(name: str) -> RecordedPool:
    """A recorded task that ships with the package.

    Args:
        name: of the task (``cross_entropy``) or of a task on a device (``cross_entropy@h200``); see :mod:`.shipped`.

    Raises:
        PoolFileError: no such task, or it was not measured on that device; names the nearest right one.
    """
    from gpu_forecasters_plugin.recorded.reading import parse_pool

    name = shipped.existing_name(name)
    rows = parse_json_lines(shipped.pool_file(name).read_bytes(), name, PoolFileError)
    return parse_pool(rows, name=name, strict=True, distinct=True)


@lru_cache(maxsize=1)
def recorded_references() -> Mapping[str, str]:
    """Names of the recorded tasks that ship with the package, by identity of their reference."""
    return {load_task(name).reference.key: name for name in recorded_task_names()}


def is_pool_path(source: str | PathLike[str]) -> bool:
    """Whether a source means a pool file rather than the name of a recorded task.

    A ``Path`` is a path, and so is a text that ends in ``.jsonl`` or ``.gz`` or holds a path separator.
    """
    if not isinstance(source, str):
        return True
    return source.endswith((".jsonl", ".gz")) or "/" in source or "\\" in source


def open_pool(source: str | PathLike[str]) -> RecordedPool:
    """The recorded task of that name, shipped or a plugin's, or the pool file at that path (see :func:`is_pool_path`).

    A shipped task that was measured on several devices is that of one of them by ``task@device``.

    Raises:
        PoolFileError: there is no such task, or the file is not a valid pool.
        PluginError: a plugin is broken.
    """
    if is_pool_path(source):
        return load_pool(source)
    # Late: the registry holds the tasks of this package, which are loaded here.
    from gpu_forecasters_plugin.hookspecs import RecordedTaskFactory
    from gpu_forecasters_plugin.plugins import made_by, registry

    name = str(source)
    if name not in registry().names(RecordedTaskFactory):
        # Of a shipped task, the error names the devices.
        is_shipped = name.partition("@")[0] in recorded_task_names()
        name = shipped.existing_name(name) if is_shipped else shipped.name_of_file(name)
    entry = registry().find(RecordedTaskFactory, name, PoolFileError)
    # By this name it is found again, in whatever process.
    return replace(made_by(entry, entry.factory.load, RecordedPool, "cannot be loaded"), source=name)
