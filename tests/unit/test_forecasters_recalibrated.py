"""Recalibration mends what is off, and leaves alone what is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import by_number, candidate, measured, open_gate, peaked
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.config import load_surrogate_config, parse_surrogate_config
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters import (
    MixtureForecaster,
    RecalibratedForecaster,
    ScriptedForecaster,
)
from gpu_forecasters_plugin.forecasters.factory import build_forecaster, hedged
from gpu_forecasters_plugin.forecasters.recalibration import Recalibration, fit_recalibration
from gpu_forecasters_plugin.ledger import Ledger

Array = NDArray[np.float64]

POOL = 4
SPEEDUP = [2.0**midpoint for midpoint in BINS.log2_midpoints]
FREQUENCIES = np.array([0.04, 0.08, 0.16, 0.28, 0.24, 0.12, 0.05, 0.03])


def normalised(weights: Array) -> Array:
    found: Array = weights / weights.sum(axis=1, keepdims=True)
    return found


def beliefs(generator: np.random.Generator, count: int) -> Array:
    """What a calibrated forecaster says: hills of different places and widths."""
    centre = generator.choice(N_BINS, p=FREQUENCIES, size=count) + generator.normal(0.0, 0.8, count)
    width = np.exp(generator.normal(0.1, 0.35, count))
    return normalised(np.exp(-0.5 * ((np.arange(N_BINS) - centre[:, None]) / width[:, None]) ** 2) + 1e-3)


def one_up(beliefs: Array) -> Array:
    moved = np.roll(beliefs, 1, axis=1)
    moved[:, -1] += moved[:, 0]
    moved[:, 0] = 0.0
    return moved


FORECASTERS: dict[str, Any] = {
    "calibrated": lambda q, g: q,
    "uniform": lambda q, g: np.full_like(q, 1 / N_BINS),
    "overconfident": lambda q, g: normalised(q**2.5),
    "underconfident": lambda q, g: normalised(q**0.4),
    "shifted": lambda q, g: one_up(q),
    "random": lambda q, g: normalised(g.exponential(1.0, q.shape)),
    "inverted": lambda q, g: q[:, ::-1],
    "all in one bin": lambda q, g: np.eye(N_BINS)[q.argmax(axis=1)],
}


def data(kind: str, seed: int, count: int) -> tuple[Array, NDArray[np.intp]]:
    """What such a forecaster says of ``count`` candidates, and the bins that they turn out in."""
    generator = np.random.default_rng(seed)
    real = beliefs(generator, count)
    truth = (generator.random(count)[:, None] > real.cumsum(axis=1)).sum(axis=1).clip(0, N_BINS - 1)
    return FORECASTERS[kind](real, generator), truth


def rows(said: Array, truth: Sequence[int], pool: int = POOL) -> list[Observation]:
    """Measurements of candidates that the forecaster called ``inner`` said this of."""
    return [
        Observation(
            str(number),
            f"BLOCK = {number}\n",
            SPEEDUP[bin_index],
            number // pool,
            Forecast(raw := tuple(row / row.sum()), components={"inner": raw}),
        )
        for number, (row, bin_index) in enumerate(zip(said, truth, strict=True))
    ]


def recalibrated(said: Array | None = None) -> RecalibratedForecaster:
    """On top of a forecaster that says this, row by row, of the candidates called by the rows' numbers."""
    inner = ScriptedForecaster(lambda query: [*(said if said is not None else [])[int(query.candidate_key)]])
    inner.name = "inner"
    return RecalibratedForecaster(inner)


def queries(numbers: Sequence[int]) -> list[Query]:
    return [Query(str(number), f"BLOCK = {number}\n", "", "") for number in numbers]


def said_of(forecaster: RecalibratedForecaster, numbers: Sequence[int]) -> Array:
    outcomes = forecaster.forecast(queries(numbers))
    return np.array([outcome.probabilities for outcome in outcomes if isinstance(outcome, Forecast)])


