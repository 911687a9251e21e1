"""How good are the forecasters that need no server, on every recorded task?

``python -m benchmarks.evaluation`` scores each without any measurement of the task (the learned one knows the other
tasks: leave one task out) and within a run, after the first 32, 64 and 128 measurements, in several random orders; the
kernels that were measured first are not scored. Beside every accuracy stands the noise ceiling: the share of kernels
that fell into the same bin both times that they were measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.generators.build import ROWS, read_runs, run_time
from benchmarks.report import machine, write_result
from gpu_forecasters_plugin.config import ForecasterConfig, parse_surrogate_config
from gpu_forecasters_plugin.evaluation.asking import Protocol, ask_about
from gpu_forecasters_plugin.evaluation.pairs import Pair
from gpu_forecasters_plugin.evaluation.run import Scoring, summarise_answers
from gpu_forecasters_plugin.evaluation.summary import Intervals
from gpu_forecasters_plugin.ledger.results import ENDINGS
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names
from gpu_forecasters_plugin.recorded.profiles import recorded_verdicts

FORECASTERS: dict[str, dict[str, Any]] = {
    "random": {"kind": "random"},
    "climatology": {"kind": "climatology"},
    "learned": {"kind": "learned", "hedge": False},
    "learned, without profile": {"kind": "learned", "hedge": False, "static_profile": False},
    "learned, hedged": {"kind": "learned", "hedge": True},
    "roofline": {"kind": "roofline", "hedge": False},
    "recalibrated learned": {"kind": "recalibrated", "hedge": False, "forecaster": {"kind": "learned"}},
}
FIRST_MEASURED = (0, 32, 64, 128)
COLUMNS = {
    "exact": "exact",
    "within_one": "within 1",
    "mean_abs_log2_error": "log2 error",
    "brier": "Brier",
    "brier_skill": "its skill",
    "crps": "CRPS",
    "crps_skill": "its skill",
    "nll": "NLL",
    "ece": "ECE",
    "aurc": "AURC",
    "monotonicity": "monot.",
    "spearman": "Spearman",
    "top_k_1": "top 1 %",
    "top_k_5": "5 %",
    "top_k_10": "10 %",
    "top_k_25": "25 %",
    "top_k_50": "50 %",
}
FORESIGHT = ("brier", "brier_skill", "auc")
"""Scores of P(ok), on the kernels that failed as well."""

Numbers = Mapping[str, float | None]


def pairs_of(task: str) -> list[Pair]:
    """The kernels of a recorded task, each with the speed-ups of its separate measurements."""
    pool = load_task(task)
    runs, _ = read_runs(ROWS, task)
    verdicts = recorded_verdicts(task)
    reference = verdicts[pool.reference_id]
    found = []
    for name, candidate in pool.candidates.items():
        if name == pool.reference_id:
            continue
        sound = [run for run in runs if name in run and run[name]["outcome"] == "ok"]
        repeats = tuple(run_time(run[pool.reference_id]) / run_time(run[name]) for run in sound)
        found.append(
            Pair(
                f"{task}-{name}",
                task,
                pool.device,
                pool.reference.code,
                candidate.code,
                candidate.key,
                pool.speedup(name),
                repeats,
                ENDINGS.get(candidate.outcome),
                verdicts.get(name),
                reference.profile,
            )
        )
    return found


def _scored(pairs: Sequence[Pair], config: ForecasterConfig, first: int, order: int | None) -> dict[str, Any]:
    protocol = Protocol(config, seed=order or 0, within_run=first, shuffle=order)
    answers = ask_about(pairs, protocol)
    summary, _ = summarise_answers(pairs, answers, protocol, Scoring(intervals=Intervals(0)))
    return {name: _flat(found) for name, found in summary["tasks"].items()}


def _flat(summary: Mapping[str, Any]) -> dict[str, float | None]:
    nested = {f"top_k_{k}": value for k, value in summary["top_k"].items()}
    everything = {**summary, **nested}
    soft = {f"soft_{name}": value for name, value in (summary["soft_truth"] or {}).items()}
    failure = summary["failure"] or {}
    foreseen = {f"failure_{name}": failure.get(name) for name in FORESIGHT}
    return {name: everything[name] for name in ("n", "noise_ceiling", *COLUMNS)} | soft | foreseen


def _mean(rows: Iterable[Numbers]) -> dict[str, float | None]:
    """Mean of each number over rows; undefined ones are left out."""
    table = list(rows)
    found: dict[str, float | None] = {}
    for name in table[0]:
        known = [value for row in table if (value := row[name]) is not None]
        found[name] = statistics.fmean(known) if known else None
    return found


def figures(seeds: int) -> list[dict[str, Any]]:
    """A row per forecaster, number of kernels measured first, and task (``all``: mean of the tasks)."""
    pairs = [pair for task in recorded_task_names() for pair in pairs_of(task)]
    rows: list[dict[str, Any]] = []
    work = [(name, first) for name in FORECASTERS for first in FIRST_MEASURED]
    with WorkProgress(len(work), "settings") as bar:
        for done, (name, first) in enumerate(work):
            bar.update(done, name)
            config = parse_surrogate_config({"forecaster": FORECASTERS[name]}).forecaster
            orders: Sequence[int | None] = range(seeds) if first else (None,)
            found = [_scored(pairs, config, first, order) for order in orders]
            means = {task: _mean(scored[task] for scored in found) for task in found[0]}
            means["all"] = _mean(means.values())
            head = {"forecaster": name, "measured_first": first, "orders": len(orders)}
            rows += [head | {"task": task} | numbers for task, numbers in means.items()]
        bar.update(len(work), "done")
    return rows


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _foresight(rows: Sequence[dict[str, Any]]) -> str:
    """How well failure was foreseen, by forecaster and number of kernels measured first."""
    tasks = recorded_task_names()
    heads = ("forecaster", "measured first", *(f"`{task}`" for task in tasks), "mean")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    found = {(row["forecaster"], row["measured_first"], row["task"]): row for row in rows}
    for name in FORECASTERS:
        for first in FIRST_MEASURED:
            chosen = [found[name, first, task] for task in (*tasks, "all")]
            if chosen[-1]["failure_brier"] is not None:
                cells = [
                    "/".join(_cell(row[f"failure_{score}"]) for score in ("brier_skill", "auc"))
                    for row in chosen
                ]
                lines.append(f"| {name} | {first} | {' | '.join(cells)} |")
    return "### Failure foreseen: Brier skill and AUC of P(ok)\n\n" + "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """A table per task and number of kernels measured first."""
    parts = [_foresight(rows)]
    for task in (*recorded_task_names(), "all"):
        for first in FIRST_MEASURED:
            chosen = [row for row in rows if (row["task"], row["measured_first"]) == (task, first)]
            what = f"after {first} measurements" if first else "nothing of the task measured"
            title = "mean of all tasks" if task == "all" else f"`{task}`"
            ceiling = _cell(chosen[0]["noise_ceiling"])
            parts.append(
                f"### {title}, {what} ({chosen[0]['n']:.0f} kernels scored, noise ceiling {ceiling})"
            )
            lines = [f"| forecaster | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
            lines += [f"| {r['forecaster']} | {' | '.join(_cell(r[c]) for c in COLUMNS)} |" for r in chosen]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Score all and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="random orders of the kernels within a run")
    options = parser.parse_args(arguments)
    rows = figures(options.seeds)
    text = (
        f"Forecasts on the recorded tasks. {machine()}\n\n"
        "Skill: 1 - score / score of the set's own bin frequencies; above 0 is better than a constant forecast. "
        "log2 error in octaves. Monot.: share of steps to a surer fifth at which the error falls. Top k %: speed-up of "
        "the best kernel among the k % foretold fastest over the task's best. Before any measurement, `climatology` is "
        "its prior; `learned` knows the other tasks (leave one task out). Within a run: means over "
        f"{options.seeds} random orders.\n\n"
        "All but `learned, without profile` see what the compiler made of the kernels, for the architecture that "
        "measured them (`gpu_forecasters_plugin/recorded/profiles`). `roofline` has no forecast where CUDA host code "
        "launches kernels out of sight, or a dry run ended within the kernel; it counts as uniform there. P(ok) is "
        "scored on the kernels that failed as well. What it knows is the compiler's verdict: a fifth of each task's "
        "kernels fail, whatever they look like, so their text tells nothing, and which kernel gives wrong results "
        "nothing that was tried tells beforehand.\n\n"
    )
    write_result("evaluation", rows, text + _table(rows))


if __name__ == "__main__":
    main()
