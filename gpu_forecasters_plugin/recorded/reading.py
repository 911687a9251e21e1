"""Reads and checks the rows of a pool file (the format is described in :mod:`.pool`)."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.recorded.pool import RecordedCandidate, RecordedPool
from gpu_forecasters_plugin.recorded.similarity import possible_duplicates

__all__ = ["parse_pool"]

_TIME_RANGE_US = (1e-6, 1e12)
"""Times beyond are no times of kernels, and their ratios would leave what a number can hold."""

_MOST_REPEATS = 10**9
_LONGEST_SHAPES = 2000
_LONGEST_NAMES = {"task": 400, "operation": 400, "device": 200}
"""As a ledger takes them."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise PoolFileError(f"{where}: {key!r} must be a non-empty text, got {value!r:.60}")
    return value


def _name(row: Mapping[str, Any], key: str, where: str) -> str:
    """A text that titles, file names and databases take."""
    value = _text(row, key, where)
    if _CONTROL.search(value):
        raise PoolFileError(f"{where}: {key!r} must be one line of text, got {ascii(value):.60}")
    longest = _LONGEST_NAMES[key]
    if len(value) > longest:
        raise PoolFileError(f"{where}: {key!r} must be at most {longest} characters, got {value:.60}...")
    return value


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number beyond every float
        pass
    raise PoolFileError(f"{where}: {key!r} must be a finite number or null, got {value!r:.60}")


def _outcome(row: Mapping[str, Any], where: str) -> Outcome:
    text = _text(row, "outcome", where)
    try:
        return Outcome(text)
    except ValueError:
        raise PoolFileError(f"{where}: unknown outcome {text!r}; known: {', '.join(Outcome)}") from None


def _candidate(row: Mapping[str, Any], where: str) -> RecordedCandidate:
    """One candidate, checked for everything that can be seen in its row alone."""
    name = _text(row, "id", where)
    where = f"{where} (id {name!r})"
    outcome = _outcome(row, where)
    time_us, spread = _number(row, "time_us", where), _number(row, "spread", where)
    if outcome is Outcome.OK and (time_us is None or time_us <= 0):
        raise PoolFileError(f"{where}: outcome 'ok' needs a positive 'time_us', got {time_us}")
    if outcome is not Outcome.OK and time_us is not None:
        raise PoolFileError(f"{where}: outcome {str(outcome)!r} must not have a 'time_us', got {time_us}")
    if time_us is not None and not _TIME_RANGE_US[0] <= time_us <= _TIME_RANGE_US[1]:
        low, high = _TIME_RANGE_US
        raise PoolFileError(f"{where}: 'time_us' lies between {low:g} and {high:g}, got {time_us:g}")
    if spread is not None and spread < 0:
        raise PoolFileError(f"{where}: 'spread' must not be negative, got {spread}")
    neighbours = row.get("neighbours") or []
    if not isinstance(neighbours, list) or not all(isinstance(other, str) for other in neighbours):
        raise PoolFileError(f"{where}: 'neighbours' must be a list of ids, got {neighbours!r:.60}")
    error = row.get("error")
    return RecordedCandidate(
        id=name,
        code=_text(row, "code", where),
        language=_text(row, "language", where),
        outcome=outcome,
        time_us=time_us,
        spread=spread,
        neighbours=tuple(dict.fromkeys(other for other in neighbours if other != name)),
        error=None if error is None else str(error),
    )


def _header(rows: list[tuple[int, dict[str, Any]]], name: str) -> dict[str, Any]:
    if not rows:
        raise PoolFileError(f"{name}: empty; the first row must be {{'pool': {{...}}}}")
    number, first = rows[0]
    header = first.get("pool")
    if not isinstance(header, dict):
        raise PoolFileError(f"{name}, line {number}: no header; the first row must be {{'pool': {{...}}}}")
    where = f"{name}, line {number} (header)"
    _text(header, "reference_id", where)
    for key in ("task", "device"):
        _name(header, key, where)
    if header.get("operation") is not None:
        _name(header, "operation", where)
    repeats = header.get("repeats", 1)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or not 1 <= repeats <= _MOST_REPEATS:
        raise PoolFileError(f"{where}: 'repeats' must be a whole number from 1, got {repeats!r:.60}")
    return header