def log_loss(said: Array, truth: NDArray[np.intp]) -> float:
    return float(-np.log(np.maximum(said[np.arange(len(truth)), truth], 1e-12)).mean())


def held_out_difference(kind: str, seed: int, learned: int, held_out: int = 150) -> float:
    """Log loss on rows that nothing was fitted on, recalibrated less as it was."""
    said, truth = data(kind, seed, learned + held_out)
    forecaster = recalibrated(said)
    forecaster.observe(rows(said[:learned], truth[:learned].tolist()))
    mended = said_of(forecaster, range(learned, learned + held_out))
    return log_loss(mended, truth[learned:]) - log_loss(said[learned:], truth[learned:])


@pytest.mark.parametrize("learned", [8, 32])
@pytest.mark.parametrize(
    ("kind", "at_most"),
    [
        ("calibrated", 0.01),
        ("uniform", 0.01),
        ("overconfident", -0.05),
        ("underconfident", -0.01),
        ("shifted", -0.25),
        ("random", -0.2),
        ("inverted", -1.0),
        ("all in one bin", -2.0),
    ],
)
def test_log_loss_on_held_out_rows_rises_by_no_more_than_noise_and_falls_where_it_can(
    kind: str, at_most: float, learned: int
) -> None:
    seeds = 40 if at_most > 0 else 10
    differences = [held_out_difference(kind, seed, learned) for seed in range(seeds)]
    assert np.mean(differences) < at_most


def test_what_selects_does_not_spoil_the_candidates_that_were_not_selected() -> None:
    """Of sixteen the three best by forecast and a random one are measured; scored are the others."""
    differences = []
    for seed in range(30):
        said, truth = data("calibrated", seed, 8 * 16)
        order = (said @ np.array(BINS.log2_midpoints)).reshape(8, 16).argsort(axis=1)
        chosen = np.concatenate([16 * pool + np.r_[order[pool, 0], order[pool, -3:]] for pool in range(8)])
        rest = np.setdiff1d(np.arange(len(said)), chosen)
        forecaster = recalibrated(said)
        forecaster.observe(rows(said[chosen], truth[chosen].tolist()))
        differences.append(
            log_loss(said_of(forecaster, rest.tolist()), truth[rest]) - log_loss(said[rest], truth[rest])
        )
    assert np.mean(differences) < 0.01


distributions = st.lists(st.floats(0.01, 1.0), min_size=N_BINS, max_size=N_BINS)


@settings(max_examples=25)
@given(st.lists(st.tuples(distributions, st.integers(0, N_BINS - 1)), min_size=1, max_size=8))
def test_whatever_comes_one_by_one_the_losses_rise_by_ln_2_in_sum_at_most(
    record: list[tuple[list[float], int]],
) -> None:
    said, truth = normalised(np.array([row for row, _ in record])), [bin_index for _, bin_index in record]
    history, forecaster = rows(said, truth, pool=1), recalibrated(said)
    before = after = 0.0
    for number, bin_index in enumerate(truth):
        forecaster.observe(history[:number])
        after -= math.log(said_of(forecaster, [number])[0, bin_index])
        before -= math.log(said[number, bin_index])
    assert after <= before + math.log(2.0) + 1e-9


@pytest.mark.parametrize(
    ("kind", "version", "at_least"),
    [("calibrated", "identity", 0.5), ("shifted", "bin_map", 0.95)],
)
def test_the_version_that_foretells_best_gets_the_weight(kind: str, version: str, at_least: float) -> None:
    said, truth = data(kind, 1, 200)
    forecaster = recalibrated()
    forecaster.observe(rows(said, truth.tolist()))
    assert forecaster.weights[version] > at_least
    assert sum(forecaster.weights.values()) == pytest.approx(1.0)


