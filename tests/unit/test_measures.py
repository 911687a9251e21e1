"""Measures against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest

from gpu_forecasters_plugin.bins import BINS, PUBLISHED_LABELS
from gpu_forecasters_plugin.calibration.bootstrap import bootstrap
from gpu_forecasters_plugin.calibration.ceiling import noise_ceiling, soft_truth, softened, spread_ceiling
from gpu_forecasters_plugin.calibration.discovery import discovery
from gpu_forecasters_plugin.calibration.measures import confusion, measure, measure_softly
from gpu_forecasters_plugin.calibration.ranking import best_of_top, recovery_curve, spearman, top_k
from gpu_forecasters_plugin.calibration.reliability import (
    confidence_groups,
    ece,
    monotonicity,
    reliability_buckets,
)
from gpu_forecasters_plugin.calibration.rows import ForecastRows, exceedance, truth_bins
from gpu_forecasters_plugin.calibration.selective import aurc, risk_coverage
from gpu_forecasters_plugin.forecast import UNIFORM, Forecast

SKEWED = [0.0, 0.0, 0.0, 0.2, 0.5, 0.3, 0.0, 0.0]


def certain(index: int) -> list[float]:
    return [1.0 if place == index - 1 else 0.0 for place in range(8)]


def surely(index: int, confidence: float) -> list[float]:
    """That confidence in a bin, the rest in the next one."""
    row = [0.0] * 8
    row[index - 1], row[index % 8] = confidence, 1.0 - confidence
    return row


def test_scores_of_one_forecast() -> None:
    found = measure(ForecastRows.of([SKEWED], [1.2]))
    assert found.exact == found.within_one == 1.0
    assert found.brier == pytest.approx((0.2**2 + 0.5**2 + 0.3**2) / 2)
    assert found.crps == pytest.approx((0.2**2 + 0.3**2) / 7)
    assert found.nll == pytest.approx(math.log(2))
    expected = 0.2 * -0.25 + 0.5 * 0.25 + 0.3 * 0.75
    assert found.mean_abs_log2_error == pytest.approx(abs(math.log2(1.2) - expected))


def test_certainty_in_the_wrong_bin_costs_the_most_that_each_score_has() -> None:
    found = measure(ForecastRows.of([certain(8)], [0.1]))
    assert (found.brier, found.crps, found.within_one) == (1.0, 1.0, 0.0)
    assert found.nll == pytest.approx(-math.log(1e-12))


def test_skill_compares_with_the_sets_own_frequencies() -> None:
    rows = ForecastRows.of([certain(5), certain(4)], [1.2, 0.9])
    assert measure(rows).brier_skill == 1.0
    constant = [0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    same = measure(ForecastRows.of([constant, constant], [1.2, 0.9]))
    assert (same.brier, same.brier_skill, same.crps_skill, same.nll_skill) == (0.25, 0.0, 0.0, 0.0)


def test_confidence_one_is_in_the_last_bucket_and_an_eighth_in_the_second() -> None:
    rows = ForecastRows.of([certain(5), UNIFORM], [1.2, 1.2])
    first, last = reliability_buckets(rows)
    assert (first.low, first.confidence, first.accuracy) == (0.1, 0.125, 0.0)
    assert (last.low, last.high, last.confidence, last.accuracy) == (0.9, 1.0, 1.0, 1.0)
    assert ece(rows) == pytest.approx(0.125 / 2)


def test_weights_count_as_that_many_rows() -> None:
    forecasts, speedups = [SKEWED, certain(3), UNIFORM], [1.2, 0.1, 3.0]
    weighted = ForecastRows.of(forecasts, speedups, weights=[3, 1, 1])
    repeated = ForecastRows.of([SKEWED] * 2 + forecasts, [1.2] * 2 + speedups)
    one, other = measure(weighted), measure(repeated)
    for name in ("exact", "brier_skill", "crps", "nll", "ece", "mean_abs_log2_error"):
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name


def test_risk_coverage_trusts_the_surest_first() -> None:
    rows = ForecastRows.of([surely(5, 0.6), surely(5, 0.9), surely(5, 0.7)], [1.2, 1.2, 9.0])
    curve = risk_coverage(rows)
    assert curve.coverage.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3])
    assert aurc(rows) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)


def test_equal_confidences_trust_their_mean_risk() -> None:
    rows = ForecastRows.of([SKEWED] * 4, [1.2, 9.0, 9.0, 9.0])
    assert risk_coverage(rows).risk.tolist() == pytest.approx([0.75] * 4)


@pytest.mark.parametrize(("speedups", "expected"), [([0.1, 1.2], 1.0), ([1.2, 0.1], 0.0)])
def test_monotonicity_is_the_share_of_steps_at_which_errors_fall(
    speedups: Sequence[float], expected: float
) -> None:
    rows = ForecastRows.of([surely(5, 0.6), surely(5, 0.9)], speedups)
    assert monotonicity(confidence_groups(rows)) == expected


def test_equal_confidences_are_one_group() -> None:
    groups = confidence_groups(ForecastRows.of([SKEWED] * 9 + [certain(5)], [1.2] * 10))
    assert [group.n for group in groups] == [9, 1]
    assert monotonicity(confidence_groups(ForecastRows.of([SKEWED] * 9, [1.2] * 9))) is None


def test_spearman_shares_ranks_among_ties() -> None:
    one, other = np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(one, other) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman(np.ones(4), other) is None


@pytest.mark.parametrize(("count", "expected"), [(1, 7 / 3), (2, 10 / 3), (3, 4.0)])
def test_ties_everywhere_in_a_ranking_are_broken_by_chance(count: int, expected: float) -> None:
    assert best_of_top(np.zeros(3), np.array([1.0, 4.0, 2.0]), count) == pytest.approx(expected)


def test_top_k_is_made_within_each_task() -> None:
    rows = ForecastRows.of(
        [certain(7), certain(3), certain(3), certain(7), certain(8)],
        [4.0, 1.0, 8.0, 2.0, 99.0],
        tasks=["a", "a", "b", "b", "alone"],
    )
    assert top_k(rows, (50,)) == {"50": pytest.approx((1.0 + 0.25) / 2)}
    curve = recovery_curve(rows)
    assert curve.tasks == 2 and curve.measured[-1] == 1.0
    assert curve.forecast[-1] == curve.random[-1] == pytest.approx(1.0)
    assert curve.random[0] == pytest.approx(((1 + 0.25) / 2 + (1 + 0.25) / 2) / 2)


def test_discoveries_by_hand() -> None:
    rows = ForecastRows.of([certain(7), certain(7), certain(3), certain(3)], [3.0, 1.0, 1.5, 1.0])
    found = discovery(rows, 1.5)
    assert (found.found, found.called, found.precision, found.recall) == (2, 2, 0.5, 0.5)
    assert found.average_precision == pytest.approx(0.5 * 0.5 + 0.5 * 0.5)
    none = discovery(rows, 50.0)
    assert (none.precision, none.recall, none.average_precision) == (None, None, None)


def test_exceedance_is_that_of_a_forecast() -> None:
    for log2 in (-9.0, -0.6, 0.0, math.log2(1.2), 2.5, 9.0):
        for row in (SKEWED, list(UNIFORM), certain(8)):
            assert exceedance(np.array([row]), log2)[0] == pytest.approx(
                Forecast(tuple(row)).exceedance(log2)
            )


def test_truth_is_binned_as_the_scheme_says() -> None:
    for scheme in (BINS, PUBLISHED_LABELS):
        values = [0.1, 0.25, 0.7, 1.0, 1.0001, 1.2, 2.0, 4.0, 9.0]
        assert truth_bins(np.array(values), scheme).tolist() == [scheme.index(v) - 1 for v in values]
    rows = [ForecastRows.of([certain(5)], [1.2], bins=scheme) for scheme in (BINS, PUBLISHED_LABELS)]
    assert [measure(row).exact for row in rows] == [1.0, 0.0]
    assert measure(rows[0]).mean_abs_log2_error == measure(rows[1]).mean_abs_log2_error


def test_a_second_measurement_at_an_edge_sets_the_ceiling() -> None:
    found = noise_ceiling([[1.0, 1.01], [2.0, 2.0], [5.0]])
    assert found is not None
    assert (found.n, found.exact, found.within_one, found.source) == (2, 0.5, 1.0, "repeats")
    assert found.median_abs_log2_difference == pytest.approx(math.log2(1.01) / 2)
    assert noise_ceiling([[5.0], []]) is None


def test_truth_is_soft_near_an_edge_alone() -> None:
    truth = soft_truth(np.array([0.0, 0.25]), 0.02)
    assert truth[0].tolist() == pytest.approx([0, 0, 0, 0.5, 0.5, 0, 0, 0])
    assert truth[1].tolist() == pytest.approx(certain(5))
    found = spread_ceiling(np.array([0.0, 0.25]), np.full(2, 0.02))
    assert found is not None and found.exact == pytest.approx(0.75)
    rows = ForecastRows.of([certain(5)], [1.0])
    assert measure(rows).exact == 0.0 and measure_softly(rows, 0.02)["exact"] == pytest.approx(0.5)
    assert confusion(softened(rows, 0.02))[3:5, 4].tolist() == pytest.approx([0.5, 0.5])


def test_no_rows_leave_everything_undefined() -> None:
    found = asdict(measure(ForecastRows.of([], [])))
    assert found.pop("n") == found.pop("n_forecast") == 0
    assert set(found.pop("top_k").values()) == {None}
    assert set(found.values()) == {None}
    assert (
        confusion(ForecastRows.of([], [])).sum() == 0 and recovery_curve(ForecastRows.of([], [])).tasks == 0
    )


def test_one_row_has_scores_but_no_skill_and_no_ranking() -> None:
    found = measure(ForecastRows.of([SKEWED], [1.2]))
    assert found.ece == pytest.approx(0.5) and found.aurc == 0.0
    undefined = (found.brier_skill, found.spearman, found.monotonicity, found.top_k["1"])
    assert undefined == (None, None, None, None)


def test_rows_all_in_one_bin_have_no_skill() -> None:
    found = measure(ForecastRows.of([SKEWED, UNIFORM, certain(4)], [1.2, 1.3, 1.4]))
    assert (found.brier_skill, found.crps_skill, found.nll_skill) == (None, None, None)
    assert found.exact == pytest.approx(1 / 3)


def test_identical_forecasts_rank_nothing_and_recover_what_chance_does() -> None:
    rows = ForecastRows.of([SKEWED] * 8, [0.5, 1, 2, 4, 0.6, 1.1, 2.2, 4.4])
    found = measure(rows)
    assert found.spearman is None and found.monotonicity is None
    curve = recovery_curve(rows)
    assert curve.forecast.tolist() == pytest.approx(curve.random.tolist())


def test_a_missing_forecast_counts_as_uniform_and_is_counted() -> None:
    rows = ForecastRows.of([None, certain(5)], [1.2, 1.2])
    found = measure(rows)
    assert (found.n, found.n_forecast) == (2, 1)
    assert found.nll == pytest.approx(math.log(8) / 2)


NAN = float("nan")


@pytest.mark.parametrize(
    ("forecasts", "speedups", "weights", "problem"),
    [
        ([SKEWED], [NAN], None, "speed-ups are positive finite numbers"),
        ([SKEWED], [0.0], None, "speed-ups are positive finite numbers"),
        ([[NAN] * 8], [1.0], None, "sum to 1"),
        ([[0.5] * 8], [1.0], None, "sum to 1"),
        ([[1.0]], [1.0], None, "shape"),
        ([SKEWED], [1.0, 2.0], None, "shape"),
        ([SKEWED], [1.0], [NAN], "weights are finite"),
        ([SKEWED], [1.0], [0.0], "weights are finite"),
    ],
)
def test_what_is_no_number_is_refused_at_the_door(
    forecasts: list[list[float]], speedups: list[float], weights: list[float] | None, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ForecastRows.of(forecasts, speedups, weights=weights)


def _exact(rows: ForecastRows) -> dict[str, float | None]:
    return {"exact": float(rows.truth[:, 4].mean()), "never": None}


def test_intervals_are_those_of_the_binomial_and_repeat_with_their_seed() -> None:
    rows = ForecastRows.of([certain(5)] * 400, [1.2, 0.9] * 200)
    found = bootstrap(rows, _exact, resamples=400, seed=3)
    assert found.unit == "row" and found.bounds["never"] is None
    bounds = found.bounds["exact"]
    assert bounds is not None
    assert bounds == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.01)
    assert bootstrap(rows, _exact, resamples=400, seed=3).bounds == found.bounds


def test_kernels_of_one_task_are_drawn_together() -> None:
    tasks = [str(row // 40) for row in range(400)]
    speedups = [1.2 if int(task) % 2 else 0.9 for task in tasks]
    found = bootstrap(ForecastRows.of([certain(5)] * 400, speedups, tasks=tasks), _exact, resamples=200)
    bounds = found.bounds["exact"]
    assert found.unit == "task" and bounds is not None
    assert bounds[1] - bounds[0] > 0.3  # ten tasks say as much as ten rows


def test_few_rows_have_no_interval() -> None:
    assert bootstrap(ForecastRows.of([SKEWED] * 9, [1.2] * 9), _exact).bounds == {
        "exact": None,
        "never": None,
    }
