"""Measured kernels to evaluate on: read from a file or a ledger, each once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.errors import RowFileError
from gpu_forecasters_plugin.forecast import Ending
from gpu_forecasters_plugin.ledger.exchange import PairRow, check_row, export_rows
from gpu_forecasters_plugin.ledger.published import from_pairs
from gpu_forecasters_plugin.ledger.read_only import open_to_read
from gpu_forecasters_plugin.ledger.results import ENDINGS
from gpu_forecasters_plugin.ledger.row_files import read_rows
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names
from gpu_forecasters_plugin.recorded.profiles import verdicts_by_key
from gpu_forecasters_plugin.recorded.shipped import name_on
from gpu_forecasters_plugin.screen.profile import SourceProfile
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["Pair", "distinct_pairs", "ledger_pairs", "read_pairs", "with_recorded_verdicts", "with_repeats"]


@dataclass(frozen=True)
class Pair:
    """A candidate beside the kernel that its speed-up is relative to.

    Attributes:
        id: fixed by task, hardware and both sources, formatting apart.
        task: what the kernels compute.
        device: hardware name; empty where it is not known.
        reference_code: the kernel that the speed-up is relative to.
        candidate_code: the kernel in question.
        candidate_key: identity of its source.
        speedup: measured, above 1 is faster; the geometric mean of several measurements; ``None`` if it failed.
        repeats: all measured speed-ups.
        ending: how it fared; ``None`` where its outcome says something about the machine alone.
        verdict: what the compiler said of it; ``None`` where nobody asked.
        reference_profile: static profile of the reference, likewise.
    """

    id: str
    task: str
    device: str
    reference_code: str
    candidate_code: str
    candidate_key: str
    speedup: float | None
    repeats: tuple[float, ...] = ()
    ending: Ending | None = None
    verdict: Verdict | None = None
    reference_profile: SourceProfile | None = None


def distinct_pairs(rows: Iterable[PairRow]) -> list[Pair]:
    """Each kernel once, in the order in which they first come.

    The same row twice is one measurement. Different speed-ups of one kernel are repeated measurements: their geometric
    mean is scored, and their distance says how exactly anybody could forecast. A kernel that worked once and failed
    once worked.
    """
    texts: dict[str, str] = {}
    found: dict[str, PairRow] = {}
    measured: dict[str, list[float]] = {}
    for row in rows:
        name = _name(row)
        if name not in found:
            # One copy of a reference, however many rows repeat it.
            code = texts.setdefault(row.reference_code, row.reference_code)
            found[name] = row.model_copy(update={"reference_code": code})
        speedups = measured.setdefault(name, [])
        if row.speedup is not None and row.speedup not in speedups:
            speedups.append(row.speedup)
    return [_pair(name, row, measured[name]) for name, row in found.items()]


def read_pairs(path: Path) -> list[Pair]:
    """The kernels of a pairs file: JSON Lines, ``.gz`` or Parquet, with any of the columns of :func:`from_pairs`.

    Raises:
        ConfigError: the file's name says no known format.
        RowFileError: it cannot be read, holds no row, or a row is wrong; names the line and the column.
    """
    pairs = distinct_pairs(read_rows(path, from_pairs))
    if not pairs:
        raise RowFileError(
            f"{path}: holds no rows: a pairs file has one JSON object per measured kernel and line"
        )
    return pairs


def ledger_pairs(target: str) -> list[Pair]:
    """The measured kernels of every run of a ledger, and its imported rows.

    Raises:
        LedgerError: there is no ledger, or it cannot be read.
        RowFileError: nothing is in it.
    """
    engine = open_to_read(target)
    pairs = distinct_pairs(check_row(row, f"{target}, row {row['id']}") for row in export_rows(engine))
    engine.dispose()
    if not pairs:
        raise RowFileError(
            f"{target}: no measurement has ended in this ledger: there is nothing to evaluate on"
        )
    return pairs


def with_repeats(pairs: Sequence[Pair], others: Iterable[Pair]) -> list[Pair]:
    """Add further measurements of the same kernels; what is scored stays.

    Args:
        pairs: kernels.
        others: measured again, under the same task, hardware and reference; kernels that are not among ``pairs`` are
            left out.
    """
    again = {pair.id: pair.repeats for pair in others}
    return [replace(pair, repeats=pair.repeats + again.get(pair.id, ())) for pair in pairs]


def with_recorded_verdicts(pairs: Sequence[Pair]) -> list[Pair]:
    """Add what the compiler said of kernels that are of a recorded task, so that nobody has to compile them again."""
    found: list[Pair] = []
    known: dict[tuple[str, str], tuple[dict[str, Verdict], SourceProfile | None] | None] = {}
    for pair in pairs:
        run = pair.reference_code, pair.device
        if run not in known:
            known[run] = _recorded_verdicts(source_key(pair.reference_code), pair.device)
        verdicts, reference = known[run] or ({}, None)
        verdict = verdicts.get(pair.candidate_key)
        found.append(replace(pair, verdict=verdict, reference_profile=reference) if verdict else pair)
    return found


def _recorded_verdicts(
    reference_key: str, device: str
) -> tuple[dict[str, Verdict], SourceProfile | None] | None:
    """Verdicts of the recorded task with that reference, if possible on that device, and the reference's profile."""
    for name in recorded_task_names():
        if load_task(name).reference.key == reference_key:
            verdicts = verdicts_by_key(load_task(name_on(name, device)))
            reference = verdicts.get(reference_key)
            return verdicts, None if reference is None else reference.profile
    return None


def _name(row: PairRow) -> str:
    parts = (row.task, row.hardware, source_key(row.reference_code), source_key(row.candidate_code))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _pair(name: str, row: PairRow, speedups: Sequence[float]) -> Pair:
    middle = 2.0 ** fmean(map(math.log2, speedups)) if len(speedups) > 1 else None
    return Pair(
        name,
        row.task,
        row.hardware,
        row.reference_code,
        row.candidate_code,
        source_key(row.candidate_code),
        middle if middle is not None else speedups[0] if speedups else None,
        tuple(speedups),
        Ending.OK if speedups else ENDINGS.get(row.outcome),
    )
