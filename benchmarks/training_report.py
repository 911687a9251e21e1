"""Table and pictures of what was trained: ``python -m benchmarks.training_report --work FOLDER``.

Beside the trained models stand the learned forecaster, which knows the same kernels, and the bin frequencies of the
trained kernels as a constant forecast. What was not trained, or not to its end, is named. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.report import RESULTS, machine, write_result
from benchmarks.training import (
    BASE,
    HELD_OUT_OPERATIONS,
    PARTS,
    REWARDS,
    SCORES,
    SEEDS,
    SIZES,
    TRAINED_OPERATIONS,
    Numbers,
    Work,
    gathered,
)
from benchmarks.training_scores import INTERVALS, Answers, Line
from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.forecasters.learned import LearnedForecaster, WarmStartTask
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.splits import Split

TESTED = PARTS[1:]
COLUMNS = {
    "exact": "exact",
    "within_one": "within 1",
    "brier": "Brier",
    "crps": "CRPS",
    "nll": "NLL",
    "ece": "ECE",
    "confidence": "confidence",
    "monotonicity": "monot.",
    "spearman_within_tasks": "Spearman",
    "top_k_1": "top 1 %",
    "top_k_10": "10 %",
    "top_k_25": "25 %",
}
RESAMPLES = 300
ONE_TOKEN, WRITTEN = "logprobs", "verbalized"
NO_ANSWERS = "not measured"


def lines() -> dict[str, tuple[list[str], str]]:
    """The lines of the table: which trainings each one is the mean of, and by which readout."""
    starts = [f"start-{seed}" for seed in SEEDS]
    found = {
        "base, one token": ([BASE], ONE_TOKEN),
        "base, written": ([BASE], WRITTEN),
        "SFT, one token": (starts, ONE_TOKEN),
        "SFT, written": (starts, WRITTEN),
    }
    for reward in REWARDS:
        found[f"GRPO, {reward}"] = ([f"grpo-{reward}-{seed}" for seed in SEEDS], WRITTEN)
    for reward in REWARDS:
        found[f"GRPO, {reward}, one token"] = ([f"grpo-{reward}-{seed}" for seed in SEEDS], ONE_TOKEN)
    found |= {f"proper, {score}": ([f"proper-{score}-{n}" for n in SEEDS], ONE_TOKEN) for score in SCORES}
    return found | {"proper, brier, longer": ([f"longer-brier-{n}" for n in SEEDS], ONE_TOKEN)}


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
    found = {title: Line(rows, [given]) for title, given in comparisons(data, rows).items()}
    for title, (names, readout) in lines().items():
        there = [name for name in names if readout in kept.get(name, {}).get("forecasts", {})]
        if there:
            given = [Answers.of(kept[name]["forecasts"][readout][part], rows) for name in there]
            found[title] = Line(rows, given)
    return found


def comparisons(data: TrainingData, rows: Sequence[TrainingRow]) -> dict[str, Answers]:
    """The bin frequencies of the trained kernels, and the learned forecaster that knows them."""
    known = {load_task(name).reference.key for name in TRAINED_OPERATIONS}
    trained = [row for row in data.split.train if row.reference_key in known and row.incumbent_code is None]
    counts = Counter(row.bin for row in trained)
    constant = [counts[number] / len(trained) for number in range(1, N_BINS + 1)]
    learned = LearnedForecaster(warm_start=[_warm_start(trained, name) for name in TRAINED_OPERATIONS])
    outcomes = learned.forecast([row.query for row in rows])
    said = [outcome.probabilities if isinstance(outcome, Forecast) else None for outcome in outcomes]
    return {"bin frequencies": Answers([[constant] * len(rows)]), "learned": Answers([said])}


def _warm_start(rows: Sequence[TrainingRow], operation: str) -> WarmStartTask:
    own = [row for row in rows if row.operation == operation]
    return WarmStartTask(
        operation,
        own[0].reference_code,
        tuple(row.candidate_code for row in own),
        tuple(row.log2_speedup for row in own),
    )


def table(found: Mapping[str, Line], samples: Mapping[str, Mapping[str, Numbers]]) -> str:
    """One line each; what is missing has a line that says so."""
    head = ["", *COLUMNS.values(), "tokens", "unread", "seeds"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for title in ("bin frequencies", "learned", *lines()):
        if title not in found:
            rows.append(f"| {title} | {NO_ANSWERS} |" + " |" * (len(head) - 2))
            continue
        line = found[title]
        cells = [_cell(line.measures[name], samples[title].get(name)) for name in COLUMNS]
        tokens = [seed.tokens for seed in line.seeds if seed.tokens is not None]
        cells.append(f"{statistics.fmean(tokens):.0f}" if tokens else "-")
        cells += [str(sum(seed.unread for seed in line.seeds)), str(len(line.seeds))]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(value: float | None, sample: Numbers | None) -> str:
    if value is None:
        return "-"
    bounds = _interval(sample)
    return f"{value:.2f}" if bounds is None else f"{value:.2f} ({bounds[0]:.2f}-{bounds[1]:.2f})"


def _interval(sample: Numbers | None) -> tuple[float, float] | None:
    if sample is None or np.isnan(sample).all():
        return None
    low, high = np.nanquantile(sample, (0.025, 0.975))
    return float(low), float(high)


def claims(
    found: Mapping[str, Line], samples: Mapping[str, Mapping[str, Numbers]], kept: Mapping[str, Numbers]
) -> str:
    """What rewards for calibration change against correctness alone, and proper against the best of them; in pairs."""
    told = []
    plain = "GRPO, correctness"
    for title in [f"GRPO, {reward}" for reward in REWARDS[1:]]:
        if title not in found or plain not in found:
            told.append(f"- {title} against {plain}: {NO_ANSWERS}.")
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = samples[title]["ece"] / samples[plain]["ece"] - 1
        ece = [found[name].measures["ece"] for name in (plain, title)]
        told.append(
            f"- {title} against {plain}: ECE {ece[0]:.3f} to {ece[1]:.3f} ({ece[1] / ece[0] - 1:+.0%}, "
            f"{_signed(ratio, '.0%')}), {_change('brier', 'Brier', found, samples, plain, title)}, "
            f"{_change('spearman_within_tasks', 'Spearman', found, samples, plain, title)}; error monotone over fifths "
            f"by confidence: {_yes(found[plain].monotone())} to {_yes(found[title].monotone())}."
        )
    best = min(
        (title for title in found if title.startswith("GRPO") and not title.endswith("token")),
        key=lambda title: found[title].measures["brier"],
        default=None,
    )
    for title in [*(f"proper, {score}" for score in SCORES), "proper, brier, longer"]:
        if best is None or title not in found:
            told.append(f"- {title} against the best of GRPO: {NO_ANSWERS}.")
            continue
        share = _minutes(title, kept) / _minutes(best, kept)
        told.append(
            f"- {title} against {best}: {_change('brier', 'Brier', found, samples, best, title)}, in {share:.0%} of "
            "the GPU-minutes."
        )
    return "\n".join(told)


def _minutes(title: str, kept: Mapping[str, Numbers]) -> float:
    """GPU-minutes of a line's trainings, mean over its seeds; the start that all have in common is not counted."""
    return statistics.fmean(kept[name]["trained_s"] / 60 for name in lines()[title][0] if name in kept)


