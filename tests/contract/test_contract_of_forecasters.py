"""Every forecaster that ships keeps the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import peaked, surrogate

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecasters import (
    Forecaster,
    InvertedForecaster,
    LearnedForecaster,
    OracleForecaster,
    RandomForecaster,
    ScriptedForecaster,
    WarmStartTask,
)
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.testing import ForecasterContract
from gpu_forecasters_plugin.testing.samples import kernel

KEYS = [kernel(number).key for number in range(30)]
SETTINGS: dict[str, dict[str, Any]] = {
    "learned": {"kind": "learned", "hedge": False, "warm_start": False},
    "hedged": {"kind": "learned", "warm_start": False},
    "climatology": {"kind": "climatology"},
    "random": {"kind": "random"},
    "replay": {"kind": "replay", "hedge": False},
    "recalibrated": {"kind": "recalibrated", "hedge": False, "forecaster": {"kind": "random"}},
    "mixture": {"kind": "mixture", "experts": [{"kind": "random"}, {"kind": "climatology"}]},
}


@pytest.mark.parametrize("name", SETTINGS)
class TestConfigured(ForecasterContract):
    @pytest.fixture
    def make(self, name: str, tmp_path: Path) -> Callable[[], Forecaster]:
        section = SETTINGS[name]
        if name == "replay":
            rows = [
                {"candidate_key": key, "probabilities": peaked(1 + i % N_BINS)} for i, key in enumerate(KEYS)
            ]
            path = tmp_path / "recorded.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            section = section | {"path": str(path)}
        config = surrogate(forecaster=section).forecaster
        return lambda: build_forecaster(config, seed=4, operation="sum")


class TestWarmStarted(ForecasterContract):
    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        codes = tuple(kernel(number).code for number in range(40, 60))
        others = WarmStartTask("other", kernel(40).code, codes, tuple(i / 10 for i in range(20)))
        return lambda: LearnedForecaster(warm_start=[others])


class TestOracle(ForecasterContract):
    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        return lambda: OracleForecaster({key: 1.0 + i / 10 for i, key in enumerate(KEYS)})


class TestInverted(ForecasterContract):
    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        return lambda: InvertedForecaster(RandomForecaster(2))


class TestScripted(ForecasterContract):
    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        return lambda: ScriptedForecaster(lambda query: peaked(1 + len(query.candidate_code) % N_BINS))
