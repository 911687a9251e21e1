"""All measures of a set of forecasts at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_forecasters_plugin.calibration.ceiling import softened
from gpu_forecasters_plugin.calibration.ranking import spearman, spearman_within_tasks, top_k
from gpu_forecasters_plugin.calibration.reliability import confidence_groups, ece, monotonicity
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import (
    brier,
    climatology,
    crps,
    exact,
    log2_error,
    nll,
    within_one,
)
from gpu_forecasters_plugin.calibration.selective import aurc

__all__ = ["Measures", "confusion", "measure", "measure_softly"]


@dataclass(frozen=True)
class Measures:
    """How good forecasts are; what cannot be told is ``None``, never 0.

    Attributes:
        n: rows that were measured.
        n_forecast: rows that have a forecast; others count as uniform.
        exact: share whose predicted bin was measured.
        within_one: share whose predicted bin was measured or is next to it.
        mean_abs_log2_error: of the expected log2 speed-up, in octaves.
        brier: half squared distance from the truth; lower is better, as for the next two.
        brier_skill: 1 - brier / that of the set's own bin frequencies: above 0 is better than a constant forecast.
        crps: ranked probability score, over 7.
        crps_skill: likewise.
        nll: negative natural log of the truth's probability.
        nll_skill: likewise.
        ece: expected calibration error.
        aurc: area under the risk-coverage curve.
        monotonicity: share of steps to a surer group at which the log2 error falls.
        spearman: rank correlation of expected with measured log2 speed-up, over all rows.
        spearman_within_tasks: mean of the same within each task.
        top_k: best speed-up in the top k per cent over the task's best, by k, mean over tasks.
    """

    n: int
    n_forecast: int
    exact: float | None
    within_one: float | None
    mean_abs_log2_error: float | None
    brier: float | None
    brier_skill: float | None
    crps: float | None
    crps_skill: float | None
    nll: float | None
    nll_skill: float | None
    ece: float | None
    aurc: float | None
    monotonicity: float | None
    spearman: float | None
    spearman_within_tasks: float | None
    top_k: Mapping[str, float | None]

    def flat(self) -> dict[str, float | None]:
        """Every number but the counts, by name: ``top_k_5`` and the like stand for the nested ones."""
        values: dict[str, Any] = asdict(self)
        del values["n"], values["n_forecast"]
        nested = values.pop("top_k")
        return values | {f"top_k_{k}": value for k, value in nested.items()}


def measure(rows: ForecastRows) -> Measures:
    """All measures of some rows."""
    return Measures(
        len(rows),
        int(rows.answered.sum()),
        _mean(exact(rows), rows),
        _mean(within_one(rows), rows),
        _mean(log2_error(rows), rows),
        *_with_skill(brier(rows.probabilities, rows.truth), brier, rows),
        *_with_skill(crps(rows.probabilities, rows.truth), crps, rows),
        *_with_skill(nll(rows.probabilities, rows.truth), nll, rows),
        ece(rows),
        aurc(rows),
        monotonicity(confidence_groups(rows)),
        spearman(rows.expected_log2, rows.log2_speedups),
        spearman_within_tasks(rows),
        top_k(rows),
    )


def measure_softly(rows: ForecastRows, log2_sd: Array | float) -> dict[str, float | None]:
    """Accuracy and proper scores in expectation over the measurement's spread.

    Args:
        rows: with whatever truth.
        log2_sd: standard deviation of a measured log2 speed-up; one for all, or shape (n,).
    """
    soft = softened(rows, log2_sd)
    return {
        "exact": _mean(exact(soft), soft),
        "within_one": _mean(within_one(soft), soft),
        "brier": _mean(brier(soft.probabilities, soft.truth), soft),
        "crps": _mean(crps(soft.probabilities, soft.truth), soft),
        "nll": _mean(nll(soft.probabilities, soft.truth), soft),
    }


def confusion(rows: ForecastRows) -> Array:
    """Summed truth by measured bin (row) and predicted bin (column), weights scaled to n; shape (8, 8)."""
    scaled = rows.weights * (len(rows) / rows.weights.sum()) if len(rows) else rows.weights
    predicted = np.eye(rows.truth.shape[1])[rows.predicted]
    found: Array = (rows.truth * scaled[:, None]).T @ predicted
    return found


def _mean(values: Array, rows: ForecastRows) -> float | None:
    return float(np.average(values, weights=rows.weights)) if len(values) else None


def _with_skill(values: Array, score: Any, rows: ForecastRows) -> tuple[float | None, float | None]:
    """A score's mean, and its skill; the latter undefined where bin frequencies are perfect."""
    mean = _mean(values, rows)
    if mean is None:
        return None, None
    usual = _mean(score(climatology(rows), rows.truth), rows) or 0.0
    return mean, 1.0 - mean / usual if usual > 1e-12 else None