def _change(
    name: str,
    called: str,
    found: Mapping[str, Line],
    samples: Mapping[str, Mapping[str, Numbers]],
    one: str,
    other: str,
) -> str:
    before, after = (found[title].measures[name] for title in (one, other))
    if before is None or after is None:
        return f"{called} undefined"
    return f"{called} {after - before:+.3f} ({_signed(samples[other][name] - samples[one][name], '.3f')})"


def _signed(sample: Numbers, form: str) -> str:
    bounds = _interval(np.where(np.isfinite(sample), sample, np.nan))
    return "no interval" if bounds is None else f"95 % {bounds[0]:+{form}} to {bounds[1]:+{form}}"


def _yes(value: bool | None) -> str:
    return "undefined" if value is None else "yes" if value else "no"


def groups_table(found: Mapping[str, Line]) -> str:
    """Error over groups of rising confidence."""
    rows = ["| | " + " | ".join(f"fifth {n}" for n in range(1, 6)) + " |", "|---" * 6 + "|"]
    for title, line in found.items():
        cells = [f"{group['mean_abs_log2_error']:.2f}" for group in line.pictures()["groups"]]
        rows.append(f"| {title} | " + " | ".join(cells + [""] * (5 - len(cells))) + " |")
    return "\n".join(rows)


