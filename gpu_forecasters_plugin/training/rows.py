"""Measured kernels as training rows: the forecaster's own question, and its answer with the measurement's spread."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.calibration.ceiling import soft_truth
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import Query
from gpu_forecasters_plugin.ledger.exchange import PairRow
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = [
    "USUAL_LOG2_SD",
    "TrainingRow",
    "TrainingRows",
    "pair_rows",
    "pool_rows",
    "rows_identity",
    "with_other_baselines",
]

USUAL_LOG2_SD = 0.02
"""Standard deviation of a speed-up's log2 where nothing says how exactly it was measured, in octaves: the median
distance between two measurements of public kernels."""


@dataclass(frozen=True)
class TrainingRow:
    """One measured kernel beside its reference.

    Attributes:
        task: name of the task, as prompts show it.
        language: what the candidate is written in.
        device: hardware name.
        reference_code: the kernel that the speed-up is relative to.
        candidate_code: the kernel in question.
        candidate_key: identity of its normalised source.
        reference_key: identity of the reference's.
        speedup: reference time / candidate time, or the incumbent's; above 1 is faster.
        log2_sd: standard deviation of the measured log2 speed-up, in octaves.
        shapes: the inputs that it was timed on, in words; empty where they are not known.
        reference_time_us: measured time of the reference, where it is known.
        sampling_probability: chance with which a search drew it at random; ``None`` for all other rows.
        incumbent_code: the kernel that the speed-up is relative to instead, as the best of a search so far.
        incumbent_speedup: of that kernel over the reference.
    """

    task: str
    language: str
    device: str
    reference_code: str
    candidate_code: str
    candidate_key: str
    reference_key: str
    speedup: float
    log2_sd: float = USUAL_LOG2_SD
    shapes: str = ""
    reference_time_us: float | None = None
    sampling_probability: float | None = None
    incumbent_code: str | None = None
    incumbent_speedup: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speedup) and self.speedup > 0):
            raise ValueError(f"a speed-up is a positive finite number, got {self.speedup!r}")
        if not (math.isfinite(self.log2_sd) and self.log2_sd >= 0):
            raise ValueError(f"a standard deviation is a finite number of at least 0, got {self.log2_sd!r}")

    @property
    def operation(self) -> str:
        """What splits go by: the task, however it is capitalised."""
        return self.task.strip().lower()

    @cached_property
    def id(self) -> str:
        """Identity of kernel, baseline and device, 32 hexadecimal digits; not of what was measured."""
        parts = [self.operation, self.device, self.reference_key, self.candidate_key]
        if self.incumbent_code is not None:
            parts.append(source_key(self.incumbent_code))
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]

    @property
    def log2_speedup(self) -> float:
        """log2 of the measured speed-up."""
        return math.log2(self.speedup)

    @property
    def bin(self) -> int:
        """Number of the measured bin, 1 to 8."""
        return BINS.index(self.speedup)

    @property
    def soft_bin(self) -> tuple[float, ...]:
        """Probability of each bin under the measured spread: eight numbers that sum to 1."""
        return self.blurred_bin(0.0)

    def blurred_bin(self, octaves: float) -> tuple[float, ...]:
        """As :attr:`soft_bin`, as if the measurement were less exact by a standard deviation of ``octaves``."""
        sd = math.hypot(self.log2_sd, octaves)
        return tuple(soft_truth(np.array([self.log2_speedup]), sd)[0].tolist())

    @property
    def query(self) -> Query:
        """The question as a run would ask it."""
        return Query(
            candidate_key=self.candidate_key,
            candidate_code=self.candidate_code,
            anchor_code=self.incumbent_code or self.reference_code,
            reference_code=self.reference_code,
            anchor_speedup=self.incumbent_speedup,
            task=self.task,
            device=self.device,
            shapes=self.shapes,
            reference_time_us=self.reference_time_us,
        )

    def against(self, other: TrainingRow, *, as_incumbent: bool) -> TrainingRow:
        """The same kernel beside another one of the same reference: a further row from the same two measurements.

        Args:
            other: measured against the same reference on the same device.
            as_incumbent: whether that one is the best of a search so far; else it is the reference of another search.
        """
        found = replace(
            self,
            speedup=self.speedup / other.speedup,
            log2_sd=math.hypot(self.log2_sd, other.log2_sd),
            sampling_probability=None,
        )
        if as_incumbent:
            return replace(found, incumbent_code=other.candidate_code, incumbent_speedup=other.speedup)
        time_us = self.reference_time_us
        return replace(
            found,
            reference_code=other.candidate_code,
            reference_key=other.candidate_key,
            reference_time_us=None if time_us is None else time_us / other.speedup,
        )


@dataclass(frozen=True)
class TrainingRows:
    """Rows, and how many measurements gave none.

    Attributes:
        rows: measured kernels.
        failed: measurements that did not end ``ok``: they have no speed-up to learn.
    """

    rows: tuple[TrainingRow, ...]
    failed: int = 0

    def __add__(self, other: TrainingRows) -> TrainingRows:
        """Both, one after the other."""
        return TrainingRows(self.rows + other.rows, self.failed + other.failed)


def pool_rows(pool: RecordedPool) -> TrainingRows:
    """The kernels of a recorded task but the reference itself; its spread and the reference's count together."""
    reference, found, failed = pool.reference, [], 0
    for candidate in pool.candidates.values():
        speedup = pool.speedup(candidate.id)
        if candidate.id == reference.id:
            continue
        if speedup is None:
            failed += 1
            continue
        spreads = [c.spread for c in (candidate, reference) if c.spread is not None]
        log2_sd = math.hypot(*(math.log2(1.0 + spread) for spread in spreads)) if spreads else USUAL_LOG2_SD
        found.append(
            TrainingRow(
                task=pool.task,
                language=candidate.language,
                device=pool.device,
                reference_code=reference.code,
                candidate_code=candidate.code,
                candidate_key=candidate.key,
                reference_key=reference.key,
                speedup=speedup,
                log2_sd=log2_sd,
                shapes=pool.shapes,
                reference_time_us=reference.time_us,
            )
        )
    return TrainingRows(tuple(found), failed)