def _shapes(header: Mapping[str, Any], where: str) -> str:
    """The header's shapes in words: ``T=4096, V=32000; T=4096, V=50264``; of another form, as they are written."""
    shapes = header.get("shapes") or ""
    if isinstance(shapes, list) and all(isinstance(shape, dict) for shape in shapes):
        text = "; ".join(", ".join(f"{name}={size}" for name, size in shape.items()) for shape in shapes)
    else:
        text = shapes if isinstance(shapes, str) else json.dumps(shapes)
    if len(text) > _LONGEST_SHAPES or _CONTROL.search(text):
        raise PoolFileError(f"{where}: 'shapes' must be one line of at most {_LONGEST_SHAPES} characters")
    return text


def _without_repeats(
    candidates: dict[str, RecordedCandidate], lines: Mapping[str, int], name: str, *, strict: bool
) -> tuple[dict[str, RecordedCandidate], dict[str, str]]:
    """Candidates with distinct normalised sources, and for each one left out the id kept in its place."""
    ids = list(candidates)
    suspects = possible_duplicates([candidates[i].code for i in ids])
    first: dict[str, str] = {}
    kept_for: dict[str, str] = {}
    for index in suspects:
        earlier = first.setdefault(candidates[ids[index]].key, ids[index])
        if earlier != ids[index]:
            kept_for[ids[index]] = earlier
    if not kept_for:
        return candidates, kept_for
    later, earlier = next(iter(kept_for.items()))
    example = f"line {lines[later]}: {later!r} has the same source as {earlier!r} (line {lines[earlier]})"
    if strict:
        raise PoolFileError(f"{name}, {example}, comments and formatting apart")
    warnings.warn(
        f"{name}: {len(kept_for)} candidate(s) repeat an earlier source and are left out; {example}",
        stacklevel=4,
    )
    kept: dict[str, RecordedCandidate] = {}
    for i, candidate in candidates.items():
        if i not in kept_for:
            others = dict.fromkeys(kept_for.get(other, other) for other in candidate.neighbours)
            others.pop(i, None)
            kept[i] = replace(candidate, neighbours=tuple(others))
    # What was one edit from a repeat is one edit from the first.
    for i, target in kept_for.items():
        extra = (kept_for.get(other, other) for other in candidates[i].neighbours)
        merged = dict.fromkeys((*kept[target].neighbours, *extra))
        merged.pop(target, None)
        kept[target] = replace(kept[target], neighbours=tuple(merged))
    return kept, kept_for


def parse_pool(
    rows: list[tuple[int, dict[str, Any]]], *, name: str, strict: bool, distinct: bool = False
) -> RecordedPool:
    """The pool in a file's numbered rows. See :func:`.pool.load_pool`.

    Args:
        rows: line numbers and objects.
        name: what errors call the file.
        strict: a repeated source is an error.
        distinct: no source is a repeat, as somebody has made sure; looking for repeats takes most of the time.
    """
    header = _header(rows, name)
    candidates: dict[str, RecordedCandidate] = {}
    lines: dict[str, int] = {}
    for number, row in rows[1:]:
        candidate = _candidate(row, f"{name}, line {number}")
        if candidate.id in candidates:
            raise PoolFileError(
                f"{name}, line {number}: id {candidate.id!r} is taken by line {lines[candidate.id]}"
            )
        candidates[candidate.id] = candidate
        lines[candidate.id] = number
    for candidate in candidates.values():
        for other in candidate.neighbours:
            if other not in candidates:
                raise PoolFileError(
                    f"{name}, line {lines[candidate.id]} (id {candidate.id!r}): neighbour {other!r} "
                    "is not in the pool"
                )
    reference_id = header["reference_id"]
    if reference_id not in candidates:
        where = f"{name}, line {rows[0][0]} (header)"
        raise PoolFileError(f"{where}: reference {reference_id!r} is not in the pool")
    kept_for: dict[str, str] = {}
    if not distinct:
        candidates, kept_for = _without_repeats(candidates, lines, name, strict=strict)
    reference = candidates[kept_for.get(reference_id, reference_id)]
    if reference.outcome is not Outcome.OK:
        raise PoolFileError(
            f"{name}, line {lines[reference.id]}: reference {reference.id!r} has no time "
            f"(outcome {str(reference.outcome)!r}), so there are no speed-ups"
        )
    problem = Candidate(reference.id, reference.code).problem
    if problem is not None:
        raise PoolFileError(f"{name}, line {lines[reference.id]}: reference {reference.id!r}: {problem}")
    return RecordedPool(
        task=header["task"],
        device=header["device"],
        operation=header.get("operation") or header["task"],
        reference_id=reference.id,
        header=header,
        candidates=candidates,
        source=name,
        repeats=header.get("repeats", 1),
        shapes=_shapes(header, f"{name}, line {rows[0][0]} (header)"),
    )
