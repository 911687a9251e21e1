"""The lines that the report of the training comparison has: trained models, and what they must be better than.

Beside the trained models stand forecasters that need no GPU. The learned one is there five times. As it ships it reads
a kernel's text alone; with the compiler it knows what that makes of the kernel as well, as where the screen, which is
off by default, is on. Each of the two is asked before anything of the operation was measured, and with some of its
other kernels measured, as in the first minutes of a search. The fifth knows what the trained models know and no more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.training import BASE, REWARDS, SCORES, SEEDS, TRAINED_OPERATIONS, Numbers, Work
from benchmarks.training_scores import Answers, Line
from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.evaluation.asking import Protocol, ask_about
from gpu_forecasters_plugin.evaluation.pairs import Pair, with_recorded_verdicts
from gpu_forecasters_plugin.forecast import UNIFORM, Forecast
from gpu_forecasters_plugin.forecasters.learned import LearnedForecaster, WarmStartTask
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.rows import TrainingRow, pool_rows

__all__ = [
    "COMPILED",
    "COMPILED_MEASURED",
    "FIRST_MEASURED",
    "FREQUENCIES",
    "LEARNED",
    "MEASURED",
    "SAME_KERNELS",
    "SHIPPED",
    "START",
    "UNTRAINED",
    "all_lines",
    "answered_by_all",
    "answers",
    "one_token_lines",
    "results",
    "trained_lines",
]

ONE_TOKEN, WRITTEN = "logprobs", "verbalized"
FIRST_MEASURED = 32
"""Kernels of an operation that are measured before a line that says so is asked about others."""
_UNIFORM = "uniform"
FREQUENCIES = "bin frequencies"
SAME_KERNELS = "learned, same kernels"
SHIPPED = "learned, as it ships"
"""The default of a new search: the text alone, nothing measured."""
MEASURED = f"learned, {FIRST_MEASURED} measured"
COMPILED = "learned with the compiler"
COMPILED_MEASURED = f"learned with the compiler, {FIRST_MEASURED} measured"
LEARNED = (SHIPPED, COMPILED, MEASURED, COMPILED_MEASURED, SAME_KERNELS)
"""The learned forecaster, once for each of what it may know."""
START = "SFT, one token"
"""What GRPO and ``proper`` begin from."""
UNTRAINED = (_UNIFORM, FREQUENCIES, SAME_KERNELS, SHIPPED, COMPILED, MEASURED, COMPILED_MEASURED)


def trained_lines() -> dict[str, tuple[list[str], str]]:
    """Which trainings each line is the mean of, and by which readout."""
    starts = [f"start-{seed}" for seed in SEEDS]
    found = {
        "base, one token": ([BASE], ONE_TOKEN),
        "base, written": ([BASE], WRITTEN),
        START: (starts, ONE_TOKEN),
        "SFT, written": (starts, WRITTEN),
    }
    for reward in REWARDS:
        found[f"GRPO, {reward}"] = ([f"grpo-{reward}-{seed}" for seed in SEEDS], WRITTEN)
    for reward in REWARDS:
        found[f"GRPO, {reward}, one token"] = ([f"grpo-{reward}-{seed}" for seed in SEEDS], ONE_TOKEN)
    found |= {f"proper, {score}": ([f"proper-{score}-{n}" for n in SEEDS], ONE_TOKEN) for score in SCORES}
    return found | {"proper, brier, longer": ([f"longer-brier-{n}" for n in SEEDS], ONE_TOKEN)}


def all_lines() -> tuple[str, ...]:
    """Every line, in the order of the tables."""
    return (*UNTRAINED, *trained_lines())


def one_token_lines() -> list[str]:
    """What could ship, since it is asked for one token: every trained line but the base and what is written."""
    return [
        title
        for title, (names, readout) in trained_lines().items()
        if readout == ONE_TOKEN and BASE not in names
    ]


def results(work: Work) -> dict[str, Numbers]:
    """What was kept of each training, by its name; of runs with one start for all seeds, it is the first one's."""
    found = {}
    for file in sorted((work.folder / "results").glob("*.json")):
        name = {"start": "start-0", "sft": "sft-0"}.get(file.stem, file.stem)
        found[name] = json.loads(file.read_text())
    return found


