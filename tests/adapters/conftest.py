"""Fixtures of the tests with real hosts."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shinka_runs import ModelServer


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """Opens endpoints that play ShinkaEvolve's model. What the host leaves open goes with them, not in another test."""
    from shinka_runs import ModelServer  # takes seconds, and most tests here are of another host

    with ExitStack() as stack:

        def start(*arguments: Any, kind: type[ModelServer] = ModelServer) -> ModelServer:
            server = kind(*arguments)
            stack.callback(server.close)
            return server

        yield start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def server(serve: Callable[..., ModelServer]) -> ModelServer:
    """One that answers with programs 1, 2, 3, ..."""
    return serve()
