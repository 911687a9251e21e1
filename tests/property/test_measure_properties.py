"""What holds of every measure, whatever the forecasts."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_forecasters_plugin.calibration.discovery import discoveries
from gpu_forecasters_plugin.calibration.measures import measure
from gpu_forecasters_plugin.calibration.ranking import recovery_curve
from gpu_forecasters_plugin.calibration.rows import Array, ForecastRows
from gpu_forecasters_plugin.calibration.scores import brier, crps, nll
from gpu_forecasters_plugin.calibration.selective import risk_coverage

weights = st.lists(st.floats(0, 1), min_size=8, max_size=8).filter(lambda row: sum(row) > 1e-6)
distributions = weights.map(lambda row: np.array(row) / sum(row))
rows_of = st.lists(
    st.tuples(
        st.one_of(st.none(), distributions), st.floats(1e-6, 1e6), st.floats(0.1, 10), st.sampled_from("ab")
    ),
    max_size=12,
)


def build(items: list[tuple[Array | None, float, float, str]]) -> ForecastRows:
    forecasts, speedups, counts, tasks = zip(*items, strict=True) if items else ((), (), (), ())
    return ForecastRows.of(
        [None if row is None else row.tolist() for row in forecasts], speedups, weights=counts, tasks=tasks
    )


@settings(max_examples=60)
@given(rows_of)
@example([(None, 1.0, 1.0, "b")] * 3 + [(np.eye(8)[7], 3.0, 1.0, "b")])  # chances that sum to a hair above 1
def test_measures_stay_in_their_bounds(items: list[tuple[Array | None, float, float, str]]) -> None:
    rows = build(items)
    found = measure(rows)
    shares = [
        found.exact, found.within_one, found.brier, found.crps, found.ece, found.aurc, found.monotonicity
    ]  # fmt: skip
    assert all(value is None or 0.0 <= value <= 1.0 for value in [*shares, *found.top_k.values()])
    assert all(
        value is None or value <= 1.0 for value in (found.brier_skill, found.crps_skill, found.nll_skill)
    )
    assert all(
        value is None or -1.0 <= value <= 1.0 for value in (found.spearman, found.spearman_within_tasks)
    )
    assert found.nll is None or 0.0 <= found.nll <= 27.7
    assert (found.exact is None) == (not items)
    assert ((risk_coverage(rows).risk >= -1e-12) & (risk_coverage(rows).risk <= 1 + 1e-12)).all()
    assert (np.diff(recovery_curve(rows).forecast) >= -1e-9).all()
    for each in discoveries(rows):
        rates = (each.precision, each.recall, each.average_precision)
        assert all(rate is None or -1e-12 <= rate <= 1 + 1e-12 for rate in rates)


@settings(max_examples=40)
@given(rows_of, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(
    items: list[tuple[Array | None, float, float, str]], chance: st.DataObject
) -> None:
    shuffled = items[:]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = asdict(measure(build(items))), asdict(measure(build(shuffled)))
    one |= {f"top {k}": value for k, value in one.pop("top_k").items()}
    other |= {f"top {k}": value for k, value in other.pop("top_k").items()}
    assert one == {name: pytest.approx(value, abs=1e-9) for name, value in other.items()}


@settings(max_examples=100)
@given(distributions, distributions)
def test_no_forecast_scores_better_in_expectation_than_the_true_distribution(
    true: Array, other: Array
) -> None:
    for score in (brier, crps, nll):
        honest, dishonest = score(true[None], true[None])[0], score(other[None], true[None])[0]
        assert honest <= dishonest + 1e-9