def test_a_map_is_judged_by_rows_that_it_was_not_fitted_on() -> None:
    said, truth = data("overconfident", 2, POOL)
    forecaster = recalibrated()
    forecaster.observe(rows(said, truth.tolist()))
    start = {"identity": 0.5, "temperature": 0.25, "bin_map": 0.25}
    assert forecaster.weights == pytest.approx(start, abs=0.001)


def test_the_maps_find_what_was_done_to_the_forecasts() -> None:
    said, truth = data("underconfident", 3, 4000)
    assert fit_recalibration(said, truth).exponent == pytest.approx(1 / 0.4, abs=0.1)
    said, truth = data("shifted", 3, 4000)
    downwards = fit_recalibration(said, truth).bin_map
    assert all(downwards[b, b - 1] > 0.5 for b in range(2, N_BINS - 1))
    assert downwards.sum(axis=1) == pytest.approx(1.0)


def test_a_calibrated_forecaster_keeps_its_numbers() -> None:
    said, truth = data("calibrated", 3, 4000)
    maps = fit_recalibration(said, truth)
    assert maps.exponent == pytest.approx(1.0, abs=0.1)
    assert np.abs(maps.versions(said)[2] - said).mean() < 0.01


def test_without_rows_nothing_is_changed() -> None:
    said = np.array([peaked(3), [1.0] + [0.0] * 7])
    assert (said_of(recalibrated(said), [0, 1]) == said / said.sum(axis=1, keepdims=True)).all()
    maps = fit_recalibration(np.zeros((0, N_BINS)), np.zeros(0, dtype=np.intp))
    assert (maps.exponent, maps.bin_map.tolist()) == (1.0, np.eye(N_BINS).tolist())
    assert Recalibration().versions(said).shape == (3, 2, N_BINS)


def test_zeros_that_came_true_give_finite_forecasts() -> None:
    said = np.eye(N_BINS)[[0, 7, 3, 3] * 4]
    forecaster = recalibrated(said)
    forecaster.observe(rows(said, [7, 0, 3, 5] * 4))
    mended = said_of(forecaster, range(4))
    assert np.isfinite(mended).all() and mended.sum(axis=1) == pytest.approx(1.0)
    assert mended[0, 7] > 0.05


# -- what is learned from, and when -----------------------------------------------------------------------------------


def test_learning_step_by_step_or_at_once_is_the_same() -> None:
    said, truth = data("overconfident", 4, 40)
    history = rows(said, truth.tolist())
    at_once, by_steps = recalibrated(said), recalibrated(said)
    at_once.observe(history)
    late = history[:10] + history[11:]
    for known in (history[:3], history[:6], late[:20], late, history):
        by_steps.observe(known)
    assert by_steps.weights == at_once.weights
    assert (said_of(by_steps, range(4)) == said_of(at_once, range(4))).all()


def test_only_forecasts_of_the_inner_forecaster_are_learned_from() -> None:
    forecaster = recalibrated()
    other = Forecast((0.125,) * 8, components={"somebody": (0.125,) * 8})
    forecaster.observe([Observation("a", "x", 2.0), Observation("b", "y", 2.0, 0, other)] * 10)
    assert forecaster.weights["identity"] == 0.5


def test_the_truth_is_relative_to_the_anchor_of_the_forecast() -> None:
    said, truth = data("shifted", 5, 40)
    history = rows(said, truth.tolist())
    moved = [replace(row, speedup=3.0 * row.speedup, anchor_speedup=3.0) for row in history]
    one, other = recalibrated(), recalibrated()
    one.observe(history)
    other.observe(moved)
    assert one.weights == other.weights


def test_the_inner_forecaster_learns_too() -> None:
    inner = ScriptedForecaster(lambda _: [1.0] * 8)
    history = [Observation("a", "x", 2.0)]
    RecalibratedForecaster(inner).observe(history)
    assert inner.observed == [history]


# -- what is passed on ------------------------------------------------------------------------------------------------


