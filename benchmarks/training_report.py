"""Table and pictures of what was trained: ``python -m benchmarks.training_report --work FOLDER``.

Beside the trained models stand the learned forecaster, which knows the same kernels, and the bin frequencies of the
trained kernels as a constant forecast. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, machine, write_result
from benchmarks.training import (
    GRPO,
    HELD_OUT_OPERATIONS,
    LONGER,
    PARTS,
    PROPER,
    REWARDS,
    SCORES,
    SEEDS,
    SIZES,
    START,
    TRAINED_OPERATIONS,
    gathered,
    result_file,
    settings_of,
)
from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.calibration.bootstrap import bootstrap
from gpu_forecasters_plugin.calibration.measures import confusion, measure
from gpu_forecasters_plugin.calibration.reliability import confidence_groups, reliability_buckets
from gpu_forecasters_plugin.calibration.rows import ForecastRows
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.forecasters.learned import LearnedForecaster, WarmStartTask
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.rows import TrainingRow

TESTED = PARTS[1:]
COLUMNS = {
    "exact": "exact",
    "within_one": "within 1",
    "brier": "Brier",
    "crps": "CRPS",
    "nll": "NLL",
    "ece": "ECE",
    "monotonicity": "monot.",
    "spearman_within_tasks": "Spearman",
    "top_k_1": "top 1 %",
    "top_k_10": "10 %",
    "top_k_25": "25 %",
}
INTERVALS = ("exact", "within_one", "brier", "crps", "ece", "spearman_within_tasks")
RESAMPLES = 1000

Numbers = dict[str, Any]
Probabilities = Sequence[Sequence[float] | None]


def numbers_of(rows: ForecastRows) -> dict[str, float | None]:
    """The measures of a set, flat."""
    found = asdict(measure(rows))
    return found | {f"top_k_{k}": value for k, value in found.pop("top_k").items()}


def with_intervals(rows: ForecastRows) -> dict[str, float | None]:
    """The measures that have intervals."""
    found = numbers_of(rows)
    return {name: found[name] for name in INTERVALS}


def scored(rows: Sequence[TrainingRow], probabilities: Probabilities, resamples: int) -> Numbers:
    """Measures with intervals, and what pictures are made of."""
    set_ = ForecastRows.of(
        list(probabilities), [row.speedup for row in rows], tasks=[row.operation for row in rows]
    )
    bounds = bootstrap(set_, with_intervals, resamples=resamples)
    return numbers_of(set_) | {
        "intervals": dict(bounds.bounds),
        "groups": [asdict(group) for group in confidence_groups(set_)],
        "buckets": [asdict(bucket) for bucket in reliability_buckets(set_)],
        "confusion": np.round(confusion(set_), 3).tolist(),
        "mean_confidence": float(set_.confidence.mean()),
    }


def trained_figures(work: Path, data: TrainingData, resamples: int) -> dict[str, Numbers]:
    """By training and readout: its figures on both tested parts, and what it cost."""
    found: dict[str, Numbers] = {}
    for name in ("base", START, *GRPO, *PROPER, *LONGER):
        if not result_file(work, name).exists():
            continue
        kept = json.loads(result_file(work, name).read_text())
        for readout, parts in kept["forecasts"].items():
            entry: Numbers = {"name": name, "readout": readout, "cost": cost_of(kept, readout)}
            for part in TESTED:
                rows = getattr(data.split, part)
                answers = [parts[part][row.id] for row in rows]
                entry[part] = scored(rows, [answer["p"] for answer in answers], resamples)
                entry[part]["failures"] = Counter(a["failure"] for a in answers if a["failure"])
                entry[part]["answer_tokens"] = statistics.fmean(answer["tokens"] for answer in answers)
            found[f"{name} {readout}"] = entry
    return found


def cost_of(kept: Numbers, readout: str) -> Numbers:
    """Seconds, tokens and failures of a training."""
    log = kept.get("training") or {}
    cost = {
        "trained_s": kept.get("trained_s", 0.0),
        "steps": log.get("steps", 0),
        "tokens": log.get("tokens", 0),
        "forecasting_s": kept[f"{readout}_s"],
        "peak_gib": kept["machine"]["peak_gib"],
    }
    if "answers" in log:
        cost |= {
            "answers": log["answers"],
            "unread": log["failures"],
            "generation_s": log["generation_s"],
            "answer_tokens_per_s": log["answer_tokens"] / log["generation_s"],
            "reward": [entry.get("reward") for entry in log["curve"]],
            "answer_length": [entry.get("completions/mean_length") for entry in log["curve"]],
        }
    return cost


def comparison_figures(data: TrainingData, resamples: int) -> dict[str, Numbers]:
    """The learned forecaster that knows the trained kernels, and their bin frequencies."""
    known = references()
    trained = [row for row in data.split.train if row.reference_key in known]
    learned = LearnedForecaster(
        warm_start=[warm_start(trained, operation) for operation in TRAINED_OPERATIONS]
    )
    counts = Counter(row.bin for row in trained)
    constant = [counts[number] / len(trained) for number in range(1, N_BINS + 1)]
    found: dict[str, Numbers] = {}
    forecasters: dict[str, Callable[[Sequence[TrainingRow]], Probabilities]] = {
        "learned": lambda rows: [
            o.probabilities if isinstance(o, Forecast) else None
            for o in learned.forecast([row.query for row in rows])
        ],
        "bin frequencies": lambda rows: [constant] * len(rows),
    }
    for name, forecast in forecasters.items():
        parts = {part: getattr(data.split, part) for part in TESTED}
        figures = {part: scored(rows, forecast(rows), resamples) for part, rows in parts.items()}
        found[name] = {"name": name, "readout": "-"} | figures
    return found


def references() -> set[str]:
    """Identities of the recorded tasks' references."""
    return {load_task(name).reference.key for name in TRAINED_OPERATIONS}


