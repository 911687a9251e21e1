"""What a page tells of a run, read from its ledger in one go; and of several runs taken together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpu_forecasters_plugin.bins import BINS, SCHEMES, BinScheme
from gpu_forecasters_plugin.calibration.ceiling import NoiseCeiling, noise_ceiling
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.reading import (
    MeasuredRows,
    RunSnapshot,
    improvements,
    measured_rows,
    repeated_speedups,
    snapshot,
)
from gpu_forecasters_plugin.ledger.screenings import (
    ScreenTotals,
    profiles_of,
    screen_totals,
    summed_totals,
)
from gpu_forecasters_plugin.ledger.totals import (
    PoolSegment,
    forecast_costs,
    forecast_failures,
    outcome_costs,
    pool_segments,
    pool_trust,
)
from gpu_forecasters_plugin.report.quality import ForecastQuality, forecast_quality, forecast_rows
from gpu_forecasters_plugin.report.surprises import Surprise, biggest_surprises
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["PARTS", "BestKernel", "RunFacts", "gather", "together"]

PARTS = 32
"""Into how many parts the course of a run is divided."""

_SURPRISES = 5
_MOST_REPEATED = 10_000

Row = Mapping[str, Any]


@dataclass(frozen=True)
class BestKernel:
    """The fastest kernel that was measured.

    Attributes:
        row: the last of :func:`~gpu_forecasters_plugin.ledger.reading.improvements`.
        code: its source.
        reference_code: source of the kernel that speed-ups are relative to; ``None`` when the run never saw it.
        run: the run that it is of, where a page tells of several.
        profile: what the compiler made of it; ``None`` where nobody compiled it.
        reference_profile: likewise of the reference.
    """

    row: Row
    code: str
    reference_code: str | None
    run: str = ""
    profile: SourceProfile | None = None
    reference_profile: SourceProfile | None = None


@dataclass(frozen=True)
class RunFacts:
    """A run, or several taken together.

    Attributes:
        names: what the runs are called among others.
        run: row of the run; of several, of the first.
        course: each measurement that was the fastest so far; of several runs, of none.
        segments: decisions over the course of the run.
        trust: how far its pools trusted its forecasts.
        outcomes: measurements by outcome, and their GPU-seconds.
        forecasts: what forecasts cost.
        failures: forecasts that failed, by kind.
        measured: every measurement that was ``ok``.
        repeats: speed-ups of kernels that were timed more than once.
        surprises: the most confident of the wrong forecasts.
        best: the fastest kernel; ``None`` without any.
        screening: what the screen caught; ``None`` where none was in force.
    """

    names: tuple[str, ...]
    run: Row
    course: Sequence[Row]
    segments: Sequence[PoolSegment]
    trust: Row
    outcomes: Sequence[Row]
    forecasts: Row
    failures: Sequence[Row]
    measured: MeasuredRows
    repeats: Sequence[Sequence[float]]
    surprises: Sequence[Surprise]
    best: BestKernel | None
    screening: ScreenTotals | None = None

    @property
    def bins(self) -> BinScheme:
        """The bins of its forecasts."""
        return SCHEMES.get(self.run["bin_scheme"], BINS)

    @cached_property
    def quality(self) -> ForecastQuality | None:
        """Of the forecasts of all measured candidates."""
        return self._quality(drawn_only=False)

    @cached_property
    def quality_drawn(self) -> ForecastQuality | None:
        """Of those that were drawn at random, weighted: of all candidates' forecasts, as far as can be known."""
        return self._quality(drawn_only=True)

    @cached_property
    def ceiling(self) -> NoiseCeiling | None:
        """What repeated measurements allow; ``None`` when no kernel was timed twice."""
        return noise_ceiling(self.repeats, self.bins)

    def _quality(self, *, drawn_only: bool) -> ForecastQuality | None:
        return forecast_quality(forecast_rows(self.measured, self.bins, drawn_only=drawn_only), self.bins)

    @property
    def measurements(self) -> int:
        """Measurements paid for."""
        return sum(row["count"] for row in self.outcomes)

    @property
    def under_way(self) -> int:
        """How many of them have not ended."""
        return sum(row["count"] for row in self.outcomes if row["outcome"] is None)

    @property
    def candidates(self) -> int:
        """Candidates that were decided on."""
        return sum(segment.count for segment in self.segments)


