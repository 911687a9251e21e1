"""Merges the runs of a measured task into a pool file.

    python -m benchmarks.generators.build --task rmsnorm cross_entropy@h200
    python -m benchmarks.generators.build --collect first/rows.jsonl second/rows.jsonl

The second form first files what `measure` wrote, in however many sessions, under ``rows/``, as
``NAME.run1.jsonl.gz`` and ``NAME.run2.jsonl.gz``. NAME is the task on the device that it was measured on first, and
``task@device`` on any other. From these rows ``gpu_forecasters_plugin/recorded/data/NAME.jsonl.gz`` is built. A time is
the geometric mean over the shapes of the medians, averaged over the runs in log space. Where the medians of a shape
lie more than 10 % apart, the smallest counts: a busy host can only add time. Sources that were not measured twice are
left out; crowded speed-up bins are thinned until a third of the sound sources is slower than the seed, if the pool
stays large enough.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.generators.candidate import load_task
from benchmarks.generators.graph import edit_graph, edits_between
from benchmarks.generators.rows import ROWS, collect, read_rows
from benchmarks.generators.variant import Variant

EDGES = (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 4.0)
DISTURBED = 1.10
SLOWER_SHARE = 1 / 3
FAILURE_SHARE = 0.2
SMALLEST_POOL = 155
WANTED_POOL = 300
DATA = Path(__file__).resolve().parents[2] / "gpu_forecasters_plugin" / "recorded" / "data"

Row = dict[str, Any]


def bin_of(speedup: float) -> int:
    """The index, from 0 to 7, of the bin that holds a speed-up; each bin holds its upper edge."""
    return sum(speedup > edge for edge in EDGES)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def read_runs(results: Path, name: str) -> tuple[list[dict[str, Row]], list[Row]]:
    """Returns each run's rows by candidate, and the notes on device and versions in the order of the files.

    Args:
        results: A folder of files of rows.
        name: A task, or ``task@device``.
    """
    runs: list[dict[str, Row]] = []
    notes: list[Row] = []
    for path in sorted(results.glob(f"{name}.run*.jsonl*")):
        rows: dict[str, Row] = {}
        for row in read_rows(path):
            if "meta" in row:
                notes.append(row["meta"])
            else:
                rows[row["id"]] = row
        runs.append(rows)
    return runs, notes


def run_time(row: Row) -> float:
    """One run's time of a sound candidate in microseconds."""
    return geometric_mean(shape["median_us"] for shape in row["shapes"])


def merge(variant: Variant, rows: Sequence[Row]) -> Row:
    """Makes one pool row of the rows of all runs."""
    merged: Row = {"id": variant.id, "code": variant.code, "language": variant.language}
    failed = [row for row in rows if row["outcome"] != "ok"]
    if failed:
        merged |= {"outcome": failed[0]["outcome"], "time_us": None, "error": failed[0].get("error", "")}
        if len({row["outcome"] for row in rows}) > 1:
            merged["flaky"] = True
        return merged
    by_shape = []
    for shapes in zip(*(row["shapes"] for row in rows), strict=True):
        medians = [shape["median_us"] for shape in shapes]
        disturbed = max(medians) > DISTURBED * min(medians)
        by_shape.append(min(medians) if disturbed else geometric_mean(medians))
        if disturbed:
            merged["disturbed"] = True
    times = [run_time(row) for row in rows]
    within = [math.sqrt(statistics.fmean(s["spread"] ** 2 for s in row["shapes"])) for row in rows]
    between = 0.0 if len(times) < 2 or "disturbed" in merged else abs(math.log(times[0] / times[1])) / 2
    merged |= {
        "outcome": "ok",
        "time_us": round(geometric_mean(by_shape), 4),
        "spread": round(max(min(within), between), 5),
        "time_us_runs": [round(time, 4) for time in times],
        "shape_times_us": [round(time, 4) for time in by_shape],
    }
    return merged


