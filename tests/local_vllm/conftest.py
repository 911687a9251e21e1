"""The real server of the tests here: one for the session, killed and restarted by one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.local_vllm import LocalVllm

# The OpenEvolve runs of the adapter's tests serve here as well.
sys.path.append(str(Path(__file__).parents[1] / "adapters"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalVllm]:
    """The server, answering."""
    try:
        started = LocalVllm(tmp_path_factory.mktemp("vllm") / "server.log")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with started:
        yield started
