"""Searches with and without the filter on a real GPU, with the same proposals and the same number of measurements.

    python run.py --task add_norm_gelu --seeds 3 --budget 64 --out live

The same command goes on with a comparison that was interrupted: searches that have ended are kept, the others begin
anew, and nothing is measured twice.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer
from comparing.confirming import confirmed_speedups
from comparing.kept import kept_document
from comparing.results import curves_image, print_summary, summarise
from comparing.search import ARMS, ROOT, Found, Search, Stopped
from measuring.device import DEVICES, why_not
from measuring.service import MeasuringService
from measuring.workers import MeasuringError, TimeLimits, WarmWorkers
from proposing.proposer import TASKS

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.cli.interrupts import interruptible
from gpu_forecasters_plugin.config import load_surrogate_config
from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.errors import ConfigError, GpuForecastersError
from gpu_forecasters_plugin.files import prepare_folder, write_atomically, write_json
from gpu_forecasters_plugin.folder_lock import hold_folder
from gpu_forecasters_plugin.progress import WorkProgress

_POLL_S = 0.5
_VERSIONS = ("openevolve", "torch", "triton")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help=f"{', '.join(TASKS)}; several with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=64, help="measurements of each search (default: 64)")
    parser.add_argument("--arms", default="baseline,surrogate", help=f"of {', '.join(ARMS)}")
    parser.add_argument(
        "--surrogate", type=Path, help="file of another surrogate: section, for the arm surrogate"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--device", choices=DEVICES, default="cuda", help="cpu: Triton's interpreter, a mere try"
    )
    parser.add_argument(
        "--workers", type=int, default=max(1, cores - 3), help="processes that compile and measure"
    )
    parser.add_argument(
        "--at-once", type=int, help="measurements of a search in flight (default: the task's 4)"
    )
    parser.add_argument("--parallel", type=int, default=max(2, cores // 4), help="searches side by side")
    options = parser.parse_args(arguments)
    for name in ("task", "arms"):
        setattr(options, name, list(dict.fromkeys(getattr(options, name).split(","))))
    for name, known in (("task", TASKS), ("arms", ARMS)):
        for value in getattr(options, name):
            if value not in known:
                parser.error(f"--{name}: unknown {value!r}; there are {', '.join(known)}")
    if "baseline" not in options.arms:
        options.arms.insert(0, "baseline")  # everything is compared with it
    for name, least in (("seeds", 1), ("budget", 2), ("workers", 1), ("parallel", 1), ("at_once", 1)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} is at least {least}, got {getattr(options, name)}")
    if options.surrogate is not None:
        try:
            load_surrogate_config(options.surrogate, required=True)
        except ConfigError as error:
            parser.error(f"--surrogate: {error}")
    if problem := why_not(options.device):
        parser.error(f"--device {options.device}: {problem}")
    return options


def _about(options: argparse.Namespace) -> dict[str, Any]:
    versions = {"gpu-forecasters-plugin": __version__}
    for name in _VERSIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    device = detect_device() if options.device == "cuda" else None
    return {
        "gpu": "Triton's interpreter, no GPU" if device is None else device.name,
        "driver": "" if device is None else device.driver,
        "python": platform.python_version(),
        "versions": versions,
        "workers": options.workers,
        "searches_side_by_side": options.parallel,
        "date": time.strftime("%Y-%m-%d"),
    }


def _searches(task: str, options: argparse.Namespace) -> list[Search]:
    """Every arm with every seed; those that are compared with each other stand together."""
    runs = options.out.resolve() / task / "runs"
    # All cores together, for the compiler's dry runs of all searches that run side by side.
    cores = max(1, len(os.sched_getaffinity(0)) // options.parallel)
    return [
        Search(
            task, arm, seed, options.budget, runs / f"{arm}-{seed}", options.surrogate, cores, options.at_once
        )
        for seed in range(options.seeds)
        for arm in options.arms
    ]


def _search_all(searches: Sequence[Search], service: MeasuringService, device: str, parallel: int) -> None:
    """Run all searches, several at once; one that fails stops no other.

    Raises:
        GpuForecastersError: the first that failed, after the others have ended.
    """
    stop = threading.Event()
    unfinished = [search for search in searches if search.found() is None]
    total, before = sum(search.budget for search in searches), service.answers
    done = total - sum(search.budget for search in unfinished)
    with WorkProgress(total) as progress, ThreadPoolExecutor(parallel) as threads:
        running = {threads.submit(search.run, service.address, device, stop) for search in unfinished}
        try:
            pending = running
            while pending:
                _, pending = wait(pending, timeout=_POLL_S)
                count = min(total, done + service.answers - before)
                progress.update(count, f"{len(pending)} searches to end")
        finally:
            stop.set()
    problems = [error for future in running if (error := future.exception()) is not None]
    for error in problems:
        if not isinstance(error, Stopped):
            raise error


def _finish(
    task: str, options: argparse.Namespace, service: MeasuringService, searches: Sequence[Search]
) -> None:
    runs: dict[str, list[Found]] = {arm: [] for arm in options.arms}
    for search in searches:
        found = search.found()
        assert found is not None
        runs[search.arm].append(found)
    out = options.out / task
    confirmed = confirmed_speedups(service.workers, task, runs, out)
    summary = summarise(runs, confirmed, task=task, budget=options.budget, about=_about(options))
    write_json(out / "summary.json", summary)
    write_atomically(out / "curves.png", curves_image(runs, summary))
    print_summary(summary)
    print(f"plot: {out / 'curves.png'}   numbers: {out / 'summary.json'}   ledgers: {out / 'runs'}")


def _claim_folder(options: argparse.Namespace) -> None:
    """Refuse a folder that holds searches which these cannot be compared with."""
    prepare_folder(options.out)
    hold_folder(options.out)
    settings, path = _settings(options), options.out / "comparison.json"
    kept = kept_document(path, dict) or {}
    for name, value in settings.items():
        if name in kept and kept[name] != value:
            raise ConfigError(
                f"folder {options.out} holds searches with {name} {kept[name]}, not {value}: choose another --out"
            )
    write_json(path, kept | settings)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What all searches of a folder share; more seeds and arms may be added later."""
    settings = {
        "device": options.device,
        "budget": options.budget,
        "at_once": options.at_once or "as the task",
    }
    if options.device == "cuda":
        settings["gpu"] = detect_device().name
    if "surrogate" in options.arms:
        file = options.surrogate
        content = None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
        settings["surrogate"] = "as the task" if content is None else f"file {content[:16]}"
    return settings


def _compare(options: argparse.Namespace) -> None:
    _claim_folder(options)
    tasks = [ROOT / "tasks" / task / "task.py" for task in options.task]
    workers = WarmWorkers(
        options.device, tasks, options.workers, limits=TimeLimits(), log=options.out.resolve() / "workers.log"
    )
    with MeasuringService(workers, options.out / "measurements.jsonl") as service:
        searches = {task: _searches(task, options) for task in options.task}
        # Tasks take turns, and searches that are compared with each other run side by side.
        side_by_side = [search for group in zip(*searches.values(), strict=True) for search in group]
        side_by_side.sort(key=lambda search: search.seed)
        device = "auto" if options.device == "cuda" else "Triton interpreter"
        _search_all(side_by_side, service, device, options.parallel)
        for task, each in searches.items():
            _finish(task, options, service, each)
        write_json(
            options.out / "measuring.json",
            {"answers": service.answers, "measured": service.measured, "replaced_workers": workers.replaced},
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        with interruptible("start the same command again to go on"):
            _compare(options)
    except typer.Exit as ended:
        return ended.exit_code
    except (GpuForecastersError, MeasuringError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