def warm_start(rows: Sequence[TrainingRow], operation: str) -> WarmStartTask:
    """The trained kernels of one operation."""
    own = [row for row in rows if row.operation == operation]
    return WarmStartTask(
        operation,
        own[0].reference_code,
        tuple(row.candidate_code for row in own),
        tuple(row.log2_speedup for row in own),
    )


def joined(figures: Mapping[str, Numbers], names: Sequence[str], part: str) -> Numbers | None:
    """Means over seeds; ``None`` when none of them has been trained."""
    entries = [entry for entry in figures.values() if entry["name"] in names]
    if not entries:
        return None
    columns = [*COLUMNS, "answer_tokens"]
    known = {c: [e[part][c] for e in entries if e[part].get(c) is not None] for c in columns}
    found: Numbers = {c: statistics.fmean(values) if values else None for c, values in known.items()}
    found["each"] = known
    found["intervals"] = [entry[part]["intervals"] for entry in entries]
    found["unread"] = sum(sum(entry[part].get("failures", {}).values()) for entry in entries)
    found["seeds"] = len(entries)
    return found


def lines(figures: Mapping[str, Numbers]) -> dict[str, tuple[list[str], str | None]]:
    """The lines of the table: which trainings each one is the mean of, and by which readout."""
    found: dict[str, tuple[list[str], str | None]] = {
        "bin frequencies": (["bin frequencies"], None),
        "learned": (["learned"], None),
        "base, one token": (["base"], "logprobs"),
        "base, written": (["base"], "verbalized"),
        "SFT, one token": ([START], "logprobs"),
        "SFT, written": ([START], "verbalized"),
    }
    found |= {f"GRPO, {r}": ([f"grpo-{r}-{s}" for s in SEEDS], "verbalized") for r in REWARDS}
    found |= {f"proper, {s}": ([f"proper-{s}-{n}" for n in SEEDS], "logprobs") for s in SCORES}
    found |= {f"proper, {name.split('-')[1]}, longer": ([name], "logprobs") for name in LONGER}
    return found


