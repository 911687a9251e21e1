"""Do times that were measured on one GPU say what is fast on another?

``python -m benchmarks.device_transfer`` compares every recorded task that was measured on two devices, on the sources
that both measured: how alike are the order of their times, their speed-up bins and their outcomes, and how good is the
fastest kernel of one device on the other. Then a learned forecaster is shown the first 64 sources with the times of one
device and asked about the others on either: what is lost when training and use are on different devices, and how much
better is that than to have measured nothing of the task?
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.report import provenance, write_result
from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.calibration.ranking import spearman
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import Forecast, Observation, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_task
from gpu_forecasters_plugin.recorded.profiles import recorded_verdicts
from gpu_forecasters_plugin.recorded.shipped import recorded_names, short_device
from gpu_forecasters_plugin.screen.profile import SourceProfile

MEASURED_FIRST = 64
FORECASTER = {"forecaster": {"kind": "learned", "hedge": False}}

Numbers = dict[str, Any]


def pairs_of_devices() -> list[tuple[str, str]]:
    """Names of the same task on two devices, for every task and every two of its devices."""
    by_task: dict[str, list[str]] = {}
    for name in recorded_names():
        by_task.setdefault(name.partition("@")[0], []).append(name)
    return [pair for names in by_task.values() for pair in combinations(names, 2)]


def sound_on_both(one: RecordedPool, other: RecordedPool) -> list[str]:
    """Ids of the sources that ran right on both devices; the reference is the first."""
    common = [
        name
        for name, candidate in one.candidates.items()
        if name in other.candidates and candidate.time_us and other.candidates[name].time_us
    ]
    return sorted(common, key=lambda name: name != one.reference_id)


def agreement(one: RecordedPool, other: RecordedPool) -> Numbers:
    """How alike two devices are.

    Raises:
        ValueError: the devices' speed-ups are relative to different kernels.
    """
    if one.reference.key != other.reference.key:
        raise ValueError(f"{one.label} and {other.label} have different references")
    both = one.candidates.keys() & other.candidates.keys()
    sound = sound_on_both(one, other)
    times = [[_time(pool, name) for name in sound] for pool in (one, other)]
    logs = [[math.log2(pool.speedup(name) or 1.0) for name in sound] for pool in (one, other)]
    bins = [[BINS.index(2.0**value) for value in column] for column in logs]
    apart = [abs(a - b) for a, b in zip(*bins, strict=True)]
    return {
        "sources": len(both),
        "sound_on_both": len(sound),
        "same_outcome": statistics.fmean(
            one.candidates[name].outcome == other.candidates[name].outcome for name in both
        ),
        "spearman": spearman(*map(np.array, times)),
        "same_bin": statistics.fmean(distance == 0 for distance in apart),
        "within_one_bin": statistics.fmean(distance <= 1 for distance in apart),
        "median_abs_log2": statistics.median(abs(a - b) for a, b in zip(*logs, strict=True)),
        "best_of_first_on_second": _kept_by_best(one, other, sound),
        "best_of_second_on_first": _kept_by_best(other, one, sound),
    }


def _time(pool: RecordedPool, name: str) -> float:
    time_us = pool.candidates[name].time_us
    assert time_us is not None
    return time_us


def _kept_by_best(chosen_on: RecordedPool, used_on: RecordedPool, sound: Sequence[str]) -> float:
    """Speed of one device's fastest kernel on another, over that of the fastest there."""
    best = min(sound, key=lambda name: _time(chosen_on, name))
    return min(_time(used_on, name) for name in sound) / _time(used_on, best)


def transfer(one: RecordedPool, other: RecordedPool, seeds: int) -> list[Numbers]:
    """How good forecasts are by the device learned from, or none, and the one asked about; means over random orders."""
    sound = sound_on_both(one, other)
    rows = []
    for asked_on in (one, other):
        for learned_on in (None, one, other):
            found = [_scores(learned_on, asked_on, sound, seed) for seed in range(seeds)]
            source = None if learned_on is None else short_device(learned_on.device)
            head = {"learned_on": source, "asked_on": short_device(asked_on.device)}
            rows.append(head | {name: _mean([scores[name] for scores in found]) for name in found[0]})
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _scores(
    learned_on: RecordedPool | None, asked_on: RecordedPool, sound: Sequence[str], seed: int
) -> dict[str, float | None]:
    order = list(sound[1:])
    random.Random(seed).shuffle(order)
    shown, asked = [sound[0], *order[: MEASURED_FIRST - 1]], order[MEASURED_FIRST - 1 :]
    config = parse_surrogate_config(FORECASTER).forecaster
    forecaster = build_forecaster(config, seed=seed, operation=asked_on.operation)
    try:
        if learned_on is not None:
            forecaster.observe(_observations(learned_on, shown))
        answers = forecaster.forecast([_query(asked_on, name, _profiles(asked_on)) for name in asked])
    finally:
        forecaster.close()
    forecasts = [answer for answer in answers if isinstance(answer, Forecast)]
    assert len(forecasts) == len(asked), "the learned forecaster answers every question"
    logs = [math.log2(asked_on.speedup(name) or 1.0) for name in asked]
    apart = [
        abs(forecast.predicted_bin - BINS.index(2.0**log))
        for forecast, log in zip(forecasts, logs, strict=True)
    ]
    return {
        "exact": statistics.fmean(distance == 0 for distance in apart),
        "within_one": statistics.fmean(distance <= 1 for distance in apart),
        "spearman": spearman(np.array([forecast.expected_log2() for forecast in forecasts]), np.array(logs)),
    }


