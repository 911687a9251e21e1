"""The learned forecaster with static profiles: what it makes of them, and of their absence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from static_profiles import launch, profile, profile_of_bytes

from gpu_forecasters_plugin.forecast import Forecast, Observation, Query
from gpu_forecasters_plugin.forecasters import LearnedForecaster, WarmStartTask
from gpu_forecasters_plugin.forecasters.learned.profile_features import PROFILE_NAMES, profile_features
from gpu_forecasters_plugin.screen.profile import InstructionMix, SourceProfile
from gpu_forecasters_plugin.testing.samples import kernel, observation, query

REFERENCE = profile_of_bytes(64)
SIZES = (8, 16, 32, 64, 128, 256)


def compiled(number: int) -> SourceProfile:
    """The size has nothing to do with the text."""
    return profile_of_bytes(SIZES[number * 7 % len(SIZES)])


def measured(number: int) -> Observation:
    """As fast as its bytes say."""
    speedup = 64 / SIZES[number * 7 % len(SIZES)]
    return replace(observation(number), speedup=speedup, profile=compiled(number))


def asked(numbers: Sequence[int], *, with_profiles: bool = True) -> list[Query]:
    queries = [query(kernel(number)) for number in numbers]
    if not with_profiles:
        return queries
    return [
        replace(q, profile=compiled(number), reference_profile=REFERENCE)
        for q, number in zip(queries, numbers, strict=True)
    ]


def forecasts(forecaster: LearnedForecaster, queries: Sequence[Query]) -> list[Forecast]:
    outcomes = forecaster.forecast(queries)
    assert all(isinstance(outcome, Forecast) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


def errors(forecaster: LearnedForecaster, queries: Sequence[Query], numbers: Sequence[int]) -> float:
    truth = [measured(number).log2_speedup for number in numbers]
    found = [f.expected_log2() for f in forecasts(forecaster, queries)]
    return float(np.abs(np.array(found) - truth).mean())


def test_what_only_the_compiler_sees_is_learned_from_it() -> None:
    learned, new = range(1, 25), range(30, 48)
    with_profile, without = LearnedForecaster(), LearnedForecaster(use_profiles=False)
    for forecaster in (with_profile, without):
        forecaster.observe([measured(number) for number in learned])
    assert errors(with_profile, asked(new), new) < 0.6 * errors(without, asked(new), new)


def test_switched_off_or_without_any_profile_it_forecasts_as_if_there_were_none() -> None:
    plain, off, blind = LearnedForecaster(), LearnedForecaster(use_profiles=False), LearnedForecaster()
    rows = [measured(number) for number in range(1, 9)]
    plain.observe([replace(row, profile=None) for row in rows])
    off.observe(rows)
    blind.observe([replace(row, profile=None) for row in rows])
    numbers = range(10, 14)
    expected = [f.probabilities for f in forecasts(plain, asked(numbers, with_profiles=False))]
    assert [f.probabilities for f in forecasts(off, asked(numbers))] == expected
    # Profiles that come with the questions alone: nothing measured can be compared with them.
    seen = [replace(q, reference_profile=None) for q in asked(numbers)]
    assert [f.probabilities for f in forecasts(blind, seen)] == expected


def test_a_candidate_that_could_not_be_compiled_is_forecast_beside_those_that_could() -> None:
    forecaster = LearnedForecaster()
    forecaster.observe([measured(number) for number in range(1, 13)])
    queries = asked(range(20, 24))
    queries[1] = replace(queries[1], profile=None)
    queries[2] = replace(queries[2], profile=profile(launch(grid=None, threads=None, count=0)))
    found = forecasts(forecaster, queries)
    alone = forecasts(forecaster, [queries[1]])
    assert found[1].probabilities == pytest.approx(alone[0].probabilities)


def test_a_warm_start_carries_over_what_profiles_mean() -> None:
    tasks = []
    for task in range(3):
        numbers = range(60 + 12 * task, 72 + 12 * task)
        rows = [measured(number) for number in numbers]
        tasks.append(
            WarmStartTask(
                f"other {task}",
                kernel(50 + task).code,
                tuple(row.candidate_code for row in rows),
                tuple(row.log2_speedup for row in rows),
                tuple(row.profile for row in rows),
                REFERENCE,
            )
        )
    numbers = range(10, 22)
    cold, warm = LearnedForecaster(), LearnedForecaster(warm_start=tasks)
    assert errors(warm, asked(numbers), numbers) < 0.6 * errors(cold, asked(numbers), numbers)
    # Without profiles of the run's own, what the tasks' profiles taught has no say.
    text = LearnedForecaster(
        warm_start=[replace(task, profiles=(), reference_profile=None) for task in tasks]
    )
    blind = asked(numbers, with_profiles=False)
    assert [f.probabilities for f in forecasts(warm, blind)] == [
        f.probabilities for f in forecasts(text, blind)
    ]


def test_features_are_as_many_as_their_names_and_finite_but_for_a_time_that_is_not_known() -> None:
    found = profile_features(profile(launch(), launch(grid=None, threads=None, count=0, instructions=None)))
    assert found is not None and len(found) == len(PROFILE_NAMES)
    unknown = [name for name, value in zip(PROFILE_NAMES, found, strict=True) if not np.isfinite(value)]
    assert unknown == ["estimated"]
    assert profile_features(None) is None and profile_features(profile()) is None


def test_each_group_of_instructions_moves_its_own_feature() -> None:
    def features(**mix: int) -> dict[str, float]:
        found = profile_features(profile(launch(instructions=InstructionMix(total=100, **mix))))
        assert found is not None
        return dict(zip(PROFILE_NAMES, found, strict=True))

    plain, barred = features(), features(barriers=7)
    assert {name for name in PROFILE_NAMES if plain[name] != barred[name]} == {"barriers"}
    assert barred["barriers"] == 3.0
