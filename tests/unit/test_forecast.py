from __future__ import annotations

import math

import pytest

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.forecast import UNIFORM, Forecast, Observation

CERTAIN = Forecast((0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0))
SPREAD = Forecast((0.0, 0.0, 0.0, 0.5, 0.25, 0.25, 0.0, 0.0))
FLAT = Forecast(UNIFORM)


@pytest.mark.parametrize(
    ("probabilities", "says"),
    [
        ((1.0,), "got 1"),
        ((0.125,) * 9, "got 9"),
        ((1.5, -0.5, 0, 0, 0, 0, 0, 0), "lie in"),
        ((math.nan, 1, 0, 0, 0, 0, 0, 0), "lie in"),
        ((math.inf, 0, 0, 0, 0, 0, 0, 0), "lie in"),
        ((0.2,) * 8, "sum to 1"),
        ((0.0,) * 8, "sum to 1"),
    ],
)
def test_what_is_no_distribution_is_refused(probabilities: tuple[float, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Forecast(probabilities)


def test_weights_are_normalised_and_their_sum_is_kept() -> None:
    forecast = Forecast.from_weights([0, 0, 0, 2, 1, 1, 0, 0], source="model")
    assert forecast.probabilities == SPREAD.probabilities
    assert (forecast.raw_sum, forecast.source) == (4.0, "model")


@pytest.mark.parametrize(
    "weights",
    [
        [0.0] * 8,
        [-1.0] + [1.0] * 7,
        [math.nan] * 8,
        [math.inf] + [0.0] * 7,
        [math.inf, -math.inf] + [0.0] * 6,
        [1e308] * 8,
        [],
        [1.0] * 7,
    ],
    ids="zero negative nan inf both-infinities overflow none seven".split(),
)
def test_weights_that_give_no_distribution_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights|probabilities"):
        Forecast.from_weights(weights)


def test_the_predicted_bin_is_the_most_probable_and_the_slower_of_equals() -> None:
    assert (CERTAIN.predicted_bin, SPREAD.predicted_bin, FLAT.predicted_bin) == (5, 4, 1)
    assert Forecast((0, 0, 0, 0.5, 0, 0.5, 0, 0)).predicted_bin == 4


def test_the_three_confidences() -> None:
    assert [SPREAD.confidence("max_prob"), SPREAD.confidence("top2_margin")] == [0.5, 0.25]
    assert SPREAD.confidence("neg_entropy") == pytest.approx(1 - 1.5 / 3)
    for kind in ("max_prob", "neg_entropy", "top2_margin"):
        assert CERTAIN.confidence(kind) == 1.0
    assert FLAT.confidence("neg_entropy") == pytest.approx(0.0)
    assert (FLAT.confidence("top2_margin"), FLAT.confidence("max_prob")) == (0.0, 0.125)


def test_an_unknown_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match="top2_margin"):
        SPREAD.confidence("entropy")  # type: ignore[arg-type]


def test_expectations_by_hand() -> None:
    assert CERTAIN.expected_log2() == pytest.approx(0.25)
    assert SPREAD.expected_log2() == pytest.approx(0.5 * -0.25 + 0.25 * 0.25 + 0.25 * 0.75)
    assert SPREAD.expected_bin() == 0.5 * 4 + 0.25 * 5 + 0.25 * 6
    assert FLAT.expected_log2() == pytest.approx(0.0)


def test_exceedance_spreads_mass_within_a_bin() -> None:
    assert CERTAIN.exceedance(0.0) == pytest.approx(1.0)
    assert CERTAIN.exceedance(0.25) == pytest.approx(0.5)
    assert CERTAIN.exceedance(0.5) == pytest.approx(0.0)
    assert SPREAD.exceedance(0.0) == pytest.approx(0.5)
    assert FLAT.exceedance(-4.0) == pytest.approx(1.0) and FLAT.exceedance(4.0) == pytest.approx(0.0)
    assert FLAT.exceedance(3.0) == pytest.approx(0.125 / 2)  # half of the open end, which reaches to 4


@pytest.mark.parametrize("forecast", [CERTAIN, SPREAD, FLAT])
@pytest.mark.parametrize("level", [0.01, 0.3, 0.5, 0.8, 0.99])
def test_the_quantile_is_the_inverse_of_exceedance(forecast: Forecast, level: float) -> None:
    assert forecast.exceedance(forecast.quantile(level)) == pytest.approx(1.0 - level)


def test_a_quantile_never_leaves_the_bins_with_mass() -> None:
    short = Forecast((1.0 - 5e-7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert short.quantile(1.0 - 1e-9) == BINS.log2_edges[0]


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_level_lies_inside_the_unit_interval(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        SPREAD.quantile(level)


def test_an_observation_is_scored_relative_to_its_anchor() -> None:
    observation = Observation("k", "code", 4.0, anchor_speedup=2.0)
    assert (observation.log2_speedup, observation.relative_speedup) == (2.0, 2.0)