def _observations(pool: RecordedPool, names: Sequence[str]) -> list[Observation]:
    profiles = _profiles(pool)
    return [
        Observation(
            pool.candidates[name].key,
            pool.candidates[name].code,
            pool.speedup(name) or 1.0,
            profile=profiles.get(name),
        )
        for name in names
    ]


def _profiles(pool: RecordedPool) -> Mapping[str, SourceProfile | None]:
    return {name: verdict.profile for name, verdict in recorded_verdicts(pool.source).items()}


def _query(pool: RecordedPool, name: str, profiles: Mapping[str, SourceProfile | None]) -> Query:
    reference = pool.reference
    profile = profiles.get(pool.reference_id)
    return Query(
        pool.candidates[name].key,
        pool.candidates[name].code,
        reference.code,
        reference.code,
        task=pool.operation,
        device=pool.device,
        shapes=pool.shapes,
        reference_time_us=reference.time_us,
        profile=profiles.get(name),
        anchor_profile=profile,
        reference_profile=profile,
    )


def figures(seeds: int) -> list[Numbers]:
    """A row per task and two of its devices."""
    found = []
    pairs = pairs_of_devices()
    with WorkProgress(len(pairs), "tasks") as bar:
        for done, names in enumerate(pairs):
            bar.update(done, names[1])
            one, other = map(load_task, names)
            devices = {"devices": [one.device, other.device], "task": one.task}
            found.append(devices | agreement(one, other) | {"forecasts": transfer(one, other, seeds)})
        bar.update(len(pairs), "done")
    return found


def _cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: Sequence[Numbers], seeds: int) -> str:
    """What people read."""
    lines = [
        "Of the sources that both devices measured: the share with the same outcome. Of those that run right on both: "
        "how alike the order of their times is, the share whose speed-ups over the reference lie in the same bin or at "
        "most one apart, and the median distance of these speed-ups in octaves; then the speed of one device's fastest "
        "kernel on the other, over that of the fastest there.",
        "",
        "| task | devices | sources | same outcome | Spearman of times | same bin | within one | median log2 apart "
        "| best of the first on the second | and the other way |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        devices = ", ".join(map(short_device, row["devices"]))
        shown = [_cell(row[name], 3) for name in ("same_outcome", "spearman")]
        shown += [_cell(row[name]) for name in ("same_bin", "within_one_bin")]
        shown += [_cell(row["median_abs_log2"], 3)]
        shown += [_cell(row[f"best_of_{way}"], 3) for way in ("first_on_second", "second_on_first")]
        lines.append(f"| {row['task']} | {devices} | {row['sources']} | " + " | ".join(shown) + " |")
    lines += [
        "",
        f"Forecasts of `learned`, by where {MEASURED_FIRST} other sources of the task were measured first (nowhere: it "
        f"knows other tasks only), means over {seeds} orders:",
        "",
        "| task | asked about | measured first on | exact | within one | Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for found in row["forecasts"]:
            scores = " | ".join(_cell(found[name]) for name in ("exact", "within_one", "spearman"))
            learned_on = found["learned_on"] or "nowhere"
            lines.append(f"| {row['task']} | {found['asked_on']} | {learned_on} | {scores} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="random orders in which sources are measured")
    options = parser.parse_args(arguments)
    if not pairs_of_devices():
        parser.error("no recorded task was measured on two devices")
    rows = figures(options.seeds)
    made = provenance()
    text = f"Made on {made['machine']}, {made['date']}, commit {made['commit']}.\n\n"
    write_result("device_transfer", {"made": made, "rows": rows}, text + table(rows, options.seeds))


if __name__ == "__main__":
    main()
