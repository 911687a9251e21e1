"""How long the measurements of tasks will take, judged by those in ``rows/``."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.generators.candidate import load_task
from benchmarks.generators.jobs import Job
from benchmarks.generators.rows import ROWS, read_rows
from benchmarks.generators.timing import REPEATS_SLOW, SLOW_MS
from benchmarks.generators.variant import Variant
from gpu_forecasters_plugin.recorded.shipped import recorded_task_names

ENDED_S = 15.0
USUAL_HANGS = 2
START_S = 5.0
FIRST_S = 4.0
BEHIND_S = 0.5
COMPILE_S = {"triton": 2.0, "cuda": 4.0, "load_inline": 60.0}

Row = dict[str, Any]


def _kind(variant: Variant) -> str:
    """What a source's time at the GPU depends on, beside its kernels."""
    for mark in ("torch.compile", "autotune", "load_inline"):
        if mark in variant.code:
            return mark
    return variant.language


def _seconds(row: Row) -> float:
    """What a row would take now.

    Hopeless races with the host are given up sooner, slow calls are repeated less, libraries are loaded before the
    first source, and a build that fails does so before.
    """
    shapes = row.get("shapes", ())
    seconds = float(row["seconds"]) - BEHIND_S * sum(bool(shape.get("host_behind")) for shape in shapes)
    slow = [shape for shape in shapes if shape["median_us"] > 1000 * SLOW_MS]
    seconds -= sum(1e-6 * shape["median_us"] * (shape["repeats"] - REPEATS_SLOW) for shape in slow)
    on_gpu = sum(1e-6 * shape["median_us"] * shape["repeats"] for shape in shapes)
    if seconds - on_gpu > FIRST_S:
        return on_gpu
    return max(0.01, seconds)


def _ends_its_process(row: Row) -> bool:
    return row.get("outcome") == "timeout" or "ended with code" in str(row.get("error"))


def former_seconds() -> tuple[dict[str, float], dict[str, float], set[str]]:
    """Of sources that were measured before: seconds by id, their means by kind, and ids of those that end a process."""
    by_id: dict[str, float] = {}
    by_kind: dict[str, list[float]] = defaultdict(list)
    ended: set[str] = set()
    for task in recorded_task_names():
        kinds = {variant.id: _kind(variant) for variant in load_task(task).make_pool().variants}
        for path in ROWS.glob(f"{task}.run*.jsonl.gz"):
            for row in read_rows(path):
                name = str(row.get("id"))
                if name in kinds and _ends_its_process(row):
                    ended.add(name)
                elif name in kinds and "seconds" in row:
                    by_id[name] = _seconds(row)
                    by_kind[kinds[name]].append(by_id[name])
    return by_id, {kind: statistics.fmean(seconds) for kind, seconds in by_kind.items()}, ended


def measured_before(job: Job, by_id: Mapping[str, float]) -> bool:
    """Whether sources of a task were measured before."""
    return any(variant.id in by_id for variant in job.variants)


def plan(jobs: Sequence[Job], runs: Sequence[int], workers: int, gpus: int) -> str:
    """A table of what is left to measure and to compile, task by task.

    Args:
        jobs: The tasks in their order.
        runs: The runs of each.
        workers: Processes that compile.
        gpus: GPUs that measure.
    """
    by_id, by_kind, ended = former_seconds()
    usual = statistics.fmean(by_kind.values())
    lines = ["task                  left  measured before  GPU s  ends at  cores' s  compiled at"]
    total = compiling = 0.0
    for job in jobs:
        left = [(run, job.variants[index]) for run in runs for index in job.todo(run)]
        distinct = {variant.id: variant for _, variant in left}
        seconds = sum(by_id.get(v.id, by_kind.get(_kind(v), usual)) for _, v in left if v.id not in ended)
        # In the second run it is not tried again.
        hangs = sum(run == runs[0] for run, v in left if v.id in ended)
        if left and not measured_before(job, by_id):
            hangs = USUAL_HANGS
        seconds += ENDED_S * hangs
        seconds += START_S * len({run for run, _ in left})
        total += seconds
        cores = sum(COMPILE_S.get(_kind(v), COMPILE_S.get(v.language, 0.0)) for v in distinct.values())
        compiling += cores
        lines.append(
            f"{job.name:20} {len(left):5d} {sum(name in by_id for name in distinct):16d} {seconds:6.0f}"
            f" {total / gpus:8.0f} {cores:9.0f} {compiling / workers:12.0f}"
        )
    lines.append(
        f"{gpus} GPU(s), {workers} compiling processes; means of sources measured before: "
        + ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in sorted(by_kind.items()))
    )
    return "\n".join(lines)
