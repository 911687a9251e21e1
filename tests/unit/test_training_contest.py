"""Answers to imitate, the order of rows, and when a forecaster replaces another: without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from helpers import peaked
from hypothesis import given
from hypothesis import strategies as st

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, ForecastOutcome
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer, ReadForecast, read_verbalized
from gpu_forecasters_plugin.training.contest import compare_forecasters
from gpu_forecasters_plugin.training.data import TrainingData
from gpu_forecasters_plugin.training.examples import training_order, verbalized_answer
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import ContestSettings, parse_training_settings
from gpu_forecasters_plugin.training.splits import Split


def row(number: int, speedup: float = 1.2, drawn: float | None = None, task: str = "mine") -> TrainingRow:
    code = f"import triton\nBLOCK = {number}\n"
    key = source_key(code)
    return TrainingRow(
        task, "triton", "H100", "x = 0", code, key, "reference", speedup, sampling_probability=drawn
    )


def forecasts(bins: Sequence[int], mass: float = 0.8) -> list[ForecastOutcome]:
    return [Forecast(tuple(peaked(number, mass))) for number in bins]


@given(st.floats(2.0**-5, 2.0**5), st.floats(0.0, 2.0))
def test_an_answer_to_imitate_is_read_by_the_forecasters_own_reader(speedup: float, blur: float) -> None:
    one = row(1, speedup)
    text = verbalized_answer(one, blur)
    read = read_verbalized(Answer(text, finish_reason="stop"))
    assert isinstance(read, ReadForecast) and not read.disagrees
    assert read.raw_sum == pytest.approx(1.0, abs=1e-9)
    assert read.probabilities == pytest.approx(one.blurred_bin(blur), abs=0.0101)
    best = json.loads(text)["predicted_bin"]
    assert read.probabilities[best - 1] == max(read.probabilities)


def test_replayed_rows_are_an_even_share_of_every_batch() -> None:
    new, old = (
        [row(n, 1.2 if n % 2 else 3.0) for n in range(40)],
        [row(100 + n, task="old") for n in range(9)],
    )
    settings = parse_training_settings(
        {"base_model": "m", "steps": 10, "batch_size": 8, "contest": {"replay_share": 0.25}}
    )
    data = TrainingData(Split(tuple(new), (), ()), replay=tuple(old))
    order = training_order(data, settings)
    assert len(order) == 80
    assert [sum(one.task == "old" for one in order[i : i + 8]) for i in range(0, 80, 8)] == [2] * 10
    without = training_order(TrainingData(Split(tuple(new), (), ())), settings)
    assert {one.task for one in without} == {"mine"}


def test_the_better_one_is_accepted_and_the_worse_one_refused() -> None:
    rows = [row(number) for number in range(30)]
    right, wrong = forecasts([5] * 30), forecasts([2] * 30)
    better = compare_forecasters(rows, wrong, right, ContestSettings(), seed=0)
    assert better.accepted and better.after is not None and better.before is not None
    assert better.after < better.before and better.change_ci95 is not None and better.change_ci95[1] < 0
    worse = compare_forecasters(rows, right, wrong, ContestSettings(), seed=0)
    assert not worse.accepted and "30 audit rows" in worse.verdict


def test_each_audit_row_counts_one_over_its_sampling_probability() -> None:
    rows = [row(n, 1.2, drawn=0.1) for n in range(10)] + [row(10 + n, 0.3, drawn=1.0) for n in range(20)]
    # Right about the few that stand for a hundred, wrong about the twenty that stand for themselves.
    few, many = forecasts([5] * 30), forecasts([2] * 30)
    assert compare_forecasters(rows, many, few, ContestSettings(), seed=0).accepted
    assert not compare_forecasters(rows, few, many, ContestSettings(), seed=0).accepted


def test_with_too_few_audit_rows_the_old_one_stays() -> None:
    rows = [row(number) for number in range(5)]
    found = compare_forecasters(rows, forecasts([2] * 5), forecasts([5] * 5), ContestSettings(), seed=0)
    assert not found.accepted and found.before is None
    assert found.verdict == "there are 5 audit rows, and contest.fewest_rows is 20: nothing can be told"


def test_answers_that_cannot_be_read_count_as_uniform() -> None:
    rows = [row(number) for number in range(20)]
    failures: list[ForecastOutcome] = [ForecastFailure(FailureKind.INVALID)] * 20
    found = compare_forecasters(rows, forecasts([5] * 20), failures, ContestSettings(), seed=0)
    assert not found.accepted and found.after == pytest.approx(7 / 16)
