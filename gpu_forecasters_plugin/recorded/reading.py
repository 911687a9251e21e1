"""Reads and checks the rows of a pool file (the format is described in :mod:`.pool`)."""

from __future__ import annotations

import gzip
import json
import math
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.recorded.pool import RecordedCandidate, RecordedPool
from gpu_forecasters_plugin.recorded.similarity import possible_duplicates

__all__ = ["parse_pool"]

_GZIP_MAGIC = b"\x1f\x8b"


def _rows(data: bytes, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and JSON objects of a pool file."""
    try:
        # By content, not by name: both kinds get renamed.
        text = (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise PoolFileError(f"{name}: damaged gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise PoolFileError(f"{name}: not UTF-8 text (byte {error.start})") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    # split, not splitlines: JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PoolFileError(f"{name}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise PoolFileError(f"{name}, line {number}: expected a JSON object, got {type(row).__name__}")
        rows.append((number, row))
    return rows


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise PoolFileError(f"{where}: {key!r} must be a non-empty text, got {value!r:.60}")
    return value


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PoolFileError(f"{where}: {key!r} must be a finite number or null, got {value!r:.60}")
    return float(value)


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
    for key in ("task", "device", "reference_id"):
        _text(header, key, f"{name}, line {number} (header)")
    return header


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


def parse_pool(data: bytes, *, name: str, strict: bool) -> RecordedPool:
    """The pool in a file's bytes; ``name`` stands for the file in errors. See :func:`.pool.load_pool`."""
    rows = _rows(data, name)
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
    reference_id = str(header["reference_id"])
    if reference_id not in candidates:
        where = f"{name}, line {rows[0][0]} (header)"
        raise PoolFileError(f"{where}: reference {reference_id!r} is not in the pool")
    candidates, kept_for = _without_repeats(candidates, lines, name, strict=strict)
    reference = candidates[kept_for.get(reference_id, reference_id)]
    if reference.outcome is not Outcome.OK:
        raise PoolFileError(
            f"{name}, line {lines[reference.id]}: reference {reference.id!r} has no time "
            f"(outcome {str(reference.outcome)!r}), so there are no speed-ups"
        )
    return RecordedPool(
        task=str(header["task"]),
        device=str(header["device"]),
        operation=str(header.get("operation") or header["task"]),
        reference_id=reference.id,
        header=header,
        candidates=candidates,
        source=name,
    )
