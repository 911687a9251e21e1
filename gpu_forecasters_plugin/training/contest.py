"""The old forecaster against the one that learned on, on audit rows that neither was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.calibration.scores import brier, crps, nll
from gpu_forecasters_plugin.forecast import ForecastOutcome
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.scoring import scored_rows
from gpu_forecasters_plugin.training.settings import ContestSettings

__all__ = ["Contest", "compare_forecasters"]

_SCORES = {"nll": nll, "brier": brier, "crps": crps}
_RESAMPLES = 2000


@dataclass(frozen=True)
class Contest:
    """How the two compare; lower scores are better.

    Attributes:
        score: by which.
        rows: audit rows.
        before: mean score of the old forecaster; ``None`` without rows.
        after: of the new one.
        change_ci95: bootstrap interval of the change, over rows.
        accepted: whether the new one may take the old one's place.
        verdict: why, in a line.
    """

    score: str
    rows: int
    before: float | None
    after: float | None
    change_ci95: tuple[float, float] | None
    accepted: bool
    verdict: str


def compare_forecasters(
    rows: Sequence[TrainingRow],
    before: Sequence[ForecastOutcome],
    after: Sequence[ForecastOutcome],
    settings: ContestSettings,
    seed: int,
) -> Contest:
    """Decide whether the new forecaster replaces the old one: not if it scores worse, nor if nothing can be told.

    Args:
        rows: audit rows; each counts one over its sampling probability.
        before: the old one's answers; what is none counts as uniform.
        after: the new one's.
        settings: by which score, and on how many rows at least.
        seed: of the bootstrap.
    """
    if len(rows) < settings.fewest_rows:
        return Contest(
            settings.score,
            len(rows),
            None,
            None,
            None,
            False,
            f"there are {len(rows)} audit rows, and contest.fewest_rows is {settings.fewest_rows}: nothing can be told",
        )
    old, new = scored_rows(rows, before), scored_rows(rows, after)
    measure = _SCORES[settings.score]
    scores = np.array([measure(each.probabilities, each.truth) for each in (old, new)])
    weights = old.weights
    first, second = (float(np.average(each, weights=weights)) for each in scores)
    drawn = np.random.default_rng(seed).integers(len(rows), size=(_RESAMPLES, len(rows)))
    changes = np.average((scores[1] - scores[0])[drawn], axis=1, weights=weights[drawn])
    low, high = (float(bound) for bound in np.quantile(changes, (0.025, 0.975)))
    accepted = second <= first
    verdict = (
        f"{settings.score} on {len(rows)} audit rows: {first:.4f} before, {second:.4f} after "
        f"(change {second - first:+.4f}, 95 % {low:+.4f} to {high:+.4f})"
    )
    return Contest(settings.score, len(rows), first, second, (low, high), accepted, verdict)
