"""Table and pictures of what was trained: ``python -m benchmarks.training_report --work FOLDER``.

Beside the trained models stands what they must be better than (:mod:`benchmarks.training_lines`). What was not trained,
or not to its end, is named. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.report import RESULTS, machine, provenance, write_result
from benchmarks.training import HELD_OUT_OPERATIONS, PARTS, SIZES, TRAINED_OPERATIONS, Numbers, Work, gathered
from benchmarks.training_claims import (
    against_learned,
    against_start,
    better_by_scores,
    better_than_shipped,
    claims,
    rewards_told,
)
from benchmarks.training_lines import (
    COMPILED,
    COMPILED_MEASURED,
    FIRST_MEASURED,
    LEARNED,
    MEASURED,
    SAME_KERNELS,
    SHIPPED,
    START,
    answered_by_all,
    answers,
    results,
)
from benchmarks.training_picture import draw
from benchmarks.training_scores import INTERVALS, Line
from benchmarks.training_tables import Samples, costs, interval, missing, quality_table, sureness_table
from gpu_forecasters_plugin.forecasters.learned import warm_start_tasks
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.splits import Split

TESTED = PARTS[1:]
RESAMPLES = 300
_GAP_S = 60.0
"""A longer time without a sample of the GPU lies between two parts of the work."""


def utilisation(folder: Path) -> str:
    """What the driver said of the GPU, and what the profile of one step did."""
    parts = []
    if (folder / "gpu.jsonl").exists():
        samples = [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]
        busy, used, times = ([sample[name] for sample in samples] for name in ("gpu", "used_gib", "t"))
        gaps = sum(after - before > _GAP_S for before, after in itertools.pairwise(times))
        of_parts = f" of {gaps + 1} parts" if gaps else ""
        parts.append(
            f"Over all {len(samples)} seconds{of_parts}, two trainings side by side most of the time, the driver saw a "
            f"kernel running {statistics.fmean(busy):.0f} % of the time; at most {max(used):.0f} GiB were in use. A "
            "GPU-minute above is a minute of the clock, also where another training shared the GPU."
        )
    for file in sorted(folder.glob("profile-*.json")):
        profile = json.loads(file.read_text())
        share = profile["busy_s"] / profile["seconds"]
        each = 1e6 * profile["busy_s"] / max(1, profile["kernels"])
        most = list(profile["ns_by_kernel"].items())[:3]
        named = ", ".join(f"`{_short(name)}` {ns / 1e9:.2f} s" for name, ns in most)
        parts.append(
            f"One profiled step of {file.stem.removeprefix('profile-')}, alone on the GPU: {profile['seconds']:.1f} s, "
            f"of which the GPU computes {share:.0%}, in {profile['kernels']} GPU kernels of {each:.0f} microseconds in "
            f"the mean; the rest of the time it waits for the next one. Most time in all: {named}."
        )
    return "\n\n".join(parts)


def _short(name: str) -> str:
    """A GPU kernel's name without its types and arguments."""
    return name.removeprefix("void ").split("<")[0].split("(")[0]


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
    text = _head(kept, data, note) + _findings(found, samples, kept)
    text += f"## What it cost\n\n{costs(kept)}\n\n{utilisation(work.folder)}\n\n{_PICTURE}"
    out.mkdir(parents=True, exist_ok=True)
    draw(found[TESTED[1]], out / "training.png")
    numbers = {
        "made": provenance(),
        "sizes": {part: len(getattr(data.split, part)) for part in PARTS},
        "missing": missing(kept),
        "costs": {name: _cost(result) for name, result in kept.items()},
        "beats_the_shipped_forecaster": {
            part: better_than_shipped(found[part], samples[part]) for part in TESTED
        },
        "figures": {
            part: {title: _numbers(line, samples[part], title) for title, line in found[part].items()}
            for part in TESTED
        },
    }
    write_result("training", numbers, text, out)


_PICTURE = """## Pictures, unseen operations

Top: on the diagonal, confidence means what it says; points are as large as their share of the answers. Middle: error in
octaves over groups by rising confidence; it should fall to the right. Bottom: measured against forecast bin; what knows
something is dark along the diagonal, what always says the same is a column.

![Pictures](training.png)
"""


def _findings(
    found: Mapping[str, Mapping[str, Line]], samples: Mapping[str, Samples], kept: Mapping[str, Numbers]
) -> str:
    """What was asked, tables, and whether anything is to ship; unseen operations first, since they decide."""
    operations, kernels = TESTED[1], TESTED[0]
    text = ""
    for part in (operations, kernels):
        text += f"## What was to be reached, {_named(part)}\n\n{claims(found[part], samples[part], kept)}\n\n"
        text += f"{rewards_told(found[part])}\n\n"
    text += _beaten(found, samples)
    text += "## What training adds to its start\n\n"
    text += "Differences to what GRPO and `proper` begin from, in pairs as above.\n\n"
    for part in (operations, kernels):
        text += f"{_named(part).capitalize()}. {against_start(found[part], samples[part])}\n\n"
    for part in (operations, kernels):
        text += f"## All lines, {_named(part)}\n\n{quality_table(found[part], samples[part])}\n\n"
        text += f"{_SURENESS}\n\n{sureness_table(found[part])}\n\n"
    return text


