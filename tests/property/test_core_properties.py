"""What the core promises for anything that may come."""

from __future__ import annotations

import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers import by_number, candidate, failed, measured, open_gate, surrogate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.candidate import Candidate, decode_source, normalise_source, source_key
from gpu_forecasters_plugin.config import DeferralConfig, MetricConfig
from gpu_forecasters_plugin.decision import Action, Outcome, Reason
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.measuring import MetricReader
from gpu_forecasters_plugin.policies import Member, PoolState, TopFraction, quota

unit = st.floats(0.0, 1.0)
weights = st.lists(st.floats(0.0, 1e300), min_size=8, max_size=8).filter(lambda w: sum(w) > 0)
members = st.lists(
    st.tuples(st.text(min_size=1, max_size=4), st.none() | st.floats(-5, 5), unit, st.booleans()),
    unique_by=lambda row: row[0],
    max_size=24,
).map(
    lambda rows: [
        Member(key) if score is None else Member(key, score, sure, odd) for key, score, sure, odd in rows
    ]
)
deferrals = st.builds(
    DeferralConfig,
    threshold=st.none() | unit,
    mode=st.sampled_from(["within_quota", "on_top"]),
    share=unit,
    max_fraction=unit,
)
policies = st.builds(TopFraction, st.floats(0.01, 1.0), unit, deferrals)
states = st.builds(
    PoolState,
    st.integers(0, 5),
    st.integers(0, 5),
    st.none() | st.integers(0, 12),
    unit,
    st.booleans(),
)


# -- selection ----------------------------------------------------------------------------------------------------


@given(members, policies, states, st.randoms(use_true_random=False))
def test_selection_ignores_the_order_of_its_input(
    pool: list[Member], policy: TopFraction, state: PoolState, chance: random.Random
) -> None:
    shuffled = list(pool)
    chance.shuffle(shuffled)
    assert policy.select(shuffled, state) == policy.select(pool, state)


@given(members, policies, states)
def test_selection_chooses_for_every_member_and_never_overspends(
    pool: list[Member], policy: TopFraction, state: PoolState
) -> None:
    choices = policy.select(pool, state)
    assert set(choices) == {member.key for member in pool}
    wanted = [choice for choice in choices.values() if choice.action is Action.MEASURE]
    slots = quota(len(pool), policy.keep_fraction)
    on_top = math.floor(policy.deferral.max_fraction * len(pool)) if policy.deferral.mode == "on_top" else 0
    assert len(wanted) <= slots + on_top
    if state.remaining is not None:
        assert len(wanted) <= state.remaining
    if pool and state.remaining != 0:
        assert len(wanted) >= min(slots, len(pool) if state.remaining is None else state.remaining)


@given(members, policies, states)
def test_sampling_probabilities_are_probabilities(
    pool: list[Member], policy: TopFraction, state: PoolState
) -> None:
    for choice in policy.select(pool, state).values():
        if choice.reason is Reason.AUDIT:
            assert choice.sampling_probability is not None
        if choice.sampling_probability is not None:
            assert choice.action is Action.MEASURE and 0.0 < choice.sampling_probability <= 1.0


# -- gate -----------------------------------------------------------------------------------------------------------


def sometimes_silent(query: Query) -> Any:
    forecast = by_number(query)
    silent = int(query.candidate_key, 16) % 5 == 0
    return ForecastFailure(FailureKind.TIMEOUT) if silent else forecast


def play(rounds: list[list[int]], seed: int, ranking: str, folder: Path, empty: Path) -> list[Any]:
    """Decisions by candidate number; results depend on the candidate alone."""
    path = folder / "ledger.sqlite3"
    path.write_bytes(empty.read_bytes())
    config = surrogate(seed=seed, ranking=ranking, anchor="incumbent", budget={"measurements": 9})
    gate = open_gate(Ledger(path), ScriptedForecaster(sometimes_silent), config=config)
    told: list[Any] = []
    for numbers in rounds:
        decisions = gate.ask([candidate(number) for number in numbers])
        told.append(
            sorted((d.candidate_id, d.action, d.reason, d.score, d.sampling_probability) for d in decisions)
        )
        for decision in decisions:
            number = int(decision.candidate_id[1:])
            if decision.measure and gate.start(decision.id):
                result = failed(Outcome.INCORRECT) if number % 4 == 3 else measured(1.0 + number % 7)
                gate.tell(decision.id, result)
    return told


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=12), min_size=3, max_size=4),
    st.integers(0, 3),
    st.sampled_from(["expected_log2", "thompson", "p_better", "random"]),
    st.randoms(use_true_random=False),
)
def test_the_same_seed_decides_the_same_whatever_came_first(
    empty_ledger: Path, rounds: list[list[int]], seed: int, ranking: str, chance: random.Random
) -> None:
    shuffled = [chance.sample(numbers, len(numbers)) for numbers in rounds]
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        first = play(rounds, seed, ranking, Path(one), empty_ledger)
        assert play(shuffled, seed, ranking, Path(two), empty_ledger) == first