def gather(
    ledger: LedgerReader, name: str = "", on_rows: Callable[[int], None] = lambda count: None
) -> RunFacts:
    """Read the run that a ledger follows.

    Args:
        ledger: the ledger; it may be written to meanwhile.
        name: what the run is called among others.
        on_rows: told how many measured rows were read, now and then.
    """
    with snapshot(ledger) as run:
        bins = SCHEMES.get(run.run["bin_scheme"], BINS)
        course, measured = improvements(run), measured_rows(run, on_rows)
        facts = RunFacts(
            (name,),
            run.run,
            course,
            pool_segments(run, PARTS),
            pool_trust(run),
            outcome_costs(run),
            forecast_costs(run),
            forecast_failures(run),
            measured,
            repeated_speedups(run, _MOST_REPEATED),
            biggest_surprises(measured, bins, _SURPRISES),
            None,
            screen_totals(run.connection, run.run_id),
        )
        return _with_sources(facts, run, name)


def _with_sources(facts: RunFacts, run: RunSnapshot, name: str) -> RunFacts:
    keys = run.candidate_keys([surprise.decision for surprise in facts.surprises])
    reference = run.run["reference_key"]
    best = facts.course[-1] if facts.course else None
    code = run.sources([*keys.values(), reference, *([] if best is None else [best["candidate_key"]])])
    surprises = [
        replace(s, run=name, candidate_key=keys[s.decision], code=code[keys[s.decision]])
        for s in facts.surprises
    ]
    kernel = None
    if best is not None:
        key = best["candidate_key"]
        profiles = profiles_of(run.connection, run.run_id, [key, reference])
        kernel = BestKernel(
            best, code[key], code.get(reference), name, profiles.get(key), profiles.get(reference)
        )
    return replace(facts, surprises=surprises, best=kernel)


def together(runs: Sequence[RunFacts]) -> RunFacts:
    """Several runs as one: sums, the rows of all, the most surprising of all, the fastest kernel of all."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    kernels = [facts.best for facts in runs if facts.best is not None]
    surprises = sorted((s for facts in runs for s in facts.surprises), key=lambda s: s.probability)
    return RunFacts(
        tuple(name for facts in runs for name in facts.names),
        first.run,
        (),
        _summed_segments(runs),
        _added([facts.trust for facts in runs]),
        _summed([facts.outcomes for facts in runs], "outcome", ("count", "gpu_seconds")),
        _added([facts.forecasts for facts in runs]),
        _summed([facts.failures for facts in runs], "failure", ("count",)),
        _joined([facts.measured for facts in runs]),
        [speedups for facts in runs for speedups in facts.repeats],
        [s for way in (True, False) for s in [s for s in surprises if s.faster is way][:_SURPRISES]],
        max(kernels, key=lambda kernel: kernel.row["speedup"], default=None),
        summed_totals([facts.screening for facts in runs]),
    )


def _added(rows: Sequence[Row]) -> dict[str, Any]:
    """Column by column."""
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def _summed_segments(runs: Sequence[RunFacts]) -> list[PoolSegment]:
    counts: dict[tuple[int, str, str], int] = {}
    for facts in runs:
        for s in facts.segments:
            place = (s.segment, s.action, s.reason)
            counts[place] = counts.get(place, 0) + s.count
    return [PoolSegment(*place, count) for place, count in sorted(counts.items())]


def _summed(tables: Sequence[Sequence[Row]], key: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the same key as one; the largest first."""
    found: dict[Any, dict[str, Any]] = {}
    for row in (row for table in tables for row in table):
        known = found.setdefault(row[key], dict(row) | dict.fromkeys(columns, 0))
        for column in columns:
            known[column] += row[column]
    return sorted(found.values(), key=lambda row: tuple(-row[c] for c in reversed(columns)))


def _joined(tables: Sequence[MeasuredRows]) -> MeasuredRows:
    """The rows of all, their pools told apart."""
    offsets = np.cumsum([0, *(int(t.pool.max(initial=-1)) + 1 for t in tables)])
    return MeasuredRows(
        np.concatenate([t.decision for t in tables]),
        np.concatenate([t.pool + offset for t, offset in zip(tables, offsets, strict=False)]),
        *(
            np.concatenate([getattr(t, name) for t in tables])
            for name in ("reason", "speedup", "anchor_speedup", "sampling_probability", "probabilities")
        ),
    )
