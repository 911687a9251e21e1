"""What every forecaster promises, on anything that may come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters import (
    ClimatologyForecaster,
    Forecaster,
    InvertedForecaster,
    LearnedForecaster,
    MixtureForecaster,
    OracleForecaster,
    RandomForecaster,
    RecalibratedForecaster,
)
from gpu_forecasters_plugin.forecasters.learned.features import extract_features

FRAGMENTS = [
    "BLOCK = 128\n", "#define TILE 16\n", "for i in range(n):\n    x = tl.load(p)\n", "__shared__ float s[32];",
    "num_warps=4, ", '"""', "'''", "// c\n", "/*", "# c\n", "kernel[(1,)](x)", "1 << 40", "é漢", "import torch\n",
    "\x00", "\ud800", "0x", "1e999", "def f(:\n", "\\", "\n",
]  # fmt: skip
sources = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
speedups = st.floats(min_value=1e-6, max_value=1e6)
measurements = st.lists(st.tuples(sources, speedups), max_size=8)
KINDS = ["climatology", "learned", "mixture", "random", "oracle", "inverted", "recalibrated"]


def key(code: str) -> str:
    return source_key(code.encode("utf-8", "surrogatepass").decode("latin-1"))


def build(kind: str, codes: Sequence[str]) -> Forecaster:
    truth = {key(code): 1.0 + index / 7 for index, code in enumerate(codes)}
    match kind:
        case "climatology":
            return ClimatologyForecaster()
        case "learned":
            return LearnedForecaster()
        case "mixture":
            return MixtureForecaster([LearnedForecaster(), RandomForecaster(1)])
        case "random":
            return RandomForecaster(1)
        case "oracle":
            return OracleForecaster(truth)
        case "recalibrated":
            return RecalibratedForecaster(RandomForecaster(1))
    return InvertedForecaster(LearnedForecaster())


def query(code: str, reference: str, anchor_speedup: float) -> Query:
    return Query(key(code), code, reference, reference, anchor_speedup)


def same(one: ForecastOutcome, two: ForecastOutcome) -> bool:
    if isinstance(one, ForecastFailure) or isinstance(two, ForecastFailure):
        return one == two
    return one.probabilities == pytest.approx(two.probabilities, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(measurements, st.lists(sources, min_size=1, max_size=5, unique=True), sources, speedups)
def test_every_query_gets_a_distribution_and_order_does_not_matter(
    kind: str, measured: list[tuple[str, float]], codes: list[str], reference: str, anchor_speedup: float
) -> None:
    one, two = build(kind, codes), build(kind, codes)
    rows = [Observation(key(code), code, speedup, 0) for code, speedup in measured]
    queries = [query(code, reference, anchor_speedup) for code in codes]
    for forecaster in (one, two):
        forecaster.observe(rows)
    outcomes, scrambled = one.forecast(queries), two.forecast(queries[::-1])[::-1]
    assert len(outcomes) == len(queries)
    for outcome, other in zip(outcomes, scrambled, strict=True):
        assert isinstance(outcome, Forecast)
        assert math.fsum(outcome.probabilities) == pytest.approx(1.0)
        assert min(outcome.probabilities) >= 0.0
        assert same(outcome, other)


@settings(max_examples=150)
@given(sources)
def test_any_text_has_finite_features(code: str) -> None:
    features = extract_features(code)
    assert all(math.isfinite(value) for value in features.structure)
    assert all(math.isfinite(value) for value in features.bindings.values())
    assert all(math.isfinite(value) for value in features.shingles)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8), speedups), max_size=12))
def test_mixture_weights_stay_bounded(rows: list[tuple[list[float], float]]) -> None:
    mixture = MixtureForecaster([RandomForecaster(0)])
    observations = []
    for index, (weights, speedup) in enumerate(rows):
        total = sum(weights)
        p = tuple(w / total for w in weights) if total > 1e-3 else (0.125,) * 8
        forecast = Forecast(p, components={"random": p, "climatology": (0.125,) * 8})
        observations.append(Observation(str(index), "x", speedup, 0, forecast))
    mixture.observe(observations)
    assert all(0.0 <= weight <= 3.0 for weight in mixture.weights.values())


@settings(max_examples=25)
@given(st.lists(st.tuples(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8), speedups), max_size=12))
def test_recalibrated_forecasts_stay_distributions(rows: list[tuple[list[float], float]]) -> None:
    forecaster = RecalibratedForecaster(RandomForecaster(0))
    observations = []
    for index, (weights, speedup) in enumerate(rows):
        total = sum(weights)
        p = tuple(w / total for w in weights) if total > 1e-3 else (1.0, *[0.0] * 7)
        forecast = Forecast(p, components={"random": p})
        observations.append(Observation(str(index), "x", speedup, index // 3, forecast))
    forecaster.observe(observations)
    (outcome,) = forecaster.forecast([query("x", "y", 1.0)])
    assert isinstance(outcome, Forecast) and outcome.components["random"]
    assert sum(forecaster.weights.values()) == pytest.approx(1.0)


@settings(max_examples=60)
@given(st.lists(st.floats(-3.9, 3.9), min_size=2, max_size=12, unique=True), st.floats(0.55, 0.99))
def test_the_oracle_never_ranks_a_pair_wrongly(values: list[float], sharpness: float) -> None:
    truth: dict[str, float | None] = {str(index): 2.0**value for index, value in enumerate(values)}
    outcomes = OracleForecaster(truth, sharpness).forecast([Query(name, "", "", "") for name in truth])
    scored = sorted(
        (value, outcome.expected_log2())
        for value, outcome in zip(values, outcomes, strict=True)
        if isinstance(outcome, Forecast)
    )
    for (slow, low), (fast, high) in zip(scored, scored[1:], strict=False):
        if fast - slow > 1e-6:
            assert low < high
