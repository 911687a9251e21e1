"""What people read of a live run: tables and what they mean, from the numbers of ``benchmarks.live_gpu``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SCORES", "text_of"]

SCORES = {
    "n": "kernels",
    "exact": "exact",
    "within_one": "within 1",
    "mean_abs_log2_error": "log2 error",
    "brier": "Brier",
    "brier_skill": "its skill",
    "ece": "ECE",
    "spearman_within_tasks": "Spearman",
}
"""The measures that are reported, and the heads of their columns."""

Tasks = Mapping[str, Mapping[str, Any]]

_LEGEND = """\
All arms have the same number of measurements, as many in flight, and the same stream of proposals. Proposed: kernels
that were decided on; best: speed-up over the initial program, mean of the seeds; timed again: the same kernels after
all searches, with nothing else running; p: paired permutation test, corrected for the arms; mean matches after:
measurements after which the mean of the seeds is at the baseline's final one; by seed: after which each search was at
the best kernel of the baseline with the same seed.
"""

_FORECASTS = """\
What the forecasts were worth, made before each measurement; the searches of all seeds together. Speed-ups are those
over the best kernel at the time. Exact: right bin, of the share that repeated timing allows; skill: 1 - score / score
of the set's own bin frequencies; Spearman: within each search. Most kernels were measured since they were foretold to
be fast; those drawn at random (the audit, weighted by one over their sampling probability) stand for all proposals.
"""

_DATA = """\
`live_gpu/TASK/ARM-SEED.jsonl.gz` has what each search measured (`gpu-forecasters ledger export`; `ledger import` and
`evaluate --pairs` take it), `ARM-SEED.decisions.jsonl.gz` every decision with its forecast, and
`live_gpu/measurements.jsonl.gz` every kernel that was measured, with its time on each shape; where `searches` is empty
there, none of the searches above has proposed it, but one of the same run that is not among them.
"""


def text_of(found: Mapping[str, Any]) -> str:
    """The content of ``live_gpu.md``."""
    made, tasks = found["made"], found["tasks"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    seeds = len(next(iter(tasks.values()))["seeds"])
    parts = [
        "# Searches on a real GPU, with and without the filter\n",
        f"`examples/live_gpu/run.py` on one {made['gpu']} (driver {made['driver']}), {made['date']}: OpenEvolve with "
        f"{seeds} paired seeds, {found['budget']} measurements per search, {made['searches_side_by_side']} searches "
        f"side by side, {made['workers']} processes that compile and measure; Python {made['python']}, {versions}.\n",
        _arms(tasks) + "\n",
        _within_half(tasks) + "\n",
        _LEGEND,
        *(f"![Best speed-up over measurements, {name}](live_gpu_{name}.png)\n" for name in tasks),
    ]
    if any(task["forecasts"] for task in tasks.values()):
        parts += ["## Forecasts\n", _FORECASTS, _forecasts(tasks) + "\n"]
    checks = [task["timing_check"] for task in tasks.values() if task["timing_check"] is not None]
    if checks:
        parts += ["## Times beside neighbours\n", _neighbours(checks), _timing(checks) + "\n"]
    return "\n".join([*parts, "## Data\n", _DATA])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def _arms(tasks: Tasks) -> str:
    heads = ("task", "arm", "proposed", "best", "timed again", "best over baseline's (95 % CI)", "p")
    rows = []
    for name, task in tasks.items():
        for arm, numbers in task["arms"].items():
            means = [statistics.fmean(numbers[key]) for key in ("best_speedup", "confirmed_speedup")]
            cells = [f"`{name}`", arm, f"{statistics.fmean(numbers['candidates_considered']):.0f}"]
            compared = ["-"] * 5 if arm == "baseline" else _compared(task, arm)
            rows.append([*cells, *(f"{mean:.2f}x" for mean in means), *compared])
    return _table((*heads, "mean matches after", "by seed", "median"), rows)


def _compared(task: Mapping[str, Any], arm: str) -> list[str]:
    row, early = task["comparison"][arm], task["stop_early"][arm]
    interval, ratio = row["ci95"], row["measurements_to_match_ratio"]
    span = "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"
    return [
        f"{row['mean_ratio']:.3f}{span}",
        f"{row['p_value_holm']:.2f}",
        "never" if ratio is None else f"{task['budget'] / ratio:.0f} of {task['budget']}",
        ", ".join("never" if number is None else str(number) for number in early["reached_at"]),
        "never" if early["median"] is None else f"{early['median']:g}",
    ]


def _within_half(tasks: Tasks) -> str:
    """Whether the best kernel of the baseline was reached with at most half of its measurements."""
    lines = []
    for name, task in tasks.items():
        half = task["budget"] / 2
        for arm, early in task["stop_early"].items():
            row = task["comparison"][arm]
            seeds = [number is not None and number <= half for number in early["reached_at"]]
            ratio = row["measurements_to_match_ratio"]
            mean = "yes" if ratio is not None and ratio >= 2 else "no"
            median = "yes" if early["median"] is not None and early["median"] <= half else "no"
            lines.append(
                f"* `{name}`, {arm}: at the baseline's best with at most half of its measurements on {sum(seeds)} of "
                f"{len(seeds)} seeds; in the median: {median}; in the mean: {mean}. Verdict on the best kernels: "
                f"{row['verdict']}."
            )
    return "\n".join(lines)


def _forecasts(tasks: Tasks) -> str:
    rows = [
        [f"`{name}`", arm, which, *_score_cells(scores)]
        for name, task in tasks.items()
        for arm, sets in task["forecasts"].items()
        for which, scores in sets.items()
    ]
    return _table(("task", "arm", "which", *SCORES.values()), rows)


def _score_cells(scores: Mapping[str, Any]) -> list[str]:
    cells = {name: "-" if scores[name] is None else f"{scores[name]:.2f}" for name in SCORES}
    cells["n"] = str(scores["n"])
    cells["exact"] += f" of {scores['ceiling']:.2f}"
    return list(cells.values())


def _neighbours(checks: Sequence[Mapping[str, Any]]) -> str:
    counts = [
        f"`{check['task']}`: {check['neighbours_measured']} kernels in {check['processes'] - 1} other processes"
        for check in checks
    ]
    return (
        "The usual kernel of each family, timed alone and while other processes compile, check and time new kernels\n"
        f"({'; '.join(counts)}). Range: largest minus smallest, over the median.\n"
    )


def _timing(checks: Sequence[Mapping[str, Any]]) -> str:
    heads = ("task", "program", "alone [us]", "beside neighbours", "range alone", "range beside neighbours")
    rows = [
        [
            f"`{check['task']}`",
            row["program"],
            f"{statistics.median(row['alone_us']):.1f}",
            f"{row['ratio'] - 1:+.2%}",
            f"{row['range_alone']:.2%}",
            f"{row['range_busy']:.2%}",
        ]
        for check in checks
        for row in check["programs"]
    ]
    return _table(heads, rows)