def pair_rows(pairs: Iterable[PairRow]) -> TrainingRows:
    """Rows of a pairs file, of a published set or of a ledger; candidates that are their own reference are left out."""
    failed = 0

    def found() -> Iterator[TrainingRow]:
        nonlocal failed
        for pair in pairs:
            if pair.speedup is None:
                failed += 1
                continue
            row = _pair_row(pair, pair.speedup)
            if row.candidate_key != row.reference_key:
                yield row

    return TrainingRows(tuple(found()), failed)


def _pair_row(pair: PairRow, speedup: float) -> TrainingRow:
    return TrainingRow(
        task=pair.task,
        language=pair.language,
        device=pair.hardware,
        reference_code=pair.reference_code,
        candidate_code=pair.candidate_code,
        candidate_key=source_key(pair.candidate_code),
        reference_key=source_key(pair.reference_code),
        speedup=speedup,
        reference_time_us=None if pair.time_us is None else pair.time_us * speedup,
        sampling_probability=pair.sampling_probability,
    )


def with_other_baselines(rows: Sequence[TrainingRow], per_kernel: int, seed: int) -> list[TrainingRow]:
    """The rows, and each kernel beside others of the same reference and device.

    Every second one that is faster than the reference is asked about as the incumbent, as a search does; all others are
    taken for the reference.

    Args:
        rows: with the reference as their baseline.
        per_kernel: how many others, as far as there are.
        seed: of the choice.
    """
    groups: dict[tuple[str, str, str], list[TrainingRow]] = {}
    for row in rows:
        groups.setdefault((row.operation, row.device, row.reference_key), []).append(row)
    found = list(rows)
    for row in rows if per_kernel else ():
        group = groups[row.operation, row.device, row.reference_key]
        others = sorted(group, key=lambda other: keyed_uniform(seed, row.id, other.id))
        chosen = [other for other in others if other.candidate_key != row.candidate_key][:per_kernel]
        for number, other in enumerate(chosen):
            found.append(row.against(other, as_incumbent=other.speedup > 1.0 and number % 2 == 0))
    return found


def rows_identity(rows: Iterable[TrainingRow]) -> str:
    """Identity of a set of rows and their measurements, whatever their order: 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for line in sorted(f"{row.id} {row.speedup!r} {row.log2_sd!r}" for row in rows):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:32]
