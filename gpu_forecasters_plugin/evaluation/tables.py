"""``report.md``: the figures of an evaluation, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_forecasters_plugin.evaluation.pictures import PICTURES
from gpu_forecasters_plugin.printable import printable

__all__ = ["report_text", "score_table"]

_SCORES = (
    ("exact bin", "exact"),
    ("noise ceiling of it", "noise_ceiling"),
    ("within one bin", "within_one"),
    ("mean abs. log2 error [octaves]", "mean_abs_log2_error"),
    ("Brier score", "brier"),
    ("Brier skill", "brier_skill"),
    ("CRPS", "crps"),
    ("CRPS skill", "crps_skill"),
    ("negative log likelihood", "nll"),
    ("its skill", "nll_skill"),
    ("calibration error (ECE)", "ece"),
    ("area under risk-coverage", "aurc"),
    ("error falls with confidence", "monotonicity"),
    ("Spearman", "spearman"),
    ("Spearman within tasks", "spearman_within_tasks"),
)

_FORESIGHT = (("Brier score of P(ok)", "brier"), ("its skill", "brier_skill"), ("AUC", "auc"))


def _number(value: Any) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _interval(bounds: Any) -> str:
    return "" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    """Text of unknown origin within a table of Markdown."""
    shown = printable(text[:120])
    for character in "\\`|<>[]*_":
        shown = shown.replace(character, f"\\{character}")
    return shown


def score_table(summary: Mapping[str, Any]) -> str:
    """Every score of a set with its interval, as a table of Markdown."""
    bounds = summary["ci95"] or {}
    rows = [(label, summary[key], bounds.get(key)) for label, key in _SCORES]
    for k, value in summary["top_k"].items():
        rows.append((f"best in the top {k} % / best", value, bounds.get(f"top_k_{k}")))
    if (failure := summary.get("failure")) is not None:
        counted = f"failure foreseen ({failure['failed']} of {failure['n']} failed)"
        rows += [(f"{counted}: {label}", failure[key], None) for label, key in _FORESIGHT]
    lines = [_row(("measure", "value", "95 % interval")), "|---|---|---|"]
    return "\n".join([*lines, *(_row((label, _number(v), _interval(b))) for label, v, b in rows)])


def _discovery_table(summary: Mapping[str, Any]) -> str:
    lines = [
        _row(("at least", "measured", "called", "precision", "recall", "area under the curve")),
        "|---|---|---|---|---|---|",
    ]
    for threshold, found in summary["discovery"].items():
        numbers = [_number(found[key]) for key in ("precision", "recall", "average_precision")]
        lines.append(_row((f"{threshold}x", str(found["found"]), str(found["called"]), *numbers)))
    return "\n".join(lines)


def _task_table(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    keys = ("exact", "noise_ceiling", "within_one", "brier_skill", "crps_skill", "nll", "ece", "spearman")
    heads = ("task", "n", "failed", *(key.replace("_", " ") for key in keys), "top 10 %")
    lines = [_row(heads), "|---" * len(heads) + "|"]
    for name, found in tasks.items():
        numbers = [_number(found[key]) for key in keys]
        lines.append(
            _row(
                (_safe(name), str(found["n"]), str(found["failed"]), *numbers, _number(found["top_k"]["10"]))
            )
        )
    return "\n".join(lines)


def _facts(summary: Mapping[str, Any]) -> list[str]:
    """What has to be known to read the figures."""
    protocol = summary["protocol"]
    facts = [
        f"Forecaster: {_safe(summary['forecaster'])}. Bins: {summary['bins']}. {_safe(protocol['training'])}.",
        f"{summary['n']} measured kernels, {summary['n_forecast']} with a forecast; {summary['failed']} failed "
        "kernels are in no score.",
    ]
    if summary["unanswered"]:
        alone = summary["answered_only"]
        facts.append(
            f"The {summary['unanswered']} without a forecast count as uniform. On the others alone: exact "
            f"{_number(alone['exact'])}, Brier {_number(alone['brier'])}, NLL {_number(alone['nll'])}."
        )
    noise = summary["noise"]
    if noise is None:
        facts.append("No kernel was measured twice, so what noise allows is not known.")
    else:
        soft = summary["soft_truth"]
        known = (
            f"{noise['n']} kernels were measured more than once: two measurements of one fall into the same bin in "
            if noise["source"] == "repeats"
            else "By the spread given, the likeliest bin of a kernel whose time is known is the measured one in "
        )
        facts.append(
            f"{known}{noise['exact']:.1%} of cases, and no forecaster can be expected to do better. In expectation "
            f"over that spread: exact {_number(soft['exact'])}, Brier {_number(soft['brier'])}, NLL "
            f"{_number(soft['nll'])}."
        )
    if summary["ci95"] and summary["ci95"]["resamples"]:
        facts.append(
            f"Intervals: {summary['ci95']['resamples']} bootstrap resamples of {summary['ci95']['unit']}s. Skill "
            "compares with the set's own bin frequencies: above 0 is better than a constant forecast."
        )
    return facts


def report_text(summary: Mapping[str, Any]) -> str:
    """The whole report as Markdown."""
    parts = [f"# Evaluation of {_safe(summary['forecaster'])}", *_facts(summary), score_table(summary)]
    drawn = summary.get("drawn_at_random")
    if drawn is not None:
        parts += [
            "## Rows drawn at random",
            f"What was measured for looking promising is a biased sample. The {drawn['n']} rows that were drawn at "
            "random, weighted by one over their sampling probability, stand for all candidates.",
            score_table(drawn),
        ]
    parts += ["## Discoveries", _discovery_table(summary)]
    if summary["tasks"]:
        parts += ["## Tasks", _task_table(summary["tasks"])]
    if summary["n"]:
        parts += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in PICTURES]
    return "\n\n".join(parts) + "\n"
