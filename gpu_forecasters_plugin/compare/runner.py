"""Runs a comparison: every arm with every seed, on one host, at the same number of measurements."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.compare.arms import Arm, build_arms
from gpu_forecasters_plugin.compare.inprocess import InProcessHost
from gpu_forecasters_plugin.compare.output import draw_curves
from gpu_forecasters_plugin.compare.records import ArmRun, CompareHost
from gpu_forecasters_plugin.compare.statistics import summarise
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool

__all__ = ["HOST_NAMES", "run_comparison"]

HOST_NAMES = ("openevolve", "inprocess")

_pool_of_worker: RecordedPool | None = None


def _openevolve_host() -> CompareHost:
    try:
        from gpu_forecasters_openevolve.compare_host import OpenEvolveHost
    except ModuleNotFoundError as error:
        if error.name != "openevolve":
            raise
        raise MissingExtraError("openevolve", "openevolve") from None
    return OpenEvolveHost()


def _check(pool: RecordedPool, host: str, budget: int, seeds: int) -> None:
    if host not in HOST_NAMES:
        raise ConfigError(f"unknown host {host!r}; there are: {', '.join(HOST_NAMES)}")
    if not 2 <= budget <= len(pool.candidates):
        raise ConfigError(
            f"--budget is 2 to {len(pool.candidates)}, the number of kernels in this pool, got {budget}"
        )
    if seeds < 1:
        raise ConfigError(f"--seeds is at least 1, got {seeds}")


def _load_pool_of_worker(source: str) -> None:
    global _pool_of_worker
    _pool_of_worker = open_pool(source)


def _run_in_worker(arm: Arm, seed: int, budget: int) -> ArmRun:
    assert _pool_of_worker is not None
    with tempfile.TemporaryDirectory(prefix="gpu-forecasters-") as folder:
        return InProcessHost().run(_pool_of_worker, arm, seed, budget, Path(folder))


def _inprocess_runs(
    source: str, arms: Sequence[Arm], seeds: Sequence[int], budget: int, progress: WorkProgress
) -> list[ArmRun]:
    """All searches, as many at once as there are cores."""
    found: list[ArmRun] = []
    # Small matrices gain nothing from threads, and the searches themselves fill the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    workers = min(os.cpu_count() or 1, len(arms) * len(seeds))
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_load_pool_of_worker, initargs=(source,)
    ) as executor:
        futures = [executor.submit(_run_in_worker, arm, seed, budget) for seed in seeds for arm in arms]
        for future in as_completed(futures):
            found.append(future.result())
            progress.update(len(found) * budget, f"{found[-1].arm}, seed {found[-1].seed}")
    return found


def _host_runs(
    host: CompareHost,
    pool: RecordedPool,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    budget: int,
    out: Path,
    progress: WorkProgress,
) -> list[ArmRun]:
    """One search after the other: each has worker processes of its own."""
    found: list[ArmRun] = []
    for seed in seeds:
        for arm in arms:
            label, done = f"{arm.name}, seed {seed}", len(found) * budget
            folder = out / "runs" / f"{arm.name}-{seed}"
            found.append(
                host.run(
                    pool,
                    arm,
                    seed,
                    budget,
                    folder,
                    lambda more, done=done, label=label: progress.update(done + more, label),  # type: ignore[misc]
                )
            )
    return found


def run_comparison(
    source: str | Path,
    *,
    host: str,
    budget: int,
    seeds: int,
    arms: Sequence[str],
    surrogate: SurrogateConfig,
    out: Path,
) -> dict[str, Any]:
    """Compare arms at equal budget.

    Args:
        source: name of a recorded task, or path of a pool file.
        host: ``openevolve`` or ``inprocess``.
        budget: measurements of each search, the reference's included.
        seeds: number of paired seeds, 0 to ``seeds`` - 1.
        arms: names of the arms.
        surrogate: configuration of the arm ``surrogate``.
        out: folder for ``summary.json``, ``curves.png`` and the runs.

    Returns:
        The content of ``summary.json``.

    Raises:
        ConfigError: unknown host or arm, or a budget that the pool cannot serve.
        PoolFileError: the pool cannot be read.
    """
    pool = open_pool(source)
    _check(pool, host, budget, seeds)
    out.mkdir(parents=True, exist_ok=True)
    chosen = build_arms(arms, pool, surrogate, out.resolve())
    numbers = list(range(seeds))
    with WorkProgress(len(chosen) * seeds * budget) as progress:
        if host == InProcessHost.name:
            found = _inprocess_runs(str(source), chosen, numbers, budget, progress)
        else:
            found = _host_runs(_openevolve_host(), pool, chosen, numbers, budget, out, progress)
    runs = {
        arm.name: sorted((run for run in found if run.arm == arm.name), key=lambda run: run.seed)
        for arm in chosen
    }
    summary = summarise(runs, task=pool.task, host=host, budget=budget, pool_best=pool.best_speedup)
    summary["device"] = pool.device
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw_curves(runs, summary, out / "curves.png")
    return summary
