"""What ``summary.json`` says of a set of forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_forecasters_plugin.bins import SCHEMES
from gpu_forecasters_plugin.calibration.bootstrap import bootstrap
from gpu_forecasters_plugin.calibration.ceiling import NoiseCeiling, noise_ceiling, spread_ceiling
from gpu_forecasters_plugin.calibration.discovery import discoveries
from gpu_forecasters_plugin.calibration.foresight import foresight
from gpu_forecasters_plugin.calibration.measures import confusion, measure, measure_softly
from gpu_forecasters_plugin.calibration.reliability import confidence_groups, reliability_buckets
from gpu_forecasters_plugin.calibration.rows import ForecastRows

__all__ = ["Evaluated", "Intervals", "summarise"]

_MOST_ROWS_DRAWN = 10_000_000
_FEWEST_RESAMPLES = 40
"""Intervals of a million rows are narrow: fewer resamples do, and take minutes instead of hours."""


@dataclass(frozen=True)
class Evaluated:
    """Forecasts to be summed up.

    Attributes:
        rows: forecasts beside what was measured.
        failed: kernels without a time: no bin, no score.
        repeats: speed-ups of kernels measured more than once.
        spread: relative standard deviation of one measurement, where it is known but nothing was repeated.
        foreseen: P(ok) and whether it ran right, of every measured kernel with a forecast that says so.
    """

    rows: ForecastRows
    failed: int = 0
    repeats: Sequence[Sequence[float]] = ()
    spread: float | None = None
    foreseen: Sequence[tuple[float, bool]] = ()

    def noise(self) -> NoiseCeiling | None:
        """What repeated measurements, or else the spread, allow."""
        bins = SCHEMES[self.rows.bins]
        found = noise_ceiling(self.repeats, bins)
        if found is None and self.spread is not None:
            sd = np.full(len(self.rows), np.log2(1.0 + self.spread))
            found = spread_ceiling(self.rows.log2_speedups, sd, bins)
        return found


@dataclass(frozen=True)
class Intervals:
    """How intervals are made.

    Attributes:
        resamples: bootstrap resamples; 0 makes none.
        seed: of their draws.
    """

    resamples: int = 500
    seed: int = 0


def summarise(evaluated: Evaluated, intervals: Intervals) -> dict[str, Any]:
    """Every measure of a set, as plain values; what cannot be told is ``None``."""
    rows, noise = evaluated.rows, evaluated.noise()
    found: dict[str, Any] = asdict(measure(rows))
    found["failed"] = evaluated.failed
    seen = foresight([p for p, _ in evaluated.foreseen], [ok for _, ok in evaluated.foreseen])
    found["failure"] = None if seen is None else asdict(seen)
    found["bins"] = rows.bins
    found["noise_ceiling"] = None if noise is None else noise.exact
    found["noise"] = None if noise is None else asdict(noise)
    found["soft_truth"] = None if noise is None else measure_softly(rows, noise.log2_sd)
    answered = rows.take(rows.answered)
    found["answered_only"] = asdict(measure(answered)) if len(answered) < len(rows) else None
    found["unanswered"] = len(rows) - len(answered)
    found["discovery"] = {f"{d.threshold:g}": d.summary() for d in discoveries(rows)}
    found["reliability"] = [asdict(bucket) for bucket in reliability_buckets(rows)]
    found["confidence_groups"] = [asdict(group) for group in confidence_groups(rows)]
    found["confusion"] = confusion(rows).round(6).tolist()
    found["ci95"] = _intervals(rows, intervals)
    return found


def _intervals(rows: ForecastRows, wanted: Intervals) -> Mapping[str, Any] | None:
    if not wanted.resamples:
        return None
    resamples = min(wanted.resamples, max(_FEWEST_RESAMPLES, _MOST_ROWS_DRAWN // max(1, len(rows))))
    made = bootstrap(rows, lambda drawn: measure(drawn).flat(), resamples=resamples, seed=wanted.seed)
    bounds = {name: None if pair is None else list(pair) for name, pair in made.bounds.items()}
    return {"unit": made.unit, "resamples": made.resamples} | bounds
