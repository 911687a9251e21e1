"""The ledger keeps its contract on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.testing import LedgerContract


class TestSqlite(LedgerContract):
    @pytest.fixture
    def open_ledger(self, tmp_path: Path, empty_ledger: Path) -> Callable[[], Ledger]:
        path = tmp_path / "contract.sqlite3"
        path.write_bytes(empty_ledger.read_bytes())
        return lambda: Ledger(path)


def postgres_programs() -> Path | None:
    """Folder of ``initdb`` and ``pg_ctl``, which Debian does not put on the path."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/bin")]
    found += [Path(folder).parent for folder in filter(None, [shutil.which("initdb")])]
    return next((folder for folder in found if (folder / "initdb").exists()), None)


PROGRAMS = postgres_programs()
NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL, up to the database's name, of a server of our own that listens on a socket alone."""
    assert PROGRAMS is not None
    # Not in pytest's own folder, whose path is too long for a socket and closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # The server refuses to run as root, as whom containers run their tests.
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)

    def call(program: str, *arguments: str) -> None:
        command = [str(PROGRAMS / program), *arguments]
        done = subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    call("initdb", "--pgdata", f"{folder}/data", "--username", "tester", "--auth", "trust", "--no-sync")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    start = ["start", "--pgdata", f"{folder}/data", "--wait", "--options", options, "--log", f"{folder}/log"]
    call("pg_ctl", *start)
    try:
        yield f"postgresql+psycopg://tester:hunter2@/NAME?host={folder}"
    finally:
        call("pg_ctl", "stop", "--pgdata", f"{folder}/data", "--mode", "immediate")
        shutil.rmtree(folder)


@pytest.mark.postgres
@pytest.mark.skipif(PROGRAMS is None, reason="no PostgreSQL server: apt-get install postgresql")
@pytest.mark.skipif(find_spec("psycopg") is None, reason="psycopg is missing: make test-postgres installs it")
class TestPostgres(LedgerContract):
    password = "hunter2"

    @pytest.fixture
    def open_ledger(self, postgres_server: str) -> Iterator[Callable[[], Ledger]]:
        import psycopg

        name = f"contract_{next(NUMBERS)}"
        folder = postgres_server.rpartition("host=")[2]
        with psycopg.connect(f"host={folder} user=tester dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        opened: list[Ledger] = []

        def open_one() -> Ledger:
            opened.append(Ledger(postgres_server.replace("NAME", name)))
            return opened[-1]

        yield open_one
        for ledger in opened:
            ledger.close()