def test_a_forecast_keeps_its_cost_its_doubts_and_its_own_numbers() -> None:
    cost = ForecastCost(1.0, 10, 2, 3, 1, 0.5)
    raw = Forecast(
        (0.3, *[0.1] * 7), 0.9, "inner", cost, {"part": (0.125,) * 8}, 0.8, ("talks",), disagrees=True
    )
    inner = ScriptedForecaster(lambda _: raw, name="inner")
    forecaster = RecalibratedForecaster(inner)
    said, truth = data("shifted", 6, 40)
    forecaster.observe(rows(said, truth.tolist()))
    (mended,) = forecaster.forecast(queries([0]))
    assert isinstance(mended, Forecast) and mended.probabilities != raw.probabilities
    assert mended.components == {"part": (0.125,) * 8, "inner": raw.probabilities}
    assert mended.source == "recalibrated-inner"
    own = replace(mended, probabilities=raw.probabilities, components=raw.components, source=raw.source)
    assert own == raw


def test_a_failure_stays_a_failure() -> None:
    failure = ForecastFailure(FailureKind.TIMEOUT, "slow", "inner", ForecastCost(seconds=9.0), ("talks",))
    forecaster = RecalibratedForecaster(ScriptedForecaster([failure], name="inner"))
    assert forecaster.forecast(queries([0])) == [failure]


def test_it_is_known_by_the_model_below() -> None:
    inner = ScriptedForecaster([], name="llm")
    inner.model, inner.prompt_hash = "small", "abc"
    forecaster = hedged(RecalibratedForecaster(inner))
    assert (forecaster.name, forecaster.model, forecaster.prompt_hash) == (
        "hedged-recalibrated-llm",
        "small",
        "abc",
    )


def in_a_run(ledger: Ledger) -> tuple[Any, RecalibratedForecaster]:
    """A gate whose forecaster calls everything a bin too fast, hedged as by default."""
    inner = ScriptedForecaster(by_number, name="inner")
    forecaster = RecalibratedForecaster(inner)
    return open_gate(ledger, MixtureForecaster([forecaster])), forecaster


def test_a_resumed_run_goes_on_with_the_same_maps(ledger: Ledger) -> None:
    gate, forecaster = in_a_run(ledger)
    for start in range(1, 41, 8):
        for decision in gate.ask([candidate(number) for number in range(start, start + 8)]):
            if decision.measure:
                gate.tell(decision.id, measured(SPEEDUP[max(0, number_of_id(decision.candidate_id) % 8 - 1)]))
    resumed_gate, resumed = in_a_run(ledger)
    last = gate.ask([candidate(41)]), resumed_gate.ask([candidate(41, "again")])
    assert resumed.weights == forecaster.weights != recalibrated().weights
    assert last[0][0].forecast is not None and "inner" in last[0][0].forecast.components


def number_of_id(candidate_id: str) -> int:
    return int(candidate_id.removeprefix("c"))


# -- configuration ----------------------------------------------------------------------------------------------------


def test_a_configuration_names_what_is_recalibrated() -> None:
    section = {"kind": "recalibrated", "forecaster": {"kind": "random"}}
    built = build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster)
    assert built.name == "hedged-recalibrated-random"
    (outcome,) = built.forecast(queries([0]))
    assert isinstance(outcome, Forecast)
    assert set(outcome.components) == {"random", "recalibrated-random", "climatology"}


def test_a_path_within_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "said.jsonl").write_text('{"candidate_key": "0", "probabilities": [1,1,1,1,1,1,1,1]}\n')
    config = tmp_path / "config.yaml"
    config.write_text(
        "surrogate:\n  forecaster:\n    kind: recalibrated\n    hedge: false\n"
        "    forecaster: {kind: replay, path: said.jsonl}\n"
    )
    built = build_forecaster(load_surrogate_config(config).forecaster)
    assert isinstance(built, RecalibratedForecaster)
    assert isinstance(built.forecast(queries([0]))[0], Forecast)
