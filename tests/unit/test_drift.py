from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from helpers import peaked
from numpy.typing import NDArray

from gpu_forecasters_plugin.calibration.drift import (
    CORRECTIONS,
    LEAST_ROWS,
    ChangeEvidence,
    DriftPool,
    DriftState,
    DriftTest,
    log_gains,
)

RATE, RUNS, POOLS, ROWS = 0.05, 1000, 100, 4
FIRST_LEVEL = math.log(2 / RATE)
TOLERATED = RATE / 2 + 2 * math.sqrt(RATE / 2 / RUNS)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def forecasts(draw: np.random.Generator, sharpness: float, *shape: int) -> Array:
    weights = np.exp(draw.normal(0.0, sharpness, (*shape, 8)))
    return weights / weights.sum(axis=-1, keepdims=True)


def drawn_from(draw: np.random.Generator, probabilities: Array) -> Indices:
    uniform = draw.random((*probabilities.shape[:-1], 1))
    return np.minimum((probabilities.cumsum(axis=-1) < uniform).sum(axis=-1), 7)


def overconfident(probabilities: Array) -> Array:
    """What turns out where forecasts are three times as sharp as they should be."""
    flat = probabilities ** (1 / 3)
    return flat / flat.sum(axis=-1, keepdims=True)


def first_alarm(probabilities: Array, truth: Indices) -> Indices:
    """Pool of the first alarm of each run; the number of pools where there is none."""
    evidence = ChangeEvidence((len(truth),))
    counts = np.ones((len(truth), 8))
    alarm = np.full(len(truth), truth.shape[1])
    for pool in range(truth.shape[1]):
        climatology = counts / counts.sum(axis=-1, keepdims=True)
        evidence.update(log_gains(probabilities[:, pool], truth[:, pool], climatology).sum(axis=1))
        counts += (truth[:, pool, :, None] == np.arange(8)).sum(axis=1)
        crossed = evidence.log_evidence >= FIRST_LEVEL
        alarm = np.where(crossed, np.minimum(alarm, pool), alarm)
    return alarm


def pools(probabilities: Array, truth: Indices, first: int = 0) -> list[DriftPool]:
    return [
        DriftPool(first + number, p, y)
        for number, (p, y) in enumerate(zip(probabilities, truth, strict=True))
    ]


def followed(pools: Sequence[DriftPool], rate: float) -> DriftState:
    test = DriftTest(rate)
    for pool in pools:
        test.add(pool)
    return test.state


def one_run(seed: int, sharpness: float = 2.0, count: int = POOLS) -> tuple[np.random.Generator, Array]:
    draw = np.random.default_rng(seed)
    return draw, forecasts(draw, sharpness, count, ROWS)


# -- the level and the power of the test ------------------------------------------------------------------------------


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_calibrated_forecasts_hardly_ever_raise_an_alarm(sharpness: float) -> None:
    draw = np.random.default_rng(31)
    probabilities = forecasts(draw, sharpness, RUNS, POOLS, ROWS)
    alarmed = (first_alarm(probabilities, drawn_from(draw, probabilities)) < POOLS).mean()
    assert alarmed <= TOLERATED


def test_each_correction_alone_keeps_the_level_that_a_plain_threshold_would_not() -> None:
    """The mean evidence of calibrated forecasts is 1 at most, in every pool: what the level rests on."""
    draw = np.random.default_rng(32)
    probabilities = forecasts(draw, 1.0, 20_000, 1, ROWS)
    climatology = np.full((20_000, 8), 1 / 8)
    gains = log_gains(probabilities[:, 0], drawn_from(draw, probabilities)[:, 0], climatology).sum(axis=1)
    assert (np.exp(gains).mean(axis=0) <= 1.1).all()
    assert (np.exp(gains).max(axis=0) > 1 / RATE).any()  # single pools may well look alarming


@pytest.mark.parametrize("begin", [0, 40])
def test_forecasts_that_turn_overconfident_raise_an_alarm_within_a_hundred_rows(begin: int) -> None:
    draw = np.random.default_rng(33)
    probabilities = forecasts(draw, 2.0, RUNS, POOLS, ROWS)
    truth = drawn_from(draw, probabilities)
    truth[:, begin:] = drawn_from(draw, overconfident(probabilities))[:, begin:]
    alarm = first_alarm(probabilities, truth)
    assert (alarm < begin).mean() <= TOLERATED
    assert (alarm < begin + 100 // ROWS).mean() > 0.95


def test_forecasts_that_turn_inverted_raise_an_alarm_within_sixteen_rows() -> None:
    draw = np.random.default_rng(34)
    probabilities = forecasts(draw, 2.0, RUNS, POOLS, ROWS)
    truth = drawn_from(draw, probabilities)
    truth[:, 40:] = 7 - truth[:, 40:]
    alarm = first_alarm(probabilities, truth)
    assert (alarm < 44).mean() > 0.95


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_as_the_simulations_are() -> None:
    draw, probabilities = one_run(1)
    truth = drawn_from(draw, overconfident(probabilities))
    state = followed(pools(probabilities, truth), RATE)
    assert state.changes[0].miscalibrated
    assert state.changes[0].pool == first_alarm(probabilities[None], truth[None])[0]


def test_an_alarm_names_the_correction_that_would_have_done_better() -> None:
    draw, probabilities = one_run(2)
    state = followed(pools(probabilities, 7 - drawn_from(draw, probabilities)), RATE)
    assert state.changes[0].correction == "inverted"
    assert state.changes[0].log_evidence >= FIRST_LEVEL


def test_an_alarm_ends_when_forecasts_have_caught_up_and_the_next_one_is_harder_to_raise() -> None:
    draw, probabilities = one_run(3, count=3 * POOLS)
    right = drawn_from(draw, probabilities)
    truth = np.concatenate([7 - right[:POOLS], right[POOLS : 2 * POOLS], 7 - right[2 * POOLS :]])
    state = followed(pools(probabilities, truth), RATE)
    assert [change.miscalibrated for change in state.changes] == [True, False, True]
    alarm, end, again = state.changes
    assert POOLS <= end.pool <= POOLS + 40 and again.pool >= 2 * POOLS
    assert again.log_evidence >= math.log(4 / RATE) and state.miscalibrated
    assert end.pool * ROWS >= alarm.pool * ROWS + LEAST_ROWS


def test_no_single_surprise_raises_an_alarm() -> None:
    certain = np.array([[peaked(1, 1.0)]])
    assert followed(pools(certain, np.array([[7]])), 0.01).changes == ()


@pytest.mark.parametrize("bin_", [0, 7])
def test_all_in_one_bin_and_all_forecasts_identical_are_no_trouble(bin_: int) -> None:
    for forecast in (peaked(1, 1.0), [1 / 8] * 8, peaked(8, 0.125)):
        state = followed(pools(np.full((50, 2, 8), forecast), np.full((50, 2), bin_)), RATE)
        assert math.isfinite(state.log_evidence)


def test_without_rows_nothing_is_known() -> None:
    assert followed([], RATE) == DriftState(0.0, ())


def test_the_start_of_a_pool_yet_to_come_holds_its_stake() -> None:
    evidence = ChangeEvidence()
    assert evidence.log_evidence == pytest.approx(0.0)
    for _ in range(5):
        evidence.update(np.zeros(len(CORRECTIONS)))
        assert evidence.log_evidence == pytest.approx(0.0)


@pytest.mark.parametrize("rate", [0.0, 1.0, math.nan])
def test_a_false_alarm_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="false alarm rate"):
        followed([], rate)
