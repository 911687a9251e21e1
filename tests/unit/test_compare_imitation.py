from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import write_pool

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.calibration.ranking import spearman
from gpu_forecasters_plugin.compare.arms import build_arms
from gpu_forecasters_plugin.compare.imitation import EXACT, WITHIN_ONE, Table, imitated, inverted, useless
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool, load_task

DRAWS = range(4)


@pytest.fixture(scope="module")
def pool() -> RecordedPool:
    return load_task("fp8_quant")


def ran(pool: RecordedPool) -> list[str]:
    return [name for name in pool.candidates if pool.speedup(name) is not None]


def truth(pool: RecordedPool) -> dict[str, int]:
    return {name: BINS.index(pool.speedup(name) or 0.0) for name in ran(pool)}


def said(pool: RecordedPool, table: Table) -> dict[str, Forecast]:
    return {name: Forecast(table[pool.candidates[name].key]) for name in ran(pool)}


def order(pool: RecordedPool, table: Table) -> float:
    """Spearman correlation of what is said with what was measured."""
    forecasts = said(pool, table)
    expected = np.array([forecasts[name].expected_log2() for name in ran(pool)])
    found = spearman(expected, np.array([pool.speedup(name) or 0.0 for name in ran(pool)]))
    assert found is not None
    return found


@pytest.mark.parametrize("draw", DRAWS)
def test_a_third_is_right_and_three_quarters_at_most_a_bin_off(pool: RecordedPool, draw: int) -> None:
    forecasts = said(pool, imitated(pool, draw))
    off = np.array([abs(forecasts[name].predicted_bin - bin_) for name, bin_ in truth(pool).items()])
    assert (off == 0).mean() == pytest.approx(EXACT, abs=0.02)
    assert (off <= 1).mean() == pytest.approx(WITHIN_ONE, abs=0.02)


def test_errors_are_alike_along_edits_and_not_elsewhere(pool: RecordedPool) -> None:
    names, bins = ran(pool), np.array(list(truth(pool).values()))
    connected = np.array([[other in pool.neighbours(name) for other in names] for name in names])
    apart = ~connected & ~np.eye(len(names), dtype=bool)
    products = []
    for draw in DRAWS:
        forecasts = said(pool, imitated(pool, draw))
        errors = np.array([forecasts[name].expected_bin() for name in names]) - bins
        # Fast kernels cannot be overrated by much, and edits connect kernels that are alike fast.
        of_bin = np.array([errors[bins == bin_].mean() for bin_ in bins])
        own = errors - of_bin
        products.append(np.outer(own, own) / own.var())
    mean = np.mean(products, axis=0)
    assert mean[connected].mean() > 0.15
    assert abs(mean[apart].mean()) < 0.05


def test_surer_forecasts_are_right_more_often(pool: RecordedPool) -> None:
    right, confidence = [], []
    for draw in DRAWS:
        forecasts = said(pool, imitated(pool, draw))
        right += [forecasts[name].predicted_bin == bin_ for name, bin_ in truth(pool).items()]
        confidence += [forecasts[name].confidence() for name in truth(pool)]
    surest, rest = np.quantile(confidence, [0.8, 0.4])
    of_surest = np.mean(np.array(right)[confidence > surest])
    assert of_surest > np.mean(np.array(right)[confidence < rest]) + 0.05
    assert np.mean(confidence) == pytest.approx(EXACT, abs=0.1)


def test_useless_forecasts_have_the_frequencies_and_know_nothing(pool: RecordedPool) -> None:
    assert sorted(useless(pool, 0).values()) == sorted(imitated(pool, 0).values())
    assert abs(np.mean([order(pool, useless(pool, draw)) for draw in DRAWS])) < 0.15


def test_inverted_forecasts_call_fast_what_is_slow(pool: RecordedPool) -> None:
    assert order(pool, imitated(pool, 0)) > 0.5
    assert order(pool, inverted(pool, 0)) < -0.5


def test_draws_differ_and_are_the_same_each_time(pool: RecordedPool) -> None:
    again = load_task("fp8_quant")
    for make in (imitated, useless, inverted):
        assert make(pool, 1) == make(again, 1)
        assert make(pool, 1) != make(pool, 2)


def test_kernels_that_fail_have_a_forecast_too(tmp_path: Path) -> None:
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"))
    table = imitated(pool, 0)
    assert set(table) == {candidate.key for candidate in pool.candidates.values()}
    assert all(len(Forecast(probabilities).probabilities) == N_BINS for probabilities in table.values())


@pytest.mark.parametrize("name", ["imitated_llm", "useless", "inverted"])
def test_seeds_of_an_arm_replay_draws_of_their_own(name: str, tmp_path: Path) -> None:
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"))
    (arm,) = (a for a in build_arms([name], pool, SurrogateConfig(), tmp_path) if a.name == name)
    assert arm.config is not None
    alone = arm.config.forecaster.model_copy(update={"hedge": False})
    key = pool.reference.key
    query = Query(key, pool.reference.code, pool.reference.code, pool.reference.code)
    first, second = (build_forecaster(alone, seed=seed).forecast([query])[0] for seed in (0, 1))
    rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    written = {row["draw"]: row["probabilities"] for row in rows if row["candidate_key"] == key}
    for outcome, draw in ((first, 0), (second, 1)):
        assert isinstance(outcome, Forecast)
        assert outcome.probabilities == pytest.approx(written[draw], abs=1e-5)