def answered_by_all(kept: Mapping[str, Numbers], rows: Sequence[TrainingRow], part: str) -> list[TrainingRow]:
    """The rows of a part of the test that every training's model was asked about."""
    asked = [parts[part].keys() for result in kept.values() for parts in result["forecasts"].values()]
    return [row for row in rows if all(row.id in names for names in asked)]


def answers(kept: Mapping[str, Numbers], data: TrainingData, part: str) -> dict[str, Line]:
    """The lines that have forecasts of a part of the test."""
    rows = getattr(data.split, part)
    found = {title: Line(rows, [given]) for title, given in untrained(data, rows).items()}
    for title, (names, readout) in trained_lines().items():
        there = [name for name in names if readout in kept.get(name, {}).get("forecasts", {})]
        if there:
            given = [Answers.of(kept[name]["forecasts"][readout][part], rows) for name in there]
            found[title] = Line(rows, given)
    return found


def untrained(data: TrainingData, rows: Sequence[TrainingRow]) -> dict[str, Answers]:
    """What every trained model must be better than, on some rows."""
    known = {load_task(name).reference.key for name in TRAINED_OPERATIONS}
    trained = [row for row in data.split.train if row.reference_key in known and row.incumbent_code is None]
    counts = Counter(row.bin for row in trained)
    constant = [counts[number] / len(trained) for number in range(1, N_BINS + 1)]
    learned = LearnedForecaster(warm_start=[_warm_start(trained, name) for name in TRAINED_OPERATIONS])
    outcomes = learned.forecast([row.query for row in rows])
    said = [outcome.probabilities if isinstance(outcome, Forecast) else None for outcome in outcomes]
    return {
        _UNIFORM: Answers([[list(UNIFORM)] * len(rows)]),
        FREQUENCIES: Answers([[constant] * len(rows)]),
        SAME_KERNELS: Answers([said]),
        SHIPPED: as_shipped(rows, 0),
        COMPILED: as_shipped(rows, 0, compiled=True),
        MEASURED: as_shipped(rows, FIRST_MEASURED),
        COMPILED_MEASURED: as_shipped(rows, FIRST_MEASURED, compiled=True),
    }


def as_shipped(rows: Sequence[TrainingRow], first: int, *, compiled: bool = False) -> Answers:
    """The default forecaster with the recorded tasks of all *other* operations.

    Args:
        rows: kernels of recorded operations.
        first: how many other kernels of each operation are measured before, in pools of four.
        compiled: with what the compiler makes of the kernels, as where the screen is on; by default it is off, and the
            forecaster knows the text alone.
    """
    protocol = Protocol(parse_surrogate_config({}).forecaster, within_run=first)
    found = {}
    for operation in sorted({row.operation for row in rows}):
        asked = [row for row in rows if row.operation == operation]
        tested = {row.candidate_key for row in asked}
        others = [row for row in pool_rows(load_task(operation)).rows if row.candidate_key not in tested]
        others.sort(key=lambda row: keyed_uniform(0, "measured first", row.id))
        pairs = [_pair(row) for row in (*others[:first], *asked)]
        # One operation at a time: together, each would learn from the other one's kernels.
        outcomes = ask_about(with_recorded_verdicts(pairs) if compiled else pairs, protocol).outcomes
        found |= {row.id: outcomes[row.id] for row in asked}
    told = [found[row.id] for row in rows]
    return Answers([[outcome.probabilities if isinstance(outcome, Forecast) else None for outcome in told]])


def _pair(row: TrainingRow) -> Pair:
    return Pair(
        row.id, row.task, row.device, row.reference_code, row.candidate_code, row.candidate_key, row.speedup
    )


def _warm_start(rows: Sequence[TrainingRow], operation: str) -> WarmStartTask:
    own = [row for row in rows if row.operation == operation]
    return WarmStartTask(
        operation,
        own[0].reference_code,
        tuple(row.candidate_code for row in own),
        tuple(row.log2_speedup for row in own),
    )
