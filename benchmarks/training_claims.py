"""What the training comparison was made to find out, and what it found: in pairs, over the same kernels."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from benchmarks.training import REWARDS, SCORES, Numbers
from benchmarks.training_lines import LEARNED, SHIPPED, START, one_token_lines, trained_lines
from benchmarks.training_scores import Line
from benchmarks.training_tables import NO_ANSWERS, Samples, interval, rows_of
from gpu_forecasters_plugin.calibration.rows import Array

__all__ = [
    "against_learned",
    "against_start",
    "better_by_scores",
    "better_than_shipped",
    "claims",
    "rewards_told",
]

_WANTED_ECE_CUT, _WANTED_SHARE_OF_TIME = 0.3, 0.1
_PLAIN = f"GRPO, {REWARDS[0]}"
_BETTER_BELOW = {"brier": "Brier", "crps": "CRPS", "nll": "NLL"}
_BETTER_ABOVE = {"exact": "exact", "spearman_within_tasks": "Spearman", "top_k_10": "top 10 %"}


def claims(found: Mapping[str, Line], samples: Samples, kept: Mapping[str, Numbers]) -> str:
    """What was to be reached, each line with its figures and whether it was."""
    told = [_of_reward(f"GRPO, {reward}", found, samples, kept) for reward in REWARDS[1:]]
    told.append(_of_proper(found, samples, kept))
    return "\n\n".join(told)


def _of_reward(title: str, found: Mapping[str, Line], samples: Samples, kept: Mapping[str, Numbers]) -> str:
    head = f"**{named_with_steps(title, kept)}** against *{named_with_steps(_PLAIN, kept)}*"
    if title not in found or _PLAIN not in found:
        return f"{head}: {NO_ANSWERS}."
    before, after = (found[name].measures["ece"] for name in (_PLAIN, title))
    bounds = interval(_finite(samples[title]["ece"] / samples[_PLAIN]["ece"] - 1))
    ranking = "spearman_within_tasks"
    lost = interval(samples[title][ranking] - samples[_PLAIN][ranking])
    one, other = (_number(found[name].measures[ranking]) for name in (_PLAIN, title))
    each = [interval(samples[name][ranking]) for name in (_PLAIN, title)]
    by_chance = "" if any(own and own[0] > 0 for own in each) else "; neither is surely better than chance"
    return (
        f"{head}:\n\n"
        f"- ECE at least 30 % lower: {_reached(bounds is not None and bounds[1] <= -_WANTED_ECE_CUT)}, "
        f"{before:.3f} to {after:.3f}, {after / before - 1:+.0%} ({_bounds(bounds, '.0%')}); Brier "
        f"{_difference('brier', found, samples, _PLAIN, title)}.\n"
        f"- Error falls from each group of answers to the surer one: {_reached(found[title].monotone() is True)}, "
        f"{_errors(found[title])}; for correctness alone {_errors(found[_PLAIN])}.\n"
        f"- Ranks no worse: {_reached(lost is not None and lost[1] >= 0)}, Spearman {one} to {other}, "
        f"{_difference(ranking, found, samples, _PLAIN, title)}{by_chance}."
    )


def _of_proper(found: Mapping[str, Line], samples: Samples, kept: Mapping[str, Numbers]) -> str:
    """Whether direct descent is within noise of the best reinforced line, in a tenth of its time."""
    reinforced = [title for title in found if title.startswith("GRPO")]
    best = min(reinforced, key=lambda title: found[title].measures["brier"], default=None)
    if best is None:
        return f"**proper** against the best of GRPO: {NO_ANSWERS}."
    told = [
        f"**proper** against the best of GRPO by Brier, *{named_with_steps(best, kept)}*, and the share of its "
        "GPU-minutes that a whole training takes:\n"
    ]
    for title in (*(f"proper, {score}" for score in SCORES), "proper, brier, longer"):
        if title not in found:
            told.append(f"- {title}: {NO_ANSWERS}.")
            continue
        bounds = interval(samples[title]["brier"] - samples[best]["brier"])
        share = _minutes(title, kept) / _minutes(best, kept)
        told.append(
            f"- {title}, within noise or better: {_reached(bounds is not None and bounds[0] <= 0)}, Brier "
            f"{_difference('brier', found, samples, best, title)}; in a tenth of the GPU-minutes: "
            f"{_reached(share <= _WANTED_SHARE_OF_TIME)}, {share:.0%} of them."
        )
    return "\n".join(told)


def named_with_steps(title: str, kept: Mapping[str, Numbers]) -> str:
    """A line's name, with the steps of its trainings where they ended early."""
    names = [name for name in trained_lines()[title][0] if kept.get(name, {}).get("training")]
    done = [kept[name]["training"]["steps"] for name in names]
    wanted = [kept[name]["settings"]["steps"] for name in names]
    if all(a >= b for a, b in zip(done, wanted, strict=True)):
        return title
    return f"{title} ({' and '.join(map(str, done))} of {wanted[0]} steps)"


