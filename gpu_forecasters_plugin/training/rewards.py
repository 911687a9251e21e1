"""What an answer is worth in reinforcement: pure functions of a forecast, or of its failure, and the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.calibration.scores import NLL_FLOOR, brier, crps, nll
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastOutcome

__all__ = [
    "INFRASTRUCTURE",
    "REWARDS",
    "RewardName",
    "calibration_reward",
    "correctness_reward",
    "reward",
]

RewardName = Literal["correctness", "correctness_brier", "correctness_crps", "correctness_log"]

REWARDS: tuple[RewardName, ...] = get_args(RewardName)

INFRASTRUCTURE = frozenset({FailureKind.TIMEOUT, FailureKind.RATE_LIMITED, FailureKind.UNREACHABLE})
"""Failures that say nothing about the answer: they are left out, neither rewarded nor punished."""


def correctness_reward(probabilities: Sequence[float], truth: Sequence[float]) -> float:
    """Probability that the predicted bin is the true one: 1[predicted = true] for a hard truth."""
    best = max(range(N_BINS), key=lambda place: (probabilities[place], -place))
    return float(truth[best])


def calibration_reward(name: RewardName, probabilities: Sequence[float], truth: Sequence[float]) -> float:
    """What a reward pays for beyond correctness, in [0, 1]; in expectation largest for the true distribution.

    ``correctness_brier``: 1 - Brier. ``correctness_crps``: 1 - CRPS. ``correctness_log``: 1 - NLL / ln 1e12, so that
    certainty in a wrong bin is worth what an unreadable answer is. ``correctness``: nothing.

    Args:
        name: which reward.
        probabilities: eight numbers that sum to 1.
        truth: probability of each bin being the true one; a single 1 for a hard truth.

    Raises:
        ValueError: no such reward.
    """
    p, q = np.array([probabilities], dtype=np.float64), np.array([truth], dtype=np.float64)
    match name:
        case "correctness":
            return 0.0
        case "correctness_brier":
            return 1.0 - float(brier(p, q)[0])
        case "correctness_crps":
            return 1.0 - float(crps(p, q)[0])
        case "correctness_log":
            return max(0.0, 1.0 + float(nll(p, q)[0]) / math.log(NLL_FLOOR))
    raise ValueError(f"unknown reward {name!r}; known: {', '.join(REWARDS)}")


def reward(name: RewardName, outcome: ForecastOutcome, truth: Sequence[float]) -> float | None:
    """What an answer earns, in [0, 2].

    Args:
        name: which reward.
        outcome: the forecast, or why there is none.
        truth: probability of each bin being the true one; shape (8,).

    Returns:
        0 for an answer that cannot be read; ``None`` where the infrastructure failed and nothing can be said.
    """
    if not isinstance(outcome, Forecast):
        return None if outcome.kind in INFRASTRUCTURE else 0.0
    earned = correctness_reward(outcome.probabilities, truth)
    return earned + calibration_reward(name, outcome.probabilities, truth)
