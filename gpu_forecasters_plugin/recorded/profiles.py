"""What the compiler said of the sources of recorded tasks, kept so that nobody has to compile them again.

A file per pool file, of the same name, in the folder ``profiles`` beside this module: gzip-compressed JSON Lines. The
first row says what compiled (``{"compiled": {"arch", "device", "torch", "triton", ...}}``), and every further row is a
source: its ``id`` in the task, ``status`` and ``fault`` of its verdict, and ``profile``, without what follows from it.
``python -m benchmarks.profiles`` makes them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.forecast import Attempt
from gpu_forecasters_plugin.json_lines import parse_json_lines
from gpu_forecasters_plugin.ledger.results import ENDINGS
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.shipped import name_of_file, name_on, profiles_file
from gpu_forecasters_plugin.screen.completing import completed
from gpu_forecasters_plugin.screen.profile import InstructionMix, LaunchProfile, SourceProfile
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, undecided

__all__ = [
    "RecordedScreen",
    "attempts_of",
    "pack_verdicts",
    "recorded_verdicts",
    "unpack_verdicts",
    "verdicts_by_key",
]

_DERIVED = {"occupancy", "blocks_per_sm", "limited_by", "waves", "roofline_us", "estimated_us"}
"""Fields that are computed from the others when a profile is read, so that they follow the code that computes them."""
_DEFAULTS: dict[str, Any] = {
    f.name: f.default for kind in (InstructionMix, LaunchProfile, SourceProfile) for f in fields(kind)
}
_NO_PROFILES: Mapping[str, Verdict] = {}


def pack_verdicts(verdicts: Mapping[str, Verdict], compiled: Mapping[str, str]) -> bytes:
    """The bytes of a file of profiles; the same verdicts give the same bytes.

    Args:
        verdicts: by id of the source.
        compiled: what compiled, ``device`` among it.
    """
    rows: list[dict[str, Any]] = [{"compiled": dict(compiled)}]
    for name, verdict in sorted(verdicts.items()):
        fault = {} if verdict.fault is None else {"fault": verdict.fault}
        profile = {} if verdict.profile is None else {"profile": _lean(asdict(verdict.profile))}
        rows.append({"id": name, "status": verdict.status} | fault | profile)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0)


def _lean(value: Any) -> Any:
    """Plain values without what is derived, empty, or as a profile's fields are by default."""
    if isinstance(value, Mapping):
        return {
            name: _lean(inner)
            for name, inner in value.items()
            if name not in _DERIVED and inner not in ({}, ()) and inner != _DEFAULTS.get(name, ...)
        }
    return [_lean(inner) for inner in value] if isinstance(value, list | tuple) else value


def unpack_verdicts(data: bytes, name: str) -> dict[str, Verdict]:
    """Inverse of :func:`pack_verdicts`, profiles completed for the device that was compiled for.

    Raises:
        PoolFileError: it is no such file; names the line.
    """
    (number, head), *rows = parse_json_lines(data, name, PoolFileError) or [(1, {})]
    found: dict[str, Verdict] = {}
    try:
        device = str(head["compiled"]["device"])
        for line, row in rows:
            number = line
            found[str(row["id"])] = _verdict(row, device)
    except (KeyError, TypeError, ValueError) as error:
        raise PoolFileError(f"{name}, line {number}: no verdict on a source: {error!r}") from error
    return found


def _verdict(row: Mapping[str, Any], device: str) -> Verdict:
    profile = None
    if (given := row.get("profile")) is not None:
        launches = [{"grid": None, "threads": None} | launch for launch in given.get("launches", ())]
        profile = completed(SourceProfile.from_json({**given, "launches": launches}), device)
    fault = Fault(row["fault"]) if "fault" in row else None
    return Verdict(Status(row["status"]), fault, profile=profile)


@lru_cache(maxsize=32)
def recorded_verdicts(name: str) -> Mapping[str, Verdict]:
    """Verdicts on the sources of a recorded task that ships with the package, by id; none for any other task.

    Args:
        name: of the task, or ``task@device``.
    """
    file = profiles_file(name_of_file(name))
    return unpack_verdicts(file.read_bytes(), name) if file.is_file() else _NO_PROFILES


def attempts_of(pool: RecordedPool, verdicts: Mapping[str, Verdict]) -> Iterator[Attempt]:
    """The measurements of a pool that say whether their candidates run right, in the order of its file.

    Args:
        pool: a recorded task.
        verdicts: the compiler's, by id; ids stand for the candidates' keys, which take long to compute.
    """
    for candidate in pool.candidates.values():
        ending = ENDINGS.get(candidate.outcome)
        if ending is not None:
            verdict = verdicts.get(candidate.id)
            profile, screened = (None, None) if verdict is None else (verdict.profile, verdict.status.value)
            yield Attempt(candidate.id, candidate.code, ending, profile, screened)


def verdicts_by_key(pool: RecordedPool) -> dict[str, Verdict]:
    """Verdicts on the sources of a recorded task that ships with the package, by identity of the source."""
    found = recorded_verdicts(name_on(pool.task, pool.device))
    return {c.key: found[name] for name, c in pool.candidates.items() if name in found}


class RecordedScreen:
    """The screen of a recorded task: verdicts from the file, in place of a compiler.

    Sources that are not in it are undecided.
    """

    def __init__(self, pool: RecordedPool) -> None:
        self._verdicts = verdicts_by_key(pool)
        self._reference_key = pool.reference.key

    def verdicts(self, candidates: Sequence[Candidate]) -> dict[str, Verdict]:
        """Verdicts by candidate key, the reference's among them."""
        keys = [self._reference_key, *(c.key for c in candidates if c.problem is None)]
        unknown = undecided("it was not compiled when the task was recorded")
        return {key: self._verdicts.get(key, unknown) for key in keys}

    def close(self) -> None:
        """Nothing to end."""
