"""Whether times are the kernel's own while neighbours compile, check and time other kernels.

    python timing_check.py --task add_norm_gelu --out check

Times a few programs again and again, first alone, then while every other process is kept busy with new kernels.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from comparing.search import ROOT
from measuring.device import DEVICES, why_not
from measuring.workers import MeasuringError, TimeLimits, WarmWorkers
from proposing.mutation import mutated
from proposing.proposer import TASKS, space_of
from proposing.space import Design, Space

from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.files import prepare_folder, write_json
from gpu_forecasters_plugin.progress import WorkProgress


def _programs(space: Space) -> list[str]:
    """The usual program of every family."""
    return [space.write(family.design()) for family in space.families.values()]


def _round(workers: WarmWorkers, task: Path, codes: Sequence[str]) -> list[float]:
    """Time of each program in microseconds, one after the other."""
    times = []
    for code in codes:
        found = workers.measure(task, code)
        if found["outcome"] != "ok":
            raise MeasuringError(f"a program that is right came out as {found['outcome']}: {found['error']}")
        times.append(found["time_us"])
    return times


class _Neighbours:
    """Threads that keep the other processes busy, each with kernels of its own; a context manager."""

    def __init__(self, workers: WarmWorkers, task: Path, space: Space, count: int) -> None:
        self._stop = threading.Event()
        self.measured = 0
        work = (workers, task, space)
        self._threads = [threading.Thread(target=self._work, args=(*work, number)) for number in range(count)]

    def _work(self, workers: WarmWorkers, task: Path, space: Space, number: int) -> None:
        rng = random.Random(f"neighbour {number}")
        design: Design = space.start
        with suppress(MeasuringError):
            while not self._stop.is_set():
                design = mutated(space, design, rng)
                workers.measure(task, space.write(design))
                self.measured += 1

    def __enter__(self) -> _Neighbours:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _spread(times: Sequence[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)


def _row(family: str, alone: Sequence[float], busy: Sequence[float]) -> dict[str, Any]:
    row: dict[str, Any] = {"program": family, "alone_us": list(alone), "busy_us": list(busy)}
    row["ratio"] = statistics.median(busy) / statistics.median(alone)
    return row | {"range_alone": _spread(alone), "range_busy": _spread(busy)}


def check(task: str, device: str, count: int, repeats: int, out: Path) -> dict[str, Any]:
    """Time every family's usual program alone and beside busy neighbours.

    ``summary.json`` is written after every round beside neighbours: who ends the check early has the rounds so far.

    Raises:
        MeasuringError: a program that is right could not be measured.
    """
    space, path = space_of(task), ROOT / "tasks" / task / "task.py"
    codes = _programs(space)
    workers = WarmWorkers(device, [path], count, limits=TimeLimits(), log=out.resolve() / "workers.log")
    gpu = detect_device().name if device == "cuda" else "Triton's interpreter, no GPU"
    about = {"task": task, "gpu": gpu, "processes": count}
    alone, busy = [], []
    try:
        with WorkProgress(1 + 2 * repeats, "rounds") as progress:
            progress.update(0, "warming up")
            _round(workers, path, codes)  # compiled, and everything warm
            for done in range(1, repeats + 1):
                progress.update(done, "alone")
                alone.append(_round(workers, path, codes))
            with _Neighbours(workers, path, space, count - 1) as neighbours:
                for done in range(repeats + 1, 2 * repeats + 1):
                    progress.update(done, "beside neighbours")
                    busy.append(_round(workers, path, codes))
                    found = about | {"neighbours_measured": neighbours.measured}
                    found["programs"] = _rows(space, alone, busy)
                    write_json(out / "summary.json", found)
            progress.update(2 * repeats + 1, "beside neighbours")
    finally:
        workers.close()
    return found


def _rows(
    space: Space, alone: Sequence[Sequence[float]], busy: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    by_program = zip(space.families, zip(*alone, strict=True), zip(*busy, strict=True), strict=True)
    return [_row(*each) for each in by_program]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument(
        "--workers", type=int, default=8, help="processes, of which one is watched (default: 8)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="times of each program (default: 5)")
    options = parser.parse_args(arguments)
    if options.workers < 2 or options.repeats < 1:
        parser.error("it takes at least 2 --workers and 1 --repeats")
    if problem := why_not(options.device):
        parser.error(f"--device {options.device}: {problem}")
    prepare_folder(options.out)
    try:
        found = check(options.task, options.device, options.workers, options.repeats, options.out)
    except MeasuringError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{found['task']} on {found['gpu']}: {found['neighbours_measured']} kernels of neighbours meanwhile"
    )
    for row in found["programs"]:
        print(
            f"  {row['program']:<14} {statistics.median(row['alone_us']):10.1f} us alone; beside neighbours "
            f"{row['ratio'] - 1:+.2%}; range alone {row['range_alone']:.2%}, beside neighbours {row['range_busy']:.2%}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
