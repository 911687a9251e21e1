"""Where a ledger is: what a setting or a user names it by, as the URL of a database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gpu_forecasters_plugin.errors import LedgerError

__all__ = ["LEDGER_FILE", "ledgers_below", "named_ledger", "resolve_url", "shown_url"]

LEDGER_FILE = "ledger.sqlite3"
"""Name of the ledger in a run's folder."""

_DEEPEST = 4
"""How many folders below a comparison's its runs' ledgers may be."""

_DRIVERS = {
    "sqlite": ("pysqlite", "write sqlite:///FILE, or the path alone"),
    "postgresql": (
        "psycopg",
        "write postgresql+psycopg://..., after: pip install 'gpu-forecasters-plugin[postgres]'",
    ),
}
"""Driver of each supported database, and what to do about another one."""

_DEFAULT_DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg2"}
"""What a URL without a driver means to SQLAlchemy."""


def resolve_url(target: str | Path, base: Path | None = None) -> URL:
    """The database URL of a ledger setting.

    Args:
        target: SQLAlchemy URL, or the path of an SQLite file.
        base: folder that a relative path is relative to; the working directory by default.

    Raises:
        LedgerError: not a URL of a supported database.
    """
    text = str(target)
    if "://" not in text:
        return URL.create("sqlite", database=_database_file(text, base))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Neither the URL nor the parser's own words, which repeat parts of it: there may be a password in them.
        scheme = text.partition("://")[0]
        raise LedgerError(
            f"ledger '{scheme}://...' is not a database URL: write sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST:PORT/DATABASE"
        ) from None
    _check_driver(url)
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise LedgerError("a ledger in memory cannot be shared or resumed: give a file")
        if url.host or url.query:
            raise LedgerError("an SQLite ledger has neither host nor options: write sqlite:///FILE")
        url = url.set(database=_database_file(url.database, base))
    return url


def _database_file(text: str, base: Path | None) -> str:
    """Absolute path of a database file that is given relative to a folder: the host may change its own."""
    try:
        path = str(Path.cwd() / (base or "") / Path(text).expanduser())
        if b"\0" in path.encode():
            raise ValueError("it holds a NUL")
    except (RuntimeError, ValueError) as error:  # no such user's home; a text that no file system takes
        raise LedgerError(f"ledger {text!r} is not a path: {error}") from None
    return path


def _check_driver(url: URL) -> None:
    """Drivers are what the ledger's transactions are written for; others would fail later, and less clearly."""
    database, _, driver = url.drivername.partition("+")
    if database not in _DRIVERS:
        raise LedgerError(f"ledger database {database!r} is not supported: sqlite or postgresql")
    wanted, advice = _DRIVERS[database]
    if (driver or _DEFAULT_DRIVERS[database]) != wanted:
        raise LedgerError(
            f"ledger driver {driver or _DEFAULT_DRIVERS[database]!r} is not supported: {advice}"
        )


def shown_url(url: URL) -> str:
    """A ledger as messages name it: the path of a file, the URL of another database without its password."""
    return str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string()


def named_ledger(name: str) -> str | Path:
    """What a user names a ledger by: a run's folder, a file or a URL; as :func:`resolve_url` takes it."""
    return Path(name) / LEDGER_FILE if "://" not in name and Path(name).is_dir() else name


def ledgers_below(folder: Path) -> list[Path]:
    """The ledgers of the runs in a folder, such as a comparison's, by path."""
    return sorted(_found_below(folder, _DEEPEST))


def _found_below(folder: Path, depth: int) -> Iterator[Path]:
    ledger = folder / LEDGER_FILE
    if ledger.is_file():
        yield ledger
        return
    try:
        inner = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it has gone, or is none of ours
    for entry in inner if depth > 0 else ():
        yield from _found_below(Path(entry.path), depth - 1)
