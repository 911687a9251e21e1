"""Tables of the training comparison: how good each line is, how sure, and what each training cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.training import Numbers
from benchmarks.training_lines import all_lines, trained_lines
from benchmarks.training_scores import Line
from gpu_forecasters_plugin.calibration.rows import Array

__all__ = [
    "NO_ANSWERS",
    "Samples",
    "costs",
    "interval",
    "missing",
    "quality_table",
    "rows_of",
    "steps_of",
    "sureness_table",
]

Samples = Mapping[str, Mapping[str, Array]]
NO_ANSWERS = "not measured"
_QUALITY = {
    "exact": "exact",
    "within_one": "within 1",
    "brier": "Brier",
    "crps": "CRPS",
    "nll": "NLL",
    "ece": "ECE",
    "spearman_within_tasks": "Spearman",
    "top_k_10": "top 10 %",
}
_GROUPS = 5


def rows_of(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def quality_table(found: Mapping[str, Line], samples: Samples) -> str:
    """One line each; what is missing has a line that says so."""
    rows = []
    for title in all_lines():
        if title not in found:
            rows.append([title, NO_ANSWERS, *[""] * (len(_QUALITY) - 1)])
            continue
        measures = found[title].measures
        rows.append([title, *(_cell(measures[name], samples[title].get(name)) for name in _QUALITY)])
    return rows_of(["", *_QUALITY.values()], rows)


def _cell(value: float | None, sample: Array | None) -> str:
    if value is None:
        return "-"
    bounds = interval(sample)
    return f"{value:.2f}" if bounds is None else f"{value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def interval(sample: Array | None) -> tuple[float, float] | None:
    """The middle 95 % of the resamples in which a measure is defined."""
    if sample is None or np.isnan(sample).all():
        return None
    low, high = np.nanquantile(sample, (0.025, 0.975))
    return float(low), float(high)


def sureness_table(found: Mapping[str, Line]) -> str:
    """How sure the lines are, whether they err less where they are surer, and how they answer."""
    head = ["", "confidence", *(f"group {n}" for n in range(1, _GROUPS + 1))]
    head += ["top 1 %", "top 25 %", "tokens", "unread", "seeds"]
    rows = []
    for title in all_lines():
        if title not in found:
            continue
        line = found[title]
        errors = [f"{group['mean_abs_log2_error']:.2f}" for group in line.pictures()["groups"]]
        tokens = [seed.tokens for seed in line.seeds if seed.tokens is not None]
        answers = sum(len(draw) for seed in line.seeds for draw in seed.probabilities)
        rows.append(
            [
                title,
                f"{line.measures['confidence']:.2f}",
                *errors,
                *[""] * (_GROUPS - len(errors)),
                *(_cell(line.measures[name], None) for name in ("top_k_1", "top_k_25")),
                f"{statistics.fmean(tokens):.0f}" if tokens else "-",
                f"{sum(seed.unread for seed in line.seeds)} of {answers}",
                str(len(line.seeds)),
            ]
        )
    return rows_of(head, rows)


def costs(kept: Mapping[str, Numbers]) -> str:
    """What each training took."""
    head = ["training", "steps", "GPU-minutes", "of them answering", "answers", "unread"]
    head += ["answer tokens per second", "peak GiB"]
    rows = []
    for name, result in kept.items():
        log, peak = result.get("training"), result["machine"]["peak_gib"]
        if not log:
            continue
        cells = [name, steps_of(result), f"{result['trained_s'] / 60:.2f}"]
        answered = "answers" in log and log["generation_s"] > 0
        share = f"{log['generation_s'] / result['trained_s']:.0%}" if answered else "-"
        speed = f"{log['answer_tokens'] / log['generation_s']:.0f}" if answered else "-"
        cells += [share, str(log.get("answers", "-")), str(log.get("failures", "-")), speed]
        rows.append([*cells, "-" if peak is None else f"{peak:.1f}"])
    return rows_of(head, rows)


def steps_of(result: Numbers) -> str:
    """How many steps a training had, of how many when it was ended before."""
    done, wanted = result["training"]["steps"], result["settings"]["steps"]
    return str(done) if done >= wanted else f"{done} of {wanted}"


def missing(kept: Mapping[str, Numbers]) -> str:
    """Which trainings are not there, or ended early."""
    wanted = list(dict.fromkeys(name for names, _ in trained_lines().values() for name in names))
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