def thin(task: ModuleType, variants: list[Variant], rows: Mapping[str, Row]) -> list[Variant]:
    """Drops sources from crowded bins until a third is slower than the seed and few enough fail.

    A pool of `WANTED_POOL` sources is not thinned below that, a smaller one not below `SMALLEST_POOL`. The seed, the
    best ten and what a broken source was derived from stay; the others go in the order of the hash of
    their source.
    """
    seed = next(variant for variant in variants if variant.key == task.SEED.key)
    reference = rows[seed.id]["time_us"]
    sound = [variant for variant in variants if rows[variant.id]["outcome"] == "ok"]
    best = sorted(sound, key=lambda variant: rows[variant.id]["time_us"])[:10]
    parents = {
        tuple(pair for pair in variant.key if pair[0] != "bug") for variant in variants if variant.broken
    }
    stays = {seed.id, *(variant.id for variant in best)}
    stays |= {variant.id for variant in variants if variant.key in parents}
    kept = {variant.id: variant for variant in variants}

    def order(variant: Variant) -> bytes:
        return hashlib.sha256(("thin " + variant.code).encode()).digest()

    while len(kept) > (WANTED_POOL if len(variants) >= WANTED_POOL else SMALLEST_POOL):
        failing = [variant for variant in kept.values() if rows[variant.id]["outcome"] != "ok"]
        times = {i: rows[i]["time_us"] for i in kept if rows[i]["outcome"] == "ok"}
        if len(failing) > FAILURE_SHARE * len(kept):
            gone = min(failing, key=order)
        else:
            slower = sum(time > reference for time in times.values())
            if slower >= SLOWER_SHARE * len(times):
                break
            crowds = Counter(bin_of(reference / time) for time in times.values() if time <= reference)
            options: list[Variant] = []
            for crowd, _ in crowds.most_common():
                options = [kept[i] for i in times if i not in stays and bin_of(reference / times[i]) == crowd]
                if options and crowds[crowd] > 12:
                    break
            if not options:
                break
            gone = min(options, key=order)
        del kept[gone.id]
    return list(kept.values())


def ranks(values: Sequence[float]) -> list[float]:
    """The ranks of numbers, ties averaged."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for position in range(start, stop):
            result[order[position]] = (start + stop - 1) / 2
        start = stop
    return result


def agreement(runs: Sequence[Mapping[str, Row]], ids: Sequence[str], seed: str) -> dict[str, Any]:
    """How well the first two runs that measured a candidate agree; every run has measured the seed."""
    pairs = {i: [run for run in runs if i in run][:2] for i in ids}
    sound = [i for i in ids if all(run[i]["outcome"] == "ok" for run in pairs[i])]
    first, second = ([run_time(pairs[i][turn][i]) for i in sound] for turn in (0, 1))
    bins = [[bin_of(run_time(run[seed]) / run_time(run[i])) for run in pairs[i]] for i in sound]
    return {
        "measured_twice": len(ids),
        "spearman": round(statistics.correlation(ranks(first), ranks(second)), 5),
        "median_relative_difference": round(
            statistics.median(abs(math.expm1(math.log(a / b))) for a, b in zip(first, second, strict=True)), 5
        ),
        "same_outcome_share": round(
            statistics.fmean(
                one[i]["outcome"] == other[i]["outcome"]
                for i, (one, other) in pairs.items()
                if not other[i].get("not_repeated")
            ),
            4,
        ),
        "same_bin_share": round(statistics.fmean(one == other for one, other in bins), 4),
    }


def write_jsonl(path: Path, lines: Iterable[Row]) -> None:
    """Writes gzip-compressed JSONL that depends on its content alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0, compresslevel=9) as packed:
        for line in lines:
            packed.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
    path.write_bytes(buffer.getvalue())


def pool_header(
    task: ModuleType, kept: Sequence[Variant], runs: Sequence[Mapping[str, Row]], notes: Sequence[Row]
) -> Row:
    """What a pool file says first: the task, the device, the versions and how well the runs agree."""
    devices = [note["gpu"] for note in notes if note.get("gpu")]
    half_way = [note["half_way"] for note in notes if note.get("half_way")] or devices
    begun = [note for note in notes if "torch" in note]
    first = begun[0]
    clocks = half_way[0]
    repeats = Counter(
        shape["repeats"] for run in runs for row in run.values() for shape in row.get("shapes", ())
    )
    seed = next(variant.id for variant in kept if variant.key == task.SEED.key)
    return {
        "task": task.TASK,
        "device": devices[0]["name"],
        "reference_id": seed,
        "operation": task.OPERATION,
        "language_counts": dict(sorted(Counter(variant.language for variant in kept).items())),
        "shapes": task.SHAPES,
        "tolerance": task.TOLERANCE,
        "repeats": repeats.most_common(1)[0][0],
        "repeat_counts": {str(count): times for count, times in sorted(repeats.items())},
        "timing": " | ".join(dict.fromkeys(note["method"] for note in begun)),
        "driver": devices[0]["driver_version"],
        "clocks": {
            "sm": clocks["clocks.sm"],
            "memory": clocks["clocks.mem"],
            "sm_max": clocks["clocks.max.sm"],
            "memory_max": clocks["clocks.max.mem"],
        },
        "torch": first["torch"],
        "triton": first["triton"],
        "cuda": first["cuda"],
        "measured_on": first["date"],
        "time_us_by_shape": "shape_times_us follows the order of shapes",
        "agreement": agreement(runs, [variant.id for variant in kept], seed),
    }