def table(figures: Mapping[str, Numbers], part: str) -> str:
    """One line each."""
    head = ["", *COLUMNS.values(), "tokens", "unread", "seeds"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for title, (names, readout) in lines(figures).items():
        chosen = {k: e for k, e in figures.items() if readout is None or e["readout"] == readout}
        found = joined(chosen, names, part)
        if found is not None:
            cells = [cell(found, column) for column in COLUMNS]
            tokens = "-" if found["answer_tokens"] is None else f"{found['answer_tokens']:.0f}"
            rows.append(
                f"| {title} | {' | '.join(cells)} | {tokens} | {found['unread']} | {found['seeds']} |"
            )
    return "\n".join(rows)


def cell(found: Numbers, column: str) -> str:
    """A mean over seeds, with the interval over both seeds' resamples where there is one."""
    value = found[column]
    if value is None:
        return "-"
    bounds = (
        [i[column] for i in found["intervals"] if i.get(column) is not None] if column in INTERVALS else []
    )
    if not bounds:
        return f"{value:.2f}"
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def costs(figures: Mapping[str, Numbers]) -> str:
    """What each training took."""
    head = [
        "training",
        "steps",
        "seconds",
        "answers",
        "unread",
        "tokens per second while answering",
        "peak GiB",
    ]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    seen: set[str] = set()
    for entry in figures.values():
        cost = entry.get("cost")
        if not cost or not cost["steps"] or entry["name"] in seen:
            continue
        seen.add(entry["name"])
        speed = f"{cost['answer_tokens_per_s']:.0f}" if "answers" in cost else "-"
        cells = [entry["name"], cost["steps"], f"{cost['trained_s']:.0f}", cost.get("answers", "-")]
        cells += [
            cost.get("unread", "-"),
            speed,
            "-" if cost["peak_gib"] is None else f"{cost['peak_gib']:.1f}",
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def groups_table(figures: Mapping[str, Numbers], part: str) -> str:
    """Error over groups of rising confidence."""
    rows = ["| | " + " | ".join(f"fifth {n}" for n in range(1, 6)) + " |", "|---" * 6 + "|"]
    for title, entry in figures.items():
        cells = [f"{g['mean_abs_log2_error']:.2f}" for g in entry[part]["groups"]]
        rows.append(f"| {title} | " + " | ".join(cells + [""] * (5 - len(cells))) + " |")
    return "\n".join(rows)


def draw(figures: Mapping[str, Numbers], file: Path) -> None:
    """Reliability, error over confidence and confusion on unseen operations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    of_rewards = [f"grpo-{reward}-0 verbalized" for reward in REWARDS]
    of_scores = [f"proper-{score}-0 logprobs" for score in SCORES]
    wanted = ["base logprobs", f"{START} logprobs", f"{START} verbalized", *of_rewards, *of_scores, "learned"]
    chosen = [name for name in wanted if name in figures]
    figure = Figure(figsize=(3.0 * len(chosen), 9.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(chosen), squeeze=False)
    for place, name in enumerate(chosen):
        entry = figures[name]["unseen_operations"]
        top, middle, bottom = axes[:, place]
        top.plot([0, 1], [0, 1], "--", color="#777777", linewidth=1)
        top.plot([b["confidence"] for b in entry["buckets"]], [b["accuracy"] for b in entry["buckets"]], "o-")
        top.set(xlim=(0, 1), ylim=(0, 1), title=f"{name}\nECE {entry['ece']:.2f}")
        top.set_xlabel("confidence")
        errors = [g["mean_abs_log2_error"] for g in entry["groups"]]
        middle.bar(range(1, len(errors) + 1), errors, color="#0072B2")
        middle.set_xlabel("group by rising confidence")
        bottom.imshow(np.array(entry["confusion"]), cmap="Blues", origin="lower")
        bottom.set_xlabel("forecast bin")
        bottom.set(xticks=range(8), yticks=range(8), xticklabels=range(1, 9), yticklabels=range(1, 9))
    axes[0, 0].set_ylabel("share right")
    axes[1, 0].set_ylabel("mean |log2 error|")
    axes[2, 0].set_ylabel("measured bin")
    figure.savefig(file, dpi=80)


def utilisation(work: Path) -> str:
    """What the driver said of the GPU, and what the profile of one step did."""
    parts = []
    if (work / "gpu.jsonl").exists():
        samples = [json.loads(line) for line in (work / "gpu.jsonl").read_text().splitlines()]
        busy, used = [s["gpu"] for s in samples], [s["used_gib"] for s in samples]
        parts.append(
            f"Over all {len(samples)} seconds, with up to seven trainings at once, the driver saw a kernel running "
            f"{statistics.fmean(busy):.0f} % of the time; at most {max(used):.0f} GiB were in use."
        )
    for file in sorted(work.glob("profile-*.json")):
        profile = json.loads(file.read_text())
        share = profile["busy_s"] / profile["seconds"]
        each = 1e6 * profile["busy_s"] / max(1, profile["kernels"])
        parts.append(
            f"One profiled step of {file.stem.removeprefix('profile-')}, alone on the GPU: {profile['seconds']:.1f} s, "
            f"{profile['kernels']} kernels of {each:.0f} us in the mean, the GPU computing {share:.0%} of the time."
        )
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Score what was kept, and write table and pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of benchmarks.training")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--note", default="", help="what readers must know of this run")
    parser.add_argument("--size", default="full", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.model = Path("smollm2-135m-instruct")
    data = gathered(settings_of("base", options), SIZES[options.size].rows)
    figures = comparison_figures(data, options.resamples) | trained_figures(
        options.work, data, options.resamples
    )
    if len(figures) == 2:
        raise SystemExit(f"nothing was kept in {options.work / 'results'}")
    kept = json.loads(result_file(options.work, "base").read_text())
    sizes = {part: len(getattr(data.split, part)) for part in PARTS}
    text = (
        "Training on recorded kernels: SmolLM2-135M-Instruct with LoRA of rank 16, "
        f"{kept['machine']['gpu'] or 'no GPU'}, torch {kept['machine']['versions']['torch']}. Scored: {machine()}\n\n"
        f"Trained on {', '.join(TRAINED_OPERATIONS)}: {sizes['train']} rows, a kernel beside the reference or beside "
        f"one of three other kernels. Tested on {sizes['unseen_kernels']} unseen kernels of these, and on "
        f"{sizes['unseen_operations']} kernels of {' and '.join(HELD_OUT_OPERATIONS)}, which nothing was trained on. "
        "In brackets: 95 % bootstrap intervals over rows, of both seeds together. Monot.: share of steps to a surer "
        "fifth at which the error falls. Spearman and top k % within each operation, means. An answer that could not "
        f"be read counts as uniform.\n\n{options.note}\n\n"
    )
    for part in TESTED:
        text += f"## {part.replace('_', ' ').capitalize()}\n\n{table(figures, part)}\n\n"
    text += "## Mean |log2 error| over fifths by rising confidence, unseen operations\n\n"
    text += f"{groups_table(figures, 'unseen_operations')}\n\n## What it cost\n\n{costs(figures)}\n\n"
    text += utilisation(options.work) + "\n\n![Pictures](training.png)\n"
    draw(figures, RESULTS / "training.png")
    write_result("training", {"sizes": sizes, "figures": figures}, text)


if __name__ == "__main__":
    main()
