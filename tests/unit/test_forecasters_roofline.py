"""The forecaster that goes by the compiler's estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import candidate, surrogate
from static_profiles import launch, profile, profile_of_bytes

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Observation, Query
from gpu_forecasters_plugin.forecasters import Forecaster, MixtureForecaster, RandomForecaster
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.roofline import RooflineForecaster
from gpu_forecasters_plugin.opening import open_gate
from gpu_forecasters_plugin.screen.profile import SourceProfile
from gpu_forecasters_plugin.testing import ForecasterContract
from gpu_forecasters_plugin.testing.samples import kernel, query

REFERENCE = profile_of_bytes(64)


def asked(number: int, compiled: SourceProfile | None, anchor_speedup: float = 1.0) -> Query:
    return replace(query(kernel(number), anchor_speedup), profile=compiled, reference_profile=REFERENCE)


def answer(forecaster: Forecaster, compiled: SourceProfile | None, anchor_speedup: float = 1.0) -> Forecast:
    (outcome,) = forecaster.forecast([asked(1, compiled, anchor_speedup)])
    assert isinstance(outcome, Forecast)
    return outcome


def measured(number: int, mib: float, speedup: float) -> Observation:
    found = kernel(number)
    return Observation(found.key, found.code, speedup, number, profile=profile_of_bytes(mib))


class TestContract(ForecasterContract):
    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        return RooflineForecaster

    @pytest.fixture
    def queries(self) -> list[Query]:
        sizes = [profile_of_bytes(8 * number) for number in range(1, 6)]
        return [*map(asked, range(5), sizes), asked(6, sizes[2], 1.5), asked(7, None)]


def test_half_the_bytes_are_expected_to_be_faster_and_twice_as_many_slower() -> None:
    forecaster = RooflineForecaster()
    faster, same, slower = (
        answer(forecaster, profile_of_bytes(mib)).expected_log2() for mib in (32, 64, 128)
    )
    assert slower < same < faster
    assert same == pytest.approx(0.0, abs=0.1)


def test_forecasts_are_relative_to_the_anchor() -> None:
    forecaster = RooflineForecaster()
    to_reference = answer(forecaster, profile_of_bytes(16)).expected_log2()
    assert answer(forecaster, profile_of_bytes(16), 2.0).expected_log2() == pytest.approx(
        to_reference - 1.0, abs=0.25
    )


def test_measurements_that_agree_make_it_surer_and_those_that_do_not_less_sure() -> None:
    sizes = [8.0 * 2 ** (number / 4) for number in range(16)]
    faithful, erratic, fresh = RooflineForecaster(), RooflineForecaster(), RooflineForecaster()
    faithful.observe([measured(n, mib, 64 / mib) for n, mib in enumerate(sizes)])
    erratic.observe([measured(n, mib, 8.0 ** (-1) ** n) for n, mib in enumerate(sizes)])
    surest, least, first = (
        answer(f, profile_of_bytes(64 / 3)).confidence() for f in (faithful, erratic, fresh)
    )
    assert surest > first > least
    assert answer(faithful, profile_of_bytes(64 / 3)).predicted_bin == 7  # three times as fast


@pytest.mark.parametrize(
    ("compiled", "reference", "why"),
    [
        (None, REFERENCE, "the candidate has no static profile: set surrogate.screen.policy"),
        (REFERENCE, None, "the reference has no static profile: set surrogate.screen.policy"),
        (
            profile(launch(grid=None)),
            REFERENCE,
            "part of what the candidate does is out of the compiler's sight",
        ),
    ],
)
def test_without_an_estimate_there_is_a_typed_failure_that_says_why(
    compiled: SourceProfile | None, reference: SourceProfile | None, why: str
) -> None:
    (outcome,) = RooflineForecaster().forecast([replace(asked(1, compiled), reference_profile=reference)])
    assert isinstance(outcome, ForecastFailure)
    assert outcome.kind is FailureKind.EMPTY and why in outcome.detail


def test_where_the_compiler_was_asked_the_failure_tells_its_verdict() -> None:
    (outcome,) = RooflineForecaster().forecast([replace(asked(1, None), screened="invalid")])
    assert isinstance(outcome, ForecastFailure)
    assert outcome.detail.endswith("the compiler's verdict on the candidate is invalid")


def test_as_an_expert_it_speaks_where_it_can_and_is_left_out_where_it_cannot() -> None:
    mixture = MixtureForecaster([RooflineForecaster(), RandomForecaster(1)])
    with_profile, without = mixture.forecast([asked(1, profile_of_bytes(8)), asked(2, None)])
    assert isinstance(with_profile, Forecast) and isinstance(without, Forecast)
    assert "roofline" in with_profile.components and "roofline" not in without.components


def test_it_is_built_by_its_name() -> None:
    config = surrogate(forecaster={"kind": "roofline"}).forecaster
    assert build_forecaster(config).name == "hedged-roofline"


@pytest.mark.parametrize("kind", ["roofline", "mixture"])
def test_a_run_without_the_screen_refuses_it_before_anything_is_paid_for(tmp_path: Path, kind: str) -> None:
    experts = {"experts": [{"kind": "roofline"}, {"kind": "learned"}]} if kind == "mixture" else {}
    section = surrogate(forecaster={"kind": kind, **experts})
    with pytest.raises(ConfigError, match=r"set surrogate\.screen\.policy"):
        open_gate(section, candidate(0), task="t", evaluator="e", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_extreme_profiles_give_finite_forecasts() -> None:
    forecaster = RooflineForecaster()
    forecaster.observe([measured(1, 1e-6, 1e9), measured(2, 1e6, 1e-9)])
    for mib in (1e-6, 1e6):
        assert math.isfinite(answer(forecaster, profile_of_bytes(mib)).expected_log2())