def build(name: str, results: Path, out: Path) -> str:
    """Builds the pool file of a task, or of ``task@device``, and returns a table of what it holds."""
    task = load_task(name.partition("@")[0])
    runs, notes = read_runs(results, name)
    pool = task.make_pool()
    generated = pool.variants
    measured = [variant for variant in generated if sum(variant.id in run for run in runs) >= 2]
    if not any(variant.key == task.SEED.key for variant in measured):
        raise ValueError(f"{name}: the seed, which speed-ups are relative to, was not measured twice")
    rows = {
        variant.id: merge(variant, [run[variant.id] for run in runs if variant.id in run])
        for variant in measured
    }
    kept = thin(task, measured, rows)
    keys = {variant.key for variant in kept}
    graph = edit_graph(kept, [edge for edge in pool.edges if keys.issuperset(edge)])
    kept.sort(key=lambda variant: (variant.key != task.SEED.key, variant.id))
    for variant in kept:
        rows[variant.id]["neighbours"] = graph[variant.id]
    header = pool_header(task, kept, runs, notes) | {
        "not_measured": len(generated) - len(measured),
        "thinned_out": len(measured) - len(kept),
    }
    write_jsonl(out / f"{name}.jsonl.gz", [{"pool": header}, *(rows[variant.id] for variant in kept)])
    return table(kept, rows, graph, header)


def table(
    kept: Sequence[Variant], rows: Mapping[str, Row], graph: Mapping[str, list[str]], header: Row
) -> str:
    """A few lines on what a pool holds."""
    seed = header["reference_id"]
    times = {
        variant.id: rows[variant.id]["time_us"] for variant in kept if rows[variant.id]["outcome"] == "ok"
    }
    reference = times[seed]
    best = min(times, key=times.__getitem__)
    bins = Counter(bin_of(reference / time) for time in times.values())
    degrees = sorted(len(graph[variant.id]) for variant in kept)
    steps = edits_between(graph, seed)
    outcomes = Counter(rows[variant.id]["outcome"] for variant in kept)
    top = sorted(times, key=times.__getitem__)[:5]
    return "\n".join(
        [
            f"{header['task']}: n {len(kept)} (not measured {header['not_measured']},"
            f" thinned out {header['thinned_out']}),"
            f" languages {header['language_counts']}",
            f"  outcomes {dict(outcomes)}, failing {1 - len(times) / len(kept):.0%}",
            f"  seed {reference:.1f} us, best {times[best]:.1f} us: {reference / times[best]:.2f}x;"
            f" slower than the seed {sum(time > reference for time in times.values()) / len(times):.0%}",
            f"  bins {[bins[k] for k in range(8)]}",
            f"  degree {degrees[0]} / {degrees[len(degrees) // 2]} / {degrees[-1]};"
            f" seed {len(graph[seed])}; edits from seed to best {steps[best]}, to the top five"
            f" {[steps[i] for i in top]}; reached {len(steps)}",
            f"  agreement {header['agreement']}",
            f"  flaky {sum(bool(rows[v.id].get('flaky')) for v in kept)},"
            f" disturbed {sum(bool(rows[v.id].get('disturbed')) for v in kept)}",
        ]
    )


def main() -> None:
    """Parses the arguments and builds the pools."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", nargs="+", help="tasks whose rows are there, such as cross_entropy@h200")
    which.add_argument("--collect", nargs="+", type=Path, metavar="FILE", help="files of rows from `measure`")
    parser.add_argument("--rows", type=Path, default=ROWS, help="folder of the rows that are kept")
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    for name in options.task or collect(options.collect, options.rows):
        print(build(name, options.rows, options.out))


if __name__ == "__main__":
    main()
