"""What people read of a live run: tables and what they mean, from the numbers of ``benchmarks.live_gpu``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_forecasters_plugin.compare.significance import LEVEL

__all__ = ["SCORES", "picture_name", "text_of"]

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
All arms have the same number of measurements, as many in flight, and the same stream of proposals, and each is compared
with the baseline of the same seeds. Proposed: kernels that were decided on; failed: measurements of a search that gave
no time; seconds: from a search's first result to its last, with others beside it, and kernels that any search had
measured before answered at once; best: speed-up over the initial program, mean of the seeds; timed again: the same
kernels after all searches, with nothing else running; p: paired permutation test, corrected for the arms of its
comparison; mean matches after: measurements after which the mean of the seeds is at the baseline's final one; by seed:
after which each search was at the best kernel of the baseline with the same seed.
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
there, none of the searches above has measured it, but one of the same run that is not among them.
"""


def picture_name(task: str, comparison: Mapping[str, Any]) -> str:
    """Name of the file with the curves of a task's comparison."""
    return f"live_gpu_{task}_{len(comparison['seeds'])}_seeds.png"


def text_of(found: Mapping[str, Any]) -> str:
    """The content of ``live_gpu.md``."""
    made, tasks = found["made"], found["tasks"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    parts = [
        "# Searches on a real GPU, with and without the filter\n",
        f"`examples/live_gpu/run.py` on an {made['gpu']} (driver {made['driver']}), {made['date']}: OpenEvolve, paired "
        f"seeds, {found['budget']} measurements per search, {made['searches_side_by_side']} searches side by side, "
        f"{made['workers']} processes that compile and measure; Python {made['python']}, {versions}. [How the run was "
        "made, and what it shows](../../examples/live_gpu/README.md#what-came-of-it-on-an-h200).\n",
        _arms(tasks) + "\n",
        _LEGEND,
        "## At the baseline's best\n",
        _within_half(tasks) + "\n",
        *_against_random(tasks),
        *_left_out(tasks),
        *(
            f"![Best speed-up over measurements, {name}, {len(each['seeds'])} seeds]({picture_name(name, each)})\n"
            for name, task in tasks.items()
            for each in task["comparisons"]
        ),
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


def _comparisons(tasks: Tasks) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with the name of its task."""
    for name, task in tasks.items():
        for comparison in task["comparisons"]:
            yield name, comparison


def _arms(tasks: Tasks) -> str:
    heads = ("task", "seeds", "arm", "proposed", "failed", "seconds", "best", "timed again")
    rows = []
    for name, comparison in _comparisons(tasks):
        for arm, numbers in comparison["arms"].items():
            failed = [sum(each.values()) - each.get("ok", 0) for each in numbers["outcomes"]]
            counts = [numbers["candidates_considered"], failed, numbers["seconds"]]
            means = [statistics.fmean(numbers[key]) for key in ("best_speedup", "confirmed_speedup")]
            cells = [f"`{name}`", str(len(comparison["seeds"])), arm]
            cells += [f"{statistics.fmean(each):.0f}" for each in counts]
            compared = ["-"] * 5 if arm == "baseline" else _compared(comparison, arm)
            rows.append([*cells, *(f"{mean:.2f}x" for mean in means), *compared])
    more = ("best over baseline's (95 % CI)", "p", "mean matches after", "by seed", "median")
    return _table((*heads, *more), rows)


def _compared(comparison: Mapping[str, Any], arm: str) -> list[str]:
    row, early = comparison["comparison"][arm], comparison["stop_early"][arm]
    return [
        _ratio(row),
        f"{row['p_value_holm']:.3f}",
        _mean_matches(comparison, arm),
        ", ".join("never" if number is None else str(number) for number in early["reached_at"]),
        "never" if early["median"] is None else f"{early['median']:g}",
    ]


def _ratio(row: Mapping[str, Any]) -> str:
    interval = row["ci95"]
    span = "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"
    return f"{row['mean_ratio']:.3f}{span}"


def _mean_matches(comparison: Mapping[str, Any], arm: str) -> str:
    ratio, budget = comparison["comparison"][arm]["measurements_to_match_ratio"], comparison["budget"]
    return "never" if ratio is None else f"{budget / ratio:.0f} of {budget}"


def _within_half(tasks: Tasks) -> str:
    """Whether the best kernel of the baseline was reached with at most half of its measurements."""
    lines, shown = [], []
    for name, comparison in _comparisons(tasks):
        half, seeds = comparison["budget"] / 2, len(comparison["seeds"])
        for arm, early in comparison["stop_early"].items():
            row = comparison["comparison"][arm]
            reached = [number is not None and number <= half for number in early["reached_at"]]
            ratio = row["measurements_to_match_ratio"]
            mean = "yes" if ratio is not None and ratio >= 2 else "no"
            median = "yes" if early["median"] is not None and early["median"] <= half else "no"
            lines.append(
                f"* `{name}`, {seeds} seeds, {arm}: with at most half of the measurements on {sum(reached)} of {seeds} "
                f"seeds; in the median: {median}; in the mean: {mean}."
            )
            if row["p_value_holm"] <= LEVEL:
                shown.append(f"`{name}`, {seeds} seeds, {arm}")
    most = max(len(comparison["seeds"]) for _, comparison in _comparisons(tasks))
    lines.append(
        f"\nArms whose best kernels the test shows to differ from the baseline's at {LEVEL:.0%}: "
        f"{'; '.join(shown) or 'none'}. The smallest p that {most} seeds can give is {2.0 ** (1 - most):g}."
    )
    return "\n".join(lines)


def _against_random(tasks: Tasks) -> list[str]:
    """Whether forecasts are worth more than merely proposing more, where both were run."""
    rows = [
        [f"`{name}`", str(len(comparison["seeds"])), arm, _ratio(row), f"{row['p_value']:.3f}"]
        for name, comparison in _comparisons(tasks)
        for arm, row in comparison.get("against_random", {}).items()
    ]
    if not rows:
        return []
    table = _table(("task", "seeds", "arm", "best over random's (95 % CI)", "p, uncorrected"), rows)
    return [
        "Against chance in place of forecasts (`random`), which proposes as many kernels, seed by seed:\n",
        f"{table}\n",
    ]


def _left_out(tasks: Tasks) -> list[str]:
    told = [
        f"`{name}` {', '.join(f'{search} ({state})' for search, state in task['left_out'].items())}"
        for name, task in tasks.items()
        if task["left_out"]
    ]
    return [f"Begun, and counted nowhere: {'; '.join(told)}.\n"] if told else []


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
