"""Looking at a ledger changes nothing in it; what is older is upgraded only by what writes to it."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers import Command, candidate, open_gate

from gpu_forecasters_plugin.cli.watch.target import WatchTarget
from gpu_forecasters_plugin.errors import LedgerError, LedgerMissingError, LedgerWriteError
from gpu_forecasters_plugin.ledger import Ledger, LedgerReader
from gpu_forecasters_plugin.ledger.locating import ledgers_below
from gpu_forecasters_plugin.ledger.schema import head_revision
from gpu_forecasters_plugin.ledger.sqlite_files import copy_database

DATA = Path(__file__).parents[1] / "data"
OLDER = sorted(path for path in DATA.glob("ledger_*.sqlite3") if path.stem[7:] != head_revision())


def revision(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        found: str = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=OLDER, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A ledger of an older version, alone in a run's folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    return Path(shutil.copy(request.param, folder / "ledger.sqlite3"))


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """One of the oldest version."""
    folder = tmp_path / "run"
    folder.mkdir()
    return Path(shutil.copy(OLDER[0], folder / "ledger.sqlite3"))


def test_commands_that_read_leave_an_older_ledger_and_its_folder_as_they_are(
    gpu_forecasters: Command, old: Path, tmp_path: Path
) -> None:
    before = contents(old.parent)
    shown = gpu_forecasters("ledger", "show", old.parent, "--out", tmp_path / "shown")
    exported = gpu_forecasters("ledger", "export", old, "--out", tmp_path / "rows.jsonl")
    watched = gpu_forecasters("watch", old.parent, "--once")
    assert (shown.code, exported.code, watched.code) == (0, 0, 0)
    assert shown.err == exported.err == watched.err == ""
    assert contents(old.parent) == before
    expected = json.loads(
        next(p for p in OLDER if p.read_bytes() == old.read_bytes()).with_suffix(".json").read_text()
    )
    assert (
        json.loads((tmp_path / "shown" / "summary.json").read_text())["best_speedup"]
        == expected["best_speedup"]
    )


def test_the_copy_that_an_older_ledger_is_read_through_goes_with_its_reader(
    oldest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    reader = LedgerReader(oldest)
    reader.follow_run(1)
    assert reader.decisions() and len(list(scratch.iterdir())) == 1
    assert reader.url == Ledger(oldest).url, "messages name the ledger, not the copy"
    reader.close()
    del reader
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_an_older_ledger_is_copied_once_to_be_watched_and_again_when_it_is_written_to(
    oldest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Path] = []

    def copy(source: Path, target: Path) -> None:
        copied.append(source)
        copy_database(source, target)

    monkeypatch.setattr("gpu_forecasters_plugin.ledger.read_only.copy_database", copy)
    watched = WatchTarget(str(oldest.parent), None)
    before = sum(watched.look().standing.decisions.values())
    assert watched.look().standing.use and watched.summary() and copied == [oldest]
    with closing(sqlite3.connect(oldest)) as connection, connection:
        connection.execute("DELETE FROM decision WHERE id NOT IN (SELECT decision_id FROM measurement)")
    assert sum(watched.look().standing.decisions.values()) < before
    assert watched.look() and len(copied) == 2


def test_a_ledger_that_is_read_cannot_be_written_to(ledger: Ledger) -> None:
    reader = LedgerReader(ledger.target)
    with pytest.raises(LedgerError, match="readonly"), reader.connection() as connection:
        connection.exec_driver_sql("DELETE FROM run")


def test_what_only_the_log_of_a_living_writer_holds_is_read_and_the_log_stays(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    gate.ask([candidate(number) for number in range(1, 5)])
    reader = LedgerReader(ledger.target)
    reader.follow_run(gate_run(reader))
    assert len(reader.decisions()) == 4
    reader.close()
    assert ledger.file is not None and ledger.file.with_name("ledger.sqlite3-wal").exists()
    assert gate.ask([candidate(5)]), "the writer goes on"


def test_a_reader_in_the_middle_of_reading_keeps_no_writer_waiting(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    gate.ask([candidate(number) for number in range(1, 5)])
    reader = LedgerReader(ledger.target)
    with reader.connection() as connection:
        connection.exec_driver_sql("BEGIN")
        count = "SELECT count(*) FROM decision"
        assert connection.exec_driver_sql(count).scalar_one() == 4
        gate.ask([candidate(5)])
        assert connection.exec_driver_sql(count).scalar_one() == 4, "as it was when reading began"
        connection.exec_driver_sql("ROLLBACK")
        assert connection.exec_driver_sql(count).scalar_one() == 5


def gate_run(reader: LedgerReader) -> int:
    return int(reader.runs()[-1]["id"])


@pytest.fixture
def read_only_disk(tmp_path: Path, oldest: Path) -> Iterator[Path]:
    """The oldest ledger on a file system that nobody can write to."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        shutil.copy(oldest, disk / "ledger.sqlite3")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_ledger_on_a_read_only_disk_can_be_looked_at(
    gpu_forecasters: Command, read_only_disk: Path
) -> None:
    assert gpu_forecasters("ledger", "show", read_only_disk).code == 0
    assert gpu_forecasters("ledger", "upgrade", read_only_disk).code == 1


