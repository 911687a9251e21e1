"""From the searches of a comparison to its verdict. Claims are about means over paired seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.significance import holm, sign_flip_p_value

__all__ = [
    "compare_arms",
    "gap_closed",
    "gap_closed_over_tasks",
    "mean_curve",
    "mean_over_tasks",
    "paired_interval",
    "summarise",
]

_RESAMPLES = 4000
_LEVEL = 0.95
_WORSE = 0.98
_NO_GAP = 1e-6
_FEWEST_SEEDS = 5
"""With fewer, the interval is little more than the smallest and the largest difference."""


def mean_curve(runs: Sequence[ArmRun], budget: int) -> list[float]:
    """Mean best speed-up after each measurement; a search that ended early keeps its last value."""
    padded = [list(run.curve) + [run.best_speedup] * (budget - len(run.curve)) for run in runs]
    return [float(value) for value in np.mean(np.array(padded)[:, :budget], axis=0)]


def paired_interval(log_ratios: np.ndarray[Any, np.dtype[np.float64]]) -> list[float] | None:
    """Bootstrap interval of the geometric mean ratio; undefined below two seeds."""
    if len(log_ratios) < 2:
        return None
    generator = np.random.default_rng(0)
    draws = generator.integers(0, len(log_ratios), size=(_RESAMPLES, len(log_ratios)))
    means = np.exp(log_ratios[draws].mean(axis=1))
    tail = (1.0 - _LEVEL) / 2
    return [float(value) for value in np.quantile(means, [tail, 1.0 - tail])]


def _verdict(interval: list[float] | None, seeds: int) -> str:
    if interval is None or seeds < _FEWEST_SEEDS:
        return f"too few seeds for a verdict ({seeds}; it takes {_FEWEST_SEEDS})"
    if interval[0] > 1.0:
        return "better"
    return "worse" if interval[1] < 1.0 else "no difference shown"


def compare_arms(
    arm: Sequence[ArmRun], baseline: Sequence[ArmRun], budget: int, pool_best: float
) -> dict[str, Any]:
    """One arm against the baseline, seed by seed.

    Returns:
        ``share_of_pool_best``: mean of best / pool's best. ``measurements_to_match_ratio``: the budget over the
        arm's measurements until its mean curve first reaches the baseline's mean final best; ``None`` if it never
        does, or if the baseline found nothing faster than the reference. ``worse_than_2pct_share``: share of
        seeds whose best is below 0.98 of the baseline's with the same seed. ``mean_ratio`` and ``ci95``:
        geometric mean of best / baseline's best over paired seeds, and its bootstrap interval (``None`` below
        two seeds). ``verdict``: the interval in words. ``p_value``: of the paired test of that mean
        (:func:`~gpu_forecasters_plugin.compare.significance.sign_flip_p_value`).
    """
    by_seed = {run.seed: run.best_speedup for run in baseline}
    pairs = [(run.best_speedup, by_seed[run.seed]) for run in arm if run.seed in by_seed]
    ratios = np.array([math.log(ours / theirs) for ours, theirs in pairs])
    target = mean_curve(baseline, budget)[-1]
    # A tolerance for the rounding of means over seeds, far below any measurable difference.
    reached = [i + 1 for i, value in enumerate(mean_curve(arm, budget)) if value >= target * (1 - 1e-9)]
    interval = paired_interval(ratios)
    return {
        "share_of_pool_best": float(np.mean([run.best_speedup for run in arm]) / pool_best),
        "measurements_to_match_ratio": budget / reached[0] if reached and target > 1.0 else None,
        "worse_than_2pct_share": float(np.mean([ours < _WORSE * theirs for ours, theirs in pairs])),
        "mean_ratio": float(np.exp(ratios.mean())),
        "ci95": interval,
        "verdict": _verdict(interval, len(pairs)),
        "p_value": sign_flip_p_value(ratios.tolist()),
    }


def gap_closed(runs: Mapping[str, Sequence[ArmRun]], arm: str) -> float | None:
    """Share of the way from the baseline's mean best to the oracle's that an arm's has come; 1 is the oracle's.

    Returns:
        Below 0 where it is worse than the baseline; ``None`` without an oracle, or where that found nothing faster.
    """
    if "oracle" not in runs:
        return None
    best = {name: np.mean([run.best_speedup for run in runs[name]]) for name in ("baseline", "oracle", arm)}
    gap = best["oracle"] - best["baseline"]
    return float((best[arm] - best["baseline"]) / gap) if gap > _NO_GAP * best["oracle"] else None


def mean_over_tasks(values: Sequence[float | None]) -> float | None:
    """Geometric mean; ``None`` where one is missing: an arm that never matched a baseline has no mean of that."""
    known = [value for value in values if value is not None]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if len(known) == len(values) else None


def gap_closed_over_tasks(mean_ratio: float, oracle_mean_ratio: float | None) -> float | None:
    """Share of the oracle's gain over the baseline that an arm has, both as logarithms of means over tasks.

    A mean of the tasks' own shares would follow those where there is hardly anything to gain.

    Args:
        mean_ratio: geometric mean over tasks of the arm's best over the baseline's.
        oracle_mean_ratio: the oracle's; ``None`` where it was not run.

    Returns:
        1 for the oracle, below 0 for less than the baseline; ``None`` without an oracle, or where that gained nothing.
    """
    if oracle_mean_ratio is None or math.log(oracle_mean_ratio) <= _NO_GAP:
        return None
    return math.log(mean_ratio) / math.log(oracle_mean_ratio)


def summarise(
    runs: Mapping[str, Sequence[ArmRun]], *, task: str, host: str, budget: int, pool_best: float
) -> dict[str, Any]:
    """The content of ``summary.json``.

    ``p_value_holm`` is corrected for the number of arms that are compared with the baseline here, and
    ``gap_closed`` is :func:`gap_closed`.
    """
    arms = {
        name: {
            "best_speedup": [run.best_speedup for run in found],
            "measurements_used": [run.measurements_used for run in found],
            "curve": [list(run.curve) for run in found],
            "candidates_considered": [run.candidates_considered for run in found],
            "gpu_seconds": [run.gpu_seconds for run in found],
            "forecast_gpu_seconds": [run.forecast_gpu_seconds for run in found],
        }
        for name, found in runs.items()
    }
    comparison = {
        name: compare_arms(found, runs["baseline"], budget, pool_best) for name, found in runs.items()
    }
    others = [name for name in comparison if name != "baseline"]
    for name, corrected in zip(others, holm([comparison[name]["p_value"] for name in others]), strict=True):
        comparison[name] |= {"p_value_holm": corrected, "gap_closed": gap_closed(runs, name)}
    summary = {
        "task": task,
        "host": host,
        "budget": budget,
        "seeds": [run.seed for run in next(iter(runs.values()))],
        "pool_best_speedup": pool_best,
        "arms": arms,
        "comparison": comparison,
    }
    if "surrogate" in runs and "random" in runs:
        # Whether forecasts are worth more than merely proposing more.
        against = compare_arms(runs["surrogate"], runs["random"], budget, pool_best)
        keys = ("mean_ratio", "ci95", "verdict", "p_value")
        summary["surrogate_against_random"] = {key: against[key] for key in keys}
    return summary
