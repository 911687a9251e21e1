"""Runs a comparison: every arm with every seed, on one host, at the same number of measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.compare.arms import Arm, build_arms
from gpu_forecasters_plugin.compare.hosts import RegisteredHost, host_factory
from gpu_forecasters_plugin.compare.kept import KeptRuns
from gpu_forecasters_plugin.compare.output import curves_image
from gpu_forecasters_plugin.compare.presets import check_arm_names
from gpu_forecasters_plugin.compare.records import ArmRun, search_folder
from gpu_forecasters_plugin.compare.statistics import summarise
from gpu_forecasters_plugin.compare.workers import run_searches
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import prepare_folder, write_atomically, write_json
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool

__all__ = ["check_comparison", "run_comparison"]

_MOST_SEEDS = 10_000
_SUMMARY = "summary.json"
_PLOT = "curves.png"


def check_comparison(
    pool: RecordedPool,
    host: str,
    budget: int,
    seeds: int,
    arms: Sequence[str],
    surrogate: SurrogateConfig,
    measurement_seconds: float | None,
) -> None:
    """Refuse what cannot be compared on a task, before anything runs; as :func:`run_comparison` is called.

    Raises:
        ConfigError: unknown host or arm, or a budget that the pool or the host cannot serve.
    """
    priced = host_factory(host).priced
    check_arm_names(arms, surrogate)
    if len(pool.candidates) < 2:
        raise ConfigError("a comparison needs a few hundred kernels, at the very least 2; this pool has 1")
    if not 2 <= budget <= len(pool.candidates):
        raise ConfigError(
            f"--budget is 2 to {len(pool.candidates)}, the number of kernels in this pool, got {budget}"
        )
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds is at least 1 and at most {_MOST_SEEDS}, got {seeds}")
    if measurement_seconds is not None and not 0.0 < measurement_seconds < math.inf:
        raise ConfigError(f"--measurement-seconds is above 0 and finite, got {measurement_seconds}")
    if surrogate.budget.gpu_seconds is not None and not priced:
        # A replay through a real host takes seconds of its own, which are not the GPU's.
        raise ConfigError(
            f"surrogate.budget.gpu_seconds is compared with --host inprocess or puct, not {host}: leave it out"
        )


def _check_folder(out: Path, comparison: Mapping[str, Any]) -> None:
    """Refuse to write over another comparison that has ended: its searches may have cost hours."""
    try:
        finished: dict[str, Any] = json.loads((out / _SUMMARY).read_bytes())
        finished["arms"] = list(finished["arms"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is none
    for name, wanted in comparison.items():
        if finished.get(name) != wanted:
            raise ConfigError(
                f"folder {out} holds a finished comparison with {name} {finished.get(name)!r} instead of {wanted!r}: "
                "choose another --out, or delete that folder"
            )


def _all_runs(
    pool: RecordedPool, arms: Sequence[Arm], seeds: int, budget: int, host: str, out: Path, kept: KeptRuns
) -> list[ArmRun]:
    """Every arm with every seed; what an interrupted comparison had finished is not run again."""
    searches = [(arm, seed) for seed in range(seeds) for arm in arms]
    found = [run for arm, seed in searches if (run := kept.find(arm, seed)) is not None]
    finished = {(run.arm, run.seed) for run in found}
    missing = [(arm, seed) for arm, seed in searches if (arm.name, seed) not in finished]
    arm_of = {arm.name: arm for arm in arms}
    with WorkProgress(len(searches) * budget) as progress:
        if found:
            progress.update(len(found) * budget, "finished before")

        def on_finished(run: ArmRun) -> None:
            kept.keep(arm_of[run.arm], run)
            found.append(run)
            progress.update(len(found) * budget, f"{run.arm}, seed {run.seed}")

        if host_factory(host).side_by_side:
            run_searches(host, pool.source, missing, budget, out / "runs", on_finished)
            return found
        outer = RegisteredHost(host)
        for arm, seed in missing:
            label, done = f"{arm.name}, seed {seed}", len(found) * budget
            folder = search_folder(out / "runs", arm, seed)
            # One after the other: each has worker processes of its own.
            on_finished(outer.run(pool, arm, seed, budget, folder, _reporter(progress, label, done)))
    return found


def _reporter(progress: WorkProgress, label: str, done: int) -> Callable[[int], None]:
    return lambda more: progress.update(done + more, label)


def run_comparison(
    source: str | Path,
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
    """Compare arms at equal budget.

    Args:
        source: name of a recorded task, or path of a pool file.
        host: ``inprocess``, ``puct``, ``openevolve``, ``shinka``, or a plugin's.
        budget: measurements of each search, the reference's included.
        seeds: number of paired seeds, 0 to ``seeds`` - 1.
        arms: names of the arms.
        surrogate: configuration of the arm ``surrogate``. Where its budget has ``gpu_seconds``, every arm gets as many,
            for measuring and, with ``count_forecasting``, forecasting together; ``budget`` is the most it may measure.
        out: folder for ``summary.json``, ``curves.png`` and the runs.
        measurement_seconds: GPU-seconds that a measurement takes, compiling and checking included; ``None``: the
            kernel's own time as recorded.
        forecasts: file of recorded forecasts, for the arm ``replay``.

    Returns:
        The content of ``summary.json``.

    Raises:
        ConfigError: unknown host or arm, a budget that the pool cannot serve, ``replay`` without forecasts of this
            pool, or ``out`` holds another comparison.
        PoolFileError: the pool cannot be read.
        FolderInUseError: another comparison works in ``out``.
        HostError: a search was ended from outside; those that had finished are kept for the same call.
    """
    pool = open_pool(source)
    check_comparison(pool, host, budget, seeds, arms, surrogate, measurement_seconds)
    prepare_folder(out, (_SUMMARY, _PLOT))
    hold_folder(out)
    try:
        chosen = build_arms(arms, pool, surrogate, out.resolve(), measurement_seconds, forecasts)
        settings = {"task": pool.label, "host": host, "budget": budget}
        _check_folder(out, settings | {"seeds": list(range(seeds)), "arms": [arm.name for arm in chosen]})
        kept = KeptRuns(out, pool, host, budget)
        found = _all_runs(pool, chosen, seeds, budget, host, out, kept)
        runs = {
            arm.name: sorted((run for run in found if run.arm == arm.name), key=lambda run: run.seed)
            for arm in chosen
        }
        summary = summarise(runs, task=pool.label, host=host, budget=budget, pool_best=pool.best_speedup)
        summary["device"] = pool.device
        summary["budget_gpu_seconds"] = chosen[0].gpu_seconds
        write_json(out / _SUMMARY, summary)
        write_atomically(out / _PLOT, curves_image(runs, summary))
        kept.clear()
    finally:
        release_folder(out)
    return summary