def _minutes(title: str, kept: Mapping[str, Numbers]) -> float:
    """GPU-minutes of a line's trainings had none ended early, mean over seeds; without the start in common."""
    return statistics.fmean(
        kept[name]["trained_s"] / 60 * kept[name]["settings"]["steps"] / kept[name]["training"]["steps"]
        for name in trained_lines()[title][0]
        if name in kept
    )


def rewards_told(found: Mapping[str, Line]) -> str:
    """How much of a low calibration error is knowledge: beside the same measures of a forecast that knows nothing."""
    titles = [title for title in (f"GRPO, {reward}" for reward in REWARDS[1:]) if title in found]
    if not titles:
        return ""
    told = []
    for title in titles:
        own = found[title].measures
        told.append(
            f"*{title}* has Brier {own['brier']:.3f}, ECE {own['ece']:.3f}, mean confidence {own['confidence']:.2f} "
            f"and Spearman {_number(own['spearman_within_tasks'])}"
        )
    nothing = found["uniform"].measures
    return (
        "A low ECE alone is no knowledge: an eighth for every bin, whatever the kernel, has Brier "
        f"{nothing['brier']:.3f}, ECE {nothing['ece']:.3f} and confidence 0.125. {'; '.join(told)}."
    )


def against_learned(found: Mapping[str, Line], samples: Samples) -> str:
    """Differences of every one-token line to the learned forecaster, once for each of what that one may know."""
    return "\n\n".join(_minus(other, found, samples) for other in LEARNED)


def against_start(found: Mapping[str, Line], samples: Samples) -> str:
    """What GRPO and ``proper`` add to what they begin from."""
    return _minus(START, found, samples) if START in found else f"*{START}*: {NO_ANSWERS}."


def _minus(other: str, found: Mapping[str, Line], samples: Samples) -> str:
    """Differences of every one-token line to another line."""
    measures = _BETTER_BELOW | _BETTER_ABOVE
    rows = [
        [title, *(_difference(name, found, samples, other, title) for name in measures)]
        for title in one_token_lines()
        if title in found and title != other
    ]
    return f"Minus *{other}*:\n\n{rows_of(['', *measures.values()], rows)}"


def better_than_shipped(found: Mapping[str, Line], samples: Samples) -> list[str]:
    """The one-token lines that beat the forecaster as it ships: Brier and NLL surely lower, and no worse ranking."""
    return [
        title
        for title in better_by_scores(SHIPPED, found, samples)
        if not _surely_lower("spearman_within_tasks", samples, SHIPPED, title)
    ]


def better_by_scores(other: str, found: Mapping[str, Line], samples: Samples) -> list[str]:
    """The one-token lines with a Brier score and an NLL surely lower than another line's, whatever their ranking."""
    return [
        title
        for title in one_token_lines()
        if title in found and all(_surely_lower(name, samples, other, title) for name in ("brier", "nll"))
    ]


def _surely_lower(name: str, samples: Samples, one: str, other: str) -> bool:
    bounds = interval(samples[other][name] - samples[one][name])
    return bounds is not None and bounds[1] < 0


def _difference(name: str, found: Mapping[str, Line], samples: Samples, one: str, other: str) -> str:
    before, after = (found[title].measures[name] for title in (one, other))
    if before is None or after is None:
        return "undefined"
    bounds = interval(_finite(samples[other][name] - samples[one][name]))
    return f"{after - before:+.3f} ({_bounds(bounds, '.3f')})"


def _finite(sample: Array) -> Array:
    return np.where(np.isfinite(sample), sample, np.nan)


def _bounds(bounds: tuple[float, float] | None, form: str) -> str:
    return "no interval" if bounds is None else f"{bounds[0]:+{form}} to {bounds[1]:+{form}}"


def _errors(line: Line) -> str:
    """The errors of the groups, or why there are none."""
    errors = [group["mean_abs_log2_error"] for group in line.pictures()["groups"]]
    if len(errors) < 2:
        return f"no groups, since {line.equally_sure():.0%} of its answers are equally sure"
    return f"{', '.join(f'{error:.2f}' for error in errors)} octaves in {len(errors)} groups by rising confidence"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _reached(value: bool) -> str:
    return "**reached**" if value else "**not reached**"
