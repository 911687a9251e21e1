"""Puts this folder on the path, so that tests can import ``helpers``; fixtures that several tests share."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpu_forecasters_plugin.ledger import Ledger


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with its tables and nothing in them: copying it is quicker than migrating anew."""
    folder = tmp_path_factory.mktemp("ledger")
    Ledger(folder / "made.sqlite3")
    with closing(sqlite3.connect(folder / "made.sqlite3")) as source:
        with closing(sqlite3.connect(folder / "empty.sqlite3")) as target:
            source.backup(target)
    return folder / "empty.sqlite3"


@pytest.fixture
def ledger(tmp_path: Path, empty_ledger: Path) -> Ledger:
    """A new ledger in the test's own folder."""
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(empty_ledger.read_bytes())
    return Ledger(path)
