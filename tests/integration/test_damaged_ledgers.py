"""Ledgers that another program has changed, or that are damaged: one line from every command that reads them."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from helpers import Command
from report_pages import write_run

from gpu_forecasters_plugin.ledger import Ledger

READERS = {
    "ledger show": ["ledger", "show", "{}", "--out", "out"],
    "ledger export": ["ledger", "export", "{}", "--out", "rows.jsonl"],
    "watch": ["watch", "{}", "--once"],
    "report": ["report", "{}", "--out", "page.html"],
    "evaluate": ["evaluate", "--ledger", "{}", "--out", "out"],
    "calibrate": ["calibrate", "--ledger", "{}", "--target-risk", "0.5", "--out", "out"],
}
"""Every command that reads a ledger."""
FORECAST_READERS = [name for name in READERS if name != "ledger export"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with 25 measurements of 49 candidates."""
    path = tmp_path_factory.mktemp("run") / "ledger.sqlite3"
    ledger = Ledger(path)
    write_run(ledger, 6)
    ledger.close()
    return path.read_bytes()


@pytest.fixture
def read(
    gpu_forecasters: Command, sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Has commands read a ledger after a change to its bytes or rows, and expects one line that says ``what``."""
    monkeypatch.chdir(tmp_path)
    numbers = count()

    def check(what: str, *statements: str, content: bytes = sound, by: list[str] | None = None) -> None:
        path = tmp_path / f"{next(numbers)}.sqlite3"
        path.write_bytes(content)
        if statements:
            with closing(sqlite3.connect(path)) as connection, connection:
                for statement in statements:
                    connection.execute(statement)
        before = path.read_bytes()
        for name in READERS if by is None else by:
            said = gpu_forecasters(*(part.format(path) for part in READERS[name]))
            assert (said.code, said.err.count("\n")) == (1, 1), (name, said)
            assert re.match(f"error: .*{what}", said.err), (name, said.err)
        assert path.read_bytes() == before
        assert not any((tmp_path / name).exists() for name in ("page.html", "rows.jsonl", "out/summary.json"))

    return check


def test_files_that_are_no_database_any_more(read: Callable[..., None], sound: bytes) -> None:
    read("holds no ledger", content=b"")
    read("file is not a database", content=os.urandom(9000))
    read("database disk image is malformed", content=sound[: len(sound) // 2])
    read("no such table", "DROP TABLE measurement")


@pytest.mark.parametrize("speedup", ["9e999", "NULL", "-1", "0", "'abc'", "x'00'"])
def test_speed_ups_that_cannot_be(read: Callable[..., None], speedup: str) -> None:
    read(
        "measurement 5 .* has a speed-up that cannot be",
        f"UPDATE measurement SET speedup = {speedup} WHERE id = 5",
    )


def test_other_numbers_that_cannot_be(read: Callable[..., None]) -> None:
    read("measurement 4 .* has a time that cannot be", "UPDATE measurement SET gpu_seconds = -1 WHERE id = 4")
    read("pool 2 .* has an anchor that cannot be", "UPDATE pool SET anchor_speedup = 'no' WHERE id = 2")
    lost = "DELETE FROM candidate WHERE key = (SELECT candidate_key FROM decision WHERE id = 3)"
    read("decision 3 .* has a candidate that cannot be", "PRAGMA foreign_keys = OFF", lost)
    drawn = "UPDATE decision SET sampling_probability = 0 WHERE reason = 'audit'"
    read("a sampling probability is above 0", drawn, by=["report", "evaluate"])


def test_configurations_that_are_none(read: Callable[..., None]) -> None:
    read("the configuration of run 'run' makes no sense", "UPDATE run SET config = '[]'")
    budget = """UPDATE run SET config = '{"budget": {"measurements": "many"}}'"""
    read("budget.measurements is 'many'", budget)


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ("'[1,2'", "what should be JSON is none"),
        ("'[0.5,0.5]'", "makes no sense"),
        ("'\"x\"'", "makes no sense"),
        ("'[2,-1,0,0,0,0,0,0]'", "makes no sense"),
    ],
)
def test_forecasts_that_are_none(read: Callable[..., None], stored: str, what: str) -> None:
    read(what, f"UPDATE decision SET probabilities = {stored}", by=FORECAST_READERS)


def test_reasons_that_are_none(read: Callable[..., None]) -> None:
    read("makes no sense", "UPDATE decision SET reason = 'whim'", by=["report", "evaluate", "calibrate"])