def costs(kept: Mapping[str, Numbers]) -> str:
    """What each training took."""
    head = ["training", "steps", "GPU-minutes", "answers", "unread", "answer tokens per second", "peak GiB"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, result in kept.items():
        log, peak = result.get("training"), result["machine"]["peak_gib"]
        if not log:
            continue
        cells = [name, steps_of(result), f"{result['trained_s'] / 60:.2f}"]
        answered = "answers" in log and log["generation_s"] > 0
        speed = f"{log['answer_tokens'] / log['generation_s']:.0f}" if answered else "-"
        cells += [str(log.get("answers", "-")), str(log.get("failures", "-")), speed]
        rows.append("| " + " | ".join([*cells, "-" if peak is None else f"{peak:.1f}"]) + " |")
    return "\n".join(rows)


def steps_of(result: Numbers) -> str:
    """How many steps a training had, of how many when it was ended before."""
    done, wanted = result["training"]["steps"], result["settings"]["steps"]
    return str(done) if done >= wanted else f"{done} of {wanted}"


def missing(kept: Mapping[str, Numbers]) -> str:
    """Which trainings are not there, or ended early."""
    wanted = list(dict.fromkeys(name for names, _ in lines().values() for name in names))
    absent = [name for name in wanted if name not in kept]
    cut = [
        f"{name} ({steps_of(result)} steps)"
        for name, result in kept.items()
        if result.get("training") and "of" in steps_of(result) and not name.startswith("profile")
    ]
    if not absent and not cut:
        return "All trainings are there, with as many steps as planned."
    parts = [f"**Not there**: {', '.join(absent)}." if absent else ""]
    parts.append(f"**Ended before their last step**: {', '.join(cut)}." if cut else "")
    return " ".join(part for part in parts if part)


def draw(found: Mapping[str, Line], file: Path) -> None:
    """Reliability, error over confidence and confusion of each line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = [title for title in (*lines(), "learned") if title in found]
    figure = Figure(figsize=(2.6 * len(chosen), 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(chosen), squeeze=False)
    for place, title in enumerate(chosen):
        pictures = found[title].pictures()
        top, middle, bottom = axes[:, place]
        top.plot([0, 1], [0, 1], "--", color="#777777", linewidth=1)
        buckets = pictures["buckets"]
        top.plot([b["confidence"] for b in buckets], [b["accuracy"] for b in buckets], "o-")
        name = title.replace(", ", ",\n", 1)
        top.set(xlim=(0, 1), ylim=(0, 1), title=f"{name}\nECE {found[title].measures['ece']:.2f}")
        top.set_xlabel("confidence")
        errors = [group["mean_abs_log2_error"] for group in pictures["groups"]]
        middle.bar(range(1, len(errors) + 1), errors, color="#0072B2")
        middle.set_xlabel("group by rising confidence")
        bottom.imshow(np.array(pictures["confusion"]), cmap="Blues", origin="lower")
        bottom.set_xlabel("forecast bin")
        bottom.set(xticks=range(8), yticks=range(8), xticklabels=range(1, 9), yticklabels=range(1, 9))
    for row, label in zip(axes[:, 0], ("share right", "mean |log2 error|", "measured bin"), strict=True):
        row.set_ylabel(label)
    figure.savefig(file, dpi=80)


def utilisation(folder: Path) -> str:
    """What the driver said of the GPU, and what the profile of one step did."""
    parts = []
    if (folder / "gpu.jsonl").exists():
        samples = [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]
        busy, used = [s["gpu"] for s in samples], [s["used_gib"] for s in samples]
        parts.append(
            f"Over all {len(samples)} seconds, several trainings at once most of the time, the driver saw a kernel "
            f"running {statistics.fmean(busy):.0f} % of the time; at most {max(used):.0f} GiB were in use."
        )
    for file in sorted(folder.glob("profile-*.json")):
        profile = json.loads(file.read_text())
        share = profile["busy_s"] / profile["seconds"]
        each = 1e6 * profile["busy_s"] / max(1, profile["kernels"])
        most = list(profile["ns_by_kernel"].items())[:3]
        named = ", ".join(f"{name.split('<')[0][:60]} {ns / 1e9:.2f} s" for name, ns in most)
        parts.append(
            f"One profiled step of {file.stem.removeprefix('profile-')}, alone on the GPU: {profile['seconds']:.1f} s, "
            f"{profile['kernels']} kernels of {each:.0f} us in the mean, the GPU computing {share:.0%} of the time. "
            f"Longest in all: {named}."
        )
    return "\n\n".join(parts)


def report(work: Work, resamples: int, note: str, out: Path) -> None:
    """Write table and pictures of what there is.

    Raises:
        SystemExit: there is nothing.
    """
    kept = results(work)
    if not kept:
        raise SystemExit(f"nothing was kept in {work.folder / 'results'}")
    data = gathered(work.sizes.rows)
    tested = [answered_by_all(kept, getattr(data.split, part), part) for part in TESTED]
    data = replace(data, split=Split(data.split.train, *map(tuple, tested)))
    if not all(tested):
        raise SystemExit(
            f"{work.folder / 'results'}: no kernel that is tested on was forecast by every training"
        )
    found, samples = {}, {}
    for part in TESTED:
        found[part] = answers(kept, data, part)
        samples[part] = {title: line.resampled(resamples) for title, line in found[part].items()}
    text = _head(kept, data, note)
    for part in TESTED:
        text += f"## {part.replace('_', ' ').capitalize()}\n\n{table(found[part], samples[part])}\n\n"
        text += f"{claims(found[part], samples[part], kept)}\n\n"
    text += "## Mean |log2 error| over fifths by rising confidence, unseen operations\n\n"
    text += f"{groups_table(found[TESTED[1]])}\n\n## What it cost\n\n{costs(kept)}\n\n"
    text += utilisation(work.folder) + "\n\n![Pictures](training.png)\n"
    out.mkdir(parents=True, exist_ok=True)
    draw(found[TESTED[1]], out / "training.png")
    numbers = {
        "sizes": {part: len(getattr(data.split, part)) for part in PARTS},
        "missing": missing(kept),
        "costs": {name: _cost(result) for name, result in kept.items()},
        "figures": {
            part: {title: _numbers(line, samples[part][title]) for title, line in found[part].items()}
            for part in TESTED
        },
    }
    write_result("training", numbers, text, out)


def _numbers(line: Line, sample: Mapping[str, Numbers]) -> Numbers:
    intervals = {name: _interval(sample[name]) for name in INTERVALS}
    unread = sum(seed.unread for seed in line.seeds)
    return (
        line.measures
        | line.pictures()
        | {
            "intervals": intervals,
            "seeds": len(line.seeds),
            "unread": unread,
        }
    )


def _cost(result: Numbers) -> Numbers:
    log = dict(result.get("training") or {})
    curve = log.pop("curve", [])
    rewards = [entry["reward"] for entry in curve if not math.isnan(entry.get("reward", math.nan))]
    return log | {"trained_s": result.get("trained_s"), "rewards": rewards} | result["machine"]


def _head(kept: Mapping[str, Numbers], data: TrainingData, note: str) -> str:
    machine_ = next(iter(kept.values()))["machine"]
    sizes = {part: len(getattr(data.split, part)) for part in PARTS}
    return (
        "Training on recorded kernels: SmolLM2-135M-Instruct with LoRA of rank 16, "
        f"{machine_['gpu'] or 'no GPU'}, torch {machine_['versions']['torch']}. Scored: {machine()}\n\n"
        f"Trained on {', '.join(TRAINED_OPERATIONS)}: {sizes['train']} rows, a kernel beside the reference or beside "
        f"one of three other kernels. Tested on {sizes['unseen_kernels']} unseen kernels of these, and on "
        f"{sizes['unseen_operations']} kernels of {' and '.join(HELD_OUT_OPERATIONS)}, which nothing was trained on. "
        "Written answers are drawn at temperature 1, as in training, several for each kernel. In brackets: 95 % "
        "bootstrap intervals over kernels of the mean of both seeds. Confidence: mean. Monot.: share of steps to a "
        "surer fifth at which the error falls. Spearman and top k % within each operation, means. An answer that could "
        f"not be read counts as uniform.\n\n{missing(kept)}\n\n{note}\n\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Score what was kept, and write table and pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of benchmarks.training_drive")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--note", default="", help="what readers must know of this run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for table and pictures")
    parser.add_argument("--size", choices=SIZES, default="full", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    report(Work(options.work, Path("model"), options.size), options.resamples, options.note, options.out)


if __name__ == "__main__":
    main()
