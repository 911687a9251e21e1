"""How well failure was foreseen: scores of P(ok) against how kernels fared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_forecasters_plugin.calibration.ranking import ranks

__all__ = ["Foresight", "foresight"]


@dataclass(frozen=True)
class Foresight:
    """Scores of the probability that a candidate builds, runs and is right.

    Attributes:
        n: measured kernels with such a forecast.
        failed: how many of them failed.
        brier: mean of (p - 1[ok])^2, in [0, 1]; 0 is perfect (not halved: there are two outcomes).
        brier_skill: 1 - Brier / Brier of the set's own share of failures; ``None`` where all fared alike.
        auc: probability that a kernel that ran right has the larger P(ok) of two, equal ones counting half;
            0.5 is chance; ``None`` where all fared alike.
    """

    n: int
    failed: int
    brier: float
    brier_skill: float | None
    auc: float | None


def foresight(p_ok: Sequence[float], ok: Sequence[bool]) -> Foresight | None:
    """The scores; ``None`` without a kernel.

    Args:
        p_ok: forecast for each kernel.
        ok: whether it ran right.
    """
    if not len(p_ok):
        return None
    chance, truth = np.array(p_ok, dtype=np.float64), np.array(ok, dtype=bool)
    brier = float(((chance - truth) ** 2).mean())
    right = int(truth.sum())
    wrong = len(truth) - right
    if not right or not wrong:
        return Foresight(len(truth), wrong, brier, None, None)
    share = right / len(truth)
    # Mann-Whitney: the rank sum of those that ran right, less its least possible value.
    above = float(ranks(chance)[truth].sum()) - right * (right + 1) / 2
    return Foresight(len(truth), wrong, brier, 1.0 - brier / (share * (1.0 - share)), above / (right * wrong))
