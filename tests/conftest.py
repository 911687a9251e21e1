"""Puts this folder on the path, so that tests can import ``helpers``; fixtures that several tests share."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from helpers import Command, Said
from hypothesis import HealthCheck, settings

from gpu_forecasters_plugin.cli import main
from gpu_forecasters_plugin.ledger import Ledger

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every process that they start inherits it: tests send Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine, however slow it is; new ones with each of the long runs.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=not os.environ.get("LONG_TESTS"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


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


@pytest.fixture
def gpu_forecasters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command of that name, in this process."""

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["gpu-forecasters", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run