# -- what upgrades ----------------------------------------------------------------------------------------------------


def test_a_run_upgrades_an_older_ledger_and_keeps_it_as_it_was(
    old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, was = revision(old), old.read_bytes()
    Ledger(old).close()
    kept = old.with_name(f"ledger.sqlite3.revision-{before}")
    assert revision(old) == head_revision() and revision(kept) == before
    assert f"from revision {before} to {head_revision()}, and {kept} is what it was" in caplog.text
    Ledger(old).close()
    assert sorted(path.name for path in old.parent.iterdir() if path.name.startswith("ledger.sqlite3.")) == [
        kept.name
    ]
    old.write_bytes(was)  # the old one again
    Ledger(old).close()
    assert revision(kept) == before and revision(kept.with_name(f"{kept.name}-2")) == before


def test_without_room_for_a_copy_nothing_is_upgraded(oldest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = revision(oldest)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        LedgerWriteError, match="was not upgraded, since no copy of it could be kept.*No space left"
    ):
        Ledger(oldest)
    assert revision(oldest) == before
    assert [path.name for path in oldest.parent.iterdir() if path.name.startswith(".")] == []


def test_upgrade_says_what_it_did_and_does_it_once(gpu_forecasters: Command, oldest: Path) -> None:
    before = revision(oldest)
    first, second = (gpu_forecasters("ledger", "upgrade", oldest.parent) for _ in range(2))
    assert first.out.endswith(f": revision {head_revision()}; it had revision {before}\n") and first.code == 0
    assert second.out.endswith("it had that revision already\n") and second.code == 0
    assert revision(oldest) == head_revision()


def test_there_is_nothing_to_upgrade_where_there_is_no_ledger(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    said = gpu_forecasters("ledger", "upgrade", tmp_path)
    assert said.code == 1 and said.err == f"error: there is no ledger {tmp_path}/ledger.sqlite3\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_or_missing_file_is_a_ledger_that_is_not_there_yet(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ledger.sqlite3"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LedgerMissingError):
        LedgerReader(path)


def test_a_newer_ledger_is_refused_by_readers_too(tmp_path: Path, empty_ledger: Path) -> None:
    path = Path(shutil.copy(empty_ledger, tmp_path / "ledger.sqlite3"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerError, match="schema '9999'.*upgrade gpu-forecasters-plugin"):
        LedgerReader(path)


def test_ledgers_below_a_folder_are_found_by_path_and_not_inside_runs(tmp_path: Path) -> None:
    for name in ("runs/b-0/run", "runs/a-0/run", "runs/a-0/run/checkpoints", "x/1/2/3/4/5"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "ledger.sqlite3").touch()
    (tmp_path / "runs" / "loop").symlink_to(tmp_path)
    found = [str(path.parent.relative_to(tmp_path)) for path in ledgers_below(tmp_path)]
    assert found == ["runs/a-0/run", "runs/b-0/run"]
