"""Several tasks compared together, and what may be said of all of them at once.

Every test is corrected for the number of them: all arms on all tasks are one family (Holm). A claim about the mean over
tasks rests on one number per seed, the mean of the log ratios of that seed's searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_forecasters_plugin.compare.runner import check_comparison, run_comparison
from gpu_forecasters_plugin.compare.significance import LEVEL, holm, sign_flip_p_value
from gpu_forecasters_plugin.compare.statistics import gap_closed_over_tasks, mean_over_tasks, paired_interval
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import prepare_folder, write_json
from gpu_forecasters_plugin.recorded.pool import open_pool

__all__ = ["across_tasks", "corrected_together", "run_comparisons"]

_SUMMARY = "summary.json"

Summaries = Mapping[str, Mapping[str, Any]]
"""A comparison's ``summary.json`` by task."""


def corrected_together(summaries: Summaries) -> dict[str, dict[str, Any]]:
    """Per task and arm what was found, with ``p_value_holm`` for the whole family and ``significant``.

    Args:
        summaries: of comparisons with the same arms.

    Returns:
        ``significant``: ``better`` or ``worse`` where the corrected p-value is at most 5 %, else ``no``.
    """
    found: dict[str, dict[str, Any]] = {
        task: {arm: dict(row) for arm, row in summary["comparison"].items() if arm != "baseline"}
        for task, summary in summaries.items()
    }
    rows = [row for arms in found.values() for row in arms.values()]
    for row, corrected in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        side = "better" if row["mean_ratio"] > 1.0 else "worse"
        row |= {"p_value_holm": corrected, "significant": side if corrected <= LEVEL else "no"}
    return found


def _log_ratios(summaries: Summaries, arm: str) -> list[float]:
    """Mean over tasks of log(best / baseline's best), by seed."""
    per_task = [
        np.log(summary["arms"][arm]["best_speedup"]) - np.log(summary["arms"]["baseline"]["best_speedup"])
        for summary in summaries.values()
    ]
    return [float(value) for value in np.mean(per_task, axis=0)]


def across_tasks(summaries: Summaries, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What each arm did on all tasks.

    Args:
        summaries: of comparisons with the same arms and seeds.
        found: of :func:`corrected_together`.

    Returns:
        By arm: ``mean_ratio`` (geometric mean over tasks and seeds), its ``ci95`` and ``p_value`` (over seeds),
        ``measurements_to_match_ratio`` (geometric mean; ``None`` if it is for any task), ``gap_closed``
        (:func:`~gpu_forecasters_plugin.compare.statistics.gap_closed_over_tasks`), the tasks where it is significantly
        ``better`` and ``worse``, and ``mean_at_least_baseline``: those where its mean ratio is at least 1.
    """
    arms = [arm for arm in next(iter(summaries.values()))["arms"] if arm != "baseline"]
    log_ratios = {arm: np.array(_log_ratios(summaries, arm)) for arm in arms}
    means = {arm: float(np.exp(ratios.mean())) for arm, ratios in log_ratios.items()}
    result: dict[str, Any] = {}
    for arm, ratios in log_ratios.items():
        rows = {task: rows[arm] for task, rows in found.items()}
        result[arm] = {
            "mean_ratio": means[arm],
            "ci95": paired_interval(ratios),
            "p_value": sign_flip_p_value(ratios.tolist()),
            "measurements_to_match_ratio": mean_over_tasks(
                [row["measurements_to_match_ratio"] for row in rows.values()]
            ),
            "gap_closed": gap_closed_over_tasks(means[arm], means.get("oracle")),
            "better": [task for task, row in rows.items() if row["significant"] == "better"],
            "worse": [task for task, row in rows.items() if row["significant"] == "worse"],
            "mean_at_least_baseline": [task for task, row in rows.items() if row["mean_ratio"] >= 1.0],
        }
    return result


def run_comparisons(
    tasks: Sequence[str],
    *,
    host: str,
    budget: int,
    seeds: int,
    arms: Sequence[str],
    surrogate: SurrogateConfig,
    out: Path,
    measurement_seconds: float | None = None,
    forecasts: Path | None = None,
) -> dict[str, Any]:
    """Compare arms at equal budget on several recorded tasks, each in a folder of its name below ``out``.

    Args:
        tasks: names of recorded tasks, all different; the others are those of
            :func:`~gpu_forecasters_plugin.compare.runner.run_comparison`.
        host: the host of all.
        budget: measurements of each search.
        seeds: number of paired seeds.
        arms: names of the arms.
        surrogate: configuration of the arm ``surrogate``.
        out: folder for ``summary.json`` and the tasks' own.
        measurement_seconds: GPU-seconds that a measurement takes.
        forecasts: file of recorded forecasts, for the arm ``replay``.

    Returns:
        The content of ``summary.json``: ``tasks``, ``host``, ``budget``, ``seeds``, ``comparison`` by task and arm
        (:func:`corrected_together`) and ``across_tasks`` (:func:`across_tasks`).

    Raises:
        ConfigError: a task is named twice, or any of them cannot be compared so: nothing has run then.
    """
    pools = [open_pool(task) for task in tasks]
    # One may have two names: that of its task, and one with its device.
    if len({pool.source for pool in pools}) < len(pools):
        raise ConfigError(f"--task names a task twice: {', '.join(tasks)}")
    for pool in pools:
        check_comparison(pool, host, budget, seeds, arms, surrogate, measurement_seconds)
    prepare_folder(out, (_SUMMARY,))
    summaries = {
        task: run_comparison(
            task,
            host=host,
            budget=budget,
            seeds=seeds,
            arms=arms,
            surrogate=surrogate,
            out=out / task,
            measurement_seconds=measurement_seconds,
            forecasts=forecasts,
        )
        for task in tasks
    }
    found = corrected_together(summaries)
    summary = {
        "tasks": list(tasks),
        "host": host,
        "budget": budget,
        "seeds": list(range(seeds)),
        "comparison": found,
        "across_tasks": across_tasks(summaries, found),
    }
    write_json(out / _SUMMARY, summary)
    return summary
