"""Fixtures of the tests with real hosts."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shinka_runs import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """An endpoint that plays ShinkaEvolve's model. What the host leaves open goes with it, not in another test."""
    from shinka_runs import model_server  # takes seconds, and most tests here are of another host

    with model_server() as running:
        yield running
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