# -- sources --------------------------------------------------------------------------------------------------------

FRAGMENTS = [
    "x = 1\n", "if x:\n    y = 2\n", "# c\n", "// c\n", "/* c */", '"', "'", '"""', "'''", "\\\n", "\\", "(", ")",
    "#define A 1\n", "__global__ void f() {\n", "};\n", "\t", "\r\n", "\r", "\x0c", "\x00", "\x01", "\ufeff", "\ud800",
    "é漢", "f'{x!r:{y}}'", "0777", "lambda: (yield)", "async def f(): pass\n", "#include <x>\n", "a // b\n", "\u2028",
]  # fmt: skip
sources = st.text(max_size=60) | st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@settings(max_examples=400)
@given(sources)
def test_any_text_has_an_identity_that_line_ends_and_marks_do_not_change(text: str) -> None:
    text = text.lstrip("\ufeff")
    key = source_key(text)
    unix = text.replace("\r\n", "\n").replace("\r", "\n")
    assert source_key(unix) == source_key("\ufeff" + unix) == source_key(unix.replace("\n", "\r\n")) == key
    assert Candidate("c", text).key == key


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(FRAGMENTS[:2] + ["def f(a, b):\n    return a // b\n", "z = {1: '#'}\n"]), min_size=1
    )
)
def test_comments_and_blank_lines_never_change_a_python_source(lines: list[str]) -> None:
    text = "".join(lines)
    noted = text.replace("\n", "  # note\n\n")
    assert source_key(noted) == source_key(text)


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            ["int a = 1;\n", "#define N 4\n", "x[i] = y / z;\n", "__global__ void f() {\n", "}\n"]
        )
    )
)
def test_normalised_c_stays_as_it_is(lines: list[str]) -> None:
    once = normalise_source("__global__ void k(\n" + "".join(lines))
    assert (
        normalise_source(once.replace("\x00", "\n")).replace("\x00", "").split()
        == once.replace("\x00", " ").split()
    )


@given(st.binary(max_size=80))
def test_decoding_loses_no_byte(data: bytes) -> None:
    text = decode_source(data)
    assert text.encode("utf-8", "surrogateescape") == data.removeprefix(b"\xef\xbb\xbf")
    assert len(source_key(text)) == 32


# -- forecasts and measurements -------------------------------------------------------------------------------------


@given(weights)
def test_normalised_weights_sum_to_one_and_keep_their_shape(values: list[float]) -> None:
    forecast = Forecast.from_weights(values)
    assert math.fsum(forecast.probabilities) == pytest.approx(1.0)
    assert values[forecast.predicted_bin - 1] == pytest.approx(max(values))
    for kind in ("max_prob", "neg_entropy", "top2_margin"):
        assert 0.0 <= forecast.confidence(kind) <= 1.0
    assert BINS.log2_midpoints[0] <= forecast.expected_log2() + 1e-9
    assert forecast.expected_log2() <= BINS.log2_midpoints[-1] + 1e-9


@given(st.lists(st.floats(), max_size=10))
def test_any_weights_give_a_forecast_or_a_value_error(values: list[float]) -> None:
    try:
        forecast = Forecast.from_weights(values)
    except ValueError:
        return
    assert len(values) == N_BINS and math.fsum(forecast.probabilities) == pytest.approx(1.0)


@given(weights, st.floats(-6, 6), st.floats(-6, 6))
def test_exceedance_falls_with_its_threshold(values: list[float], one: float, two: float) -> None:
    forecast = Forecast.from_weights(values)
    low, high = sorted((one, two))
    assert 1.0 >= forecast.exceedance(low) >= forecast.exceedance(high) >= 0.0


@given(weights, st.floats(1e-6, 1 - 1e-6))
def test_quantiles_lie_among_the_bins_with_mass(values: list[float], level: float) -> None:
    forecast = Forecast.from_weights(values)
    quantile = forecast.quantile(level)
    assert forecast.exceedance(quantile) == pytest.approx(1.0 - level, abs=1e-6)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["combined_score", "speedup", "time_us", "runtime_ms", "correct", "error", "outcome", "timeout"]
)


@settings(max_examples=300)
@given(st.dictionaries(names, anything, max_size=4) | anything, st.none() | st.floats(1e-3, 1e3))
def test_whatever_an_evaluator_returns_becomes_one_typed_outcome(raw: Any, reference: float | None) -> None:
    measurement = MetricReader(MetricConfig(), reference).read(raw, 1.0)
    if measurement.outcome is Outcome.OK:
        assert isinstance(raw, dict) and 0 < (measurement.speedup or 0) <= 1000.0
        assert raw.get("correct", True) not in (False, None) and not isinstance(raw.get("error"), str)
    else:
        assert measurement.error
