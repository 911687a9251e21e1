"""Fixtures of the tests of a forecaster behind an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from helpers import let_time_pass, surrogate
from misbehaving_server import MODEL

from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.language_model import server
from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., OpenAIServerForecaster]]:
    """Builds forecasters from settings and closes them."""
    # A machine that is busy for seconds holds the event loop up: that is not what the tests are about.
    monkeypatch.setattr(server, "_GRACE_S", 100.0)
    let_time_pass(0.0)
    with ExitStack() as stack:

        def make(base_url: Any, **settings: Any) -> OpenAIServerForecaster:
            section = {"kind": "openai_server", "base_url": base_url, "model": MODEL, "hedge": False}
            section |= {"readout": "verbalized", "deadline_s": 60.0} | settings
            forecaster = build_forecaster(surrogate(forecaster=section).forecaster)
            assert isinstance(forecaster, OpenAIServerForecaster)
            stack.callback(forecaster.close)
            return forecaster

        yield make