def _beaten(found: Mapping[str, Mapping[str, Line]], samples: Mapping[str, Samples]) -> str:
    """Which trained lines beat the learned forecaster, and every difference to it on unseen operations."""
    operations, kernels = TESTED[1], TESTED[0]
    new, seen = (better_than_shipped(found[part], samples[part]) for part in (operations, kernels))
    by_scores = "\n".join(
        f"- than those of *{other}*: {_list(better_by_scores(other, found[operations], samples[operations]))}"
        for other in (SHIPPED, COMPILED, MEASURED, COMPILED_MEASURED)
    )
    return (
        f"## Does a trained model beat the forecaster that ships, {_named(operations)}?\n\n"
        f"By Brier and NLL surely lower than those of *{SHIPPED}*, and a ranking that is not surely worse: "
        f"**{_list(new)}**. Lines that have both scores surely lower, whatever their ranking:\n\n{by_scores}\n\n"
        f"On {_named(kernels)}, whose operations the models were trained on and *{SHIPPED}* knows nothing of, it is "
        f"beaten in the same sense by: {_list(seen)}.\n\n"
        "Differences, in pairs over the same kernels; Brier, CRPS and NLL are better below 0, exact, Spearman and top "
        f"10 % above.\n\n{against_learned(found[operations], samples[operations])}\n\n"
    )


def _list(titles: Sequence[str]) -> str:
    """Names of lines, some of which have commas."""
    return "; ".join(titles) or "none"


_SURENESS = """How sure they are (mean confidence); the mean |log2 error|, in octaves, of groups of a fifth of the
answers each by rising confidence, fewer where many answers are equally sure; the best kernel among the 1 and 25 %
foretold fastest; tokens of an answer, and answers that could not be read."""


def _named(part: str) -> str:
    return part.replace("_", " ")


def _numbers(line: Line, samples: Samples, title: str) -> Numbers:
    intervals = {name: interval(samples[title][name]) for name in INTERVALS}
    against = {
        other: {name: interval(samples[title][name] - samples[other][name]) for name in INTERVALS}
        for other in (*LEARNED, START)
        if other in samples
    }
    return (
        line.measures
        | line.pictures()
        | {
            "intervals": intervals,
            "intervals_of_differences": against,
            "equally_sure": line.equally_sure(),
            "seeds": len(line.seeds),
            "unread": sum(seed.unread for seed in line.seeds),
        }
    )


def _cost(result: Numbers) -> Numbers:
    log = dict(result.get("training") or {})
    curve = log.pop("curve", [])
    rewards = [entry["reward"] for entry in curve if not math.isnan(entry.get("reward", math.nan))]
    return log | {"trained_s": result.get("trained_s"), "rewards": rewards} | result["machine"]


def _head(kept: Mapping[str, Numbers], data: TrainingData, note: str) -> str:
    machine_ = next(iter(kept.values()))["machine"]
    others = len({task.operation for task in warm_start_tasks(exclude_operation="")}) - 1
    sizes = {part: len(getattr(data.split, part)) for part in PARTS}
    return (
        "Does a reward for calibration make a small language model a better forecaster of kernels? "
        "SmolLM2-135M-Instruct with LoRA of rank 16 was trained on recorded kernels on an "
        f"{machine_['gpu'] or 'unknown processor'} (torch {machine_['versions']['torch']}). The tables were "
        f"{_lowered(machine())}\n\n"
        f"Trained on {', '.join(TRAINED_OPERATIONS)}: {sizes['train']} rows, a kernel beside the reference or beside "
        f"one of three other kernels. Tested on {sizes['unseen_operations']} kernels of "
        f"{' and '.join(HELD_OUT_OPERATIONS)}, of which nothing was trained on (*unseen operations*), and on "
        f"{sizes['unseen_kernels']} kernels of the trained operations that were kept apart (*unseen kernels*).\n\n"
        f"{missing(kept)}\n\n{note}\n\n{_LINES.format(others=others)}\n\n"
    )


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


_LINES = f"""**Lines.** *base*: the model as published. *SFT*: it has imitated right answers; the start of all that
follows. *GRPO*: reinforced, each written answer paid by the reward that is named. *proper*: trained on the score of
its one-token answers. *one token*: the probabilities of the eight labels at one token. *written*, and *GRPO* where
nothing else is said: a JSON object, drawn at temperature 1 as in training, several for each kernel; one that cannot be
read counts as uniform. *uniform* and *bin frequencies* (of the trained kernels) say the same of every kernel.
*{SAME_KERNELS}*: the learned forecaster with what the models know, the trained kernels and the text alone.
*{SHIPPED}*: the default of a new search before its first measurement, which knows the recorded kernels of
{{others}} other operations, and of the kernel in question its text alone. *{MEASURED}*: the same with {FIRST_MEASURED}
other kernels of the operation measured, as a search soon has. *{COMPILED}* and
*{COMPILED_MEASURED}*: the same two where the screen, which is off by default, is on, so that
the forecaster also knows what the compiler makes of a kernel. No trained model knows that.

**Measures.** exact, within 1: share whose likeliest bin is the measured one, or next to it. Brier, CRPS, NLL: distance
of the forecast from what was measured; lower is better. ECE: distance of confidence from the share that is right.
Spearman: rank correlation with the measured speed-ups, within each operation. top 10 %: the best kernel among the tenth
foretold fastest, over the best of all. In brackets: 95 % bootstrap intervals over kernels, of the mean of both seeds;
they do not say how much another run of the same training would differ. ECE grows where kernels repeat, as they do in a
resample, so that its intervals lie a little high; those of top 10 % mostly lie low."""


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
