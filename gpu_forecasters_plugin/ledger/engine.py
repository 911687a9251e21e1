"""Opening a ledger's database, and translating its errors.

SQLite: write-ahead log, full synchronisation (a committed measurement survives a power cut), waits instead of
"database is locked", and every writing transaction takes the write lock at once.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from gpu_forecasters_plugin.errors import LedgerError, LedgerWriteError, MissingExtraError
from gpu_forecasters_plugin.ledger.schema import current_revision, head_revision, upgrade_to_head

__all__ = ["LEDGER_FILE", "open_engine", "reading", "resolve_url", "writing"]

LEDGER_FILE = "ledger.sqlite3"
"""Name of the ledger in a run's folder."""

BUSY_TIMEOUT_MS = 60_000
_MIGRATION_LOCK = 0x67707566
"""Key of PostgreSQL's advisory lock while the schema is upgraded."""

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
    """Path of a database file, relative to a folder."""
    try:
        path = str((base or Path.cwd()) / Path(text).expanduser())
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


def _configure_sqlite(dbapi_connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own implicit BEGIN would take the write lock too late.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _prepare_file(url: URL) -> None:
    """Fail early, with the path in the message, where SQLite would say "unable to open database file"."""
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as error:
        raise LedgerError(f"cannot create the ledger {path}: {error.strerror}") from None
    if is_folder:
        raise LedgerError(f"ledger {path} is a folder; give a file")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise LedgerError(f"ledger {path} cannot be written: {target} is read-only")


def _forget_after_fork(engine: Engine) -> None:
    """A forked child must not use, nor close, connections of its parent."""
    reference = weakref.ref(engine)

    def forget() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.dispose(close=False)

    os.register_at_fork(after_in_child=forget)


def _check_holds_ledger(engine: Engine) -> None:
    """Before anything is changed: somebody else's database stays as it is."""
    with reading(engine) as connection:
        found = current_revision(connection)
    engine.dispose()
    if found is None:
        raise LedgerError(f"{engine.url.database} holds no ledger")


def open_engine(target: str | Path, base: Path | None = None, *, create: bool = True) -> Engine:
    """Open a ledger's database and bring its schema to the newest revision.

    Args:
        target: SQLAlchemy URL, or the path of an SQLite file.
        base: folder that a relative path is relative to.
        create: make a new ledger where there is none; otherwise that is an error.

    Raises:
        LedgerError: unsupported database, unwritable path, not a ledger, or written by a newer version.
        MissingExtraError: PostgreSQL without its driver.
    """
    url = resolve_url(target, base)
    is_sqlite = url.get_backend_name() == "sqlite"
    if is_sqlite:
        if not create and not Path(str(url.database)).exists():
            raise LedgerError(f"there is no ledger {url.database}")
        _prepare_file(url)
    try:
        engine = create_engine(url)
    except ModuleNotFoundError:
        raise MissingExtraError("psycopg", "postgres") from None
    if not create:
        _check_holds_ledger(engine)
    if is_sqlite:
        event.listen(engine, "connect", _configure_sqlite)
    _forget_after_fork(engine)
    with _translated(url):
        with engine.connect() as connection:
            ready = current_revision(connection) == head_revision()
        if not ready:
            with writing(engine) as connection:
                if not is_sqlite:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                upgrade_to_head(connection)
    return engine


@contextmanager
def _translated(url: URL) -> Iterator[None]:
    """Database errors as ours, without the statement and its values."""
    try:
        yield
    except DBAPIError as error:
        name = url.database if url.get_backend_name() == "sqlite" else url.render_as_string()
        reason = " ".join(str(error.orig).split())
        if isinstance(error.orig, sqlite3.OperationalError):
            raise LedgerWriteError(f"ledger {name} cannot be read or written: {reason}") from error
        raise LedgerError(f"ledger {name}: {reason}") from error
    except SQLAlchemyError as error:
        raise LedgerError(f"ledger {url.render_as_string()}: {error}") from error
    except UnicodeEncodeError as error:  # in a name: sources and messages are escaped
        raise LedgerError(
            f"ledger {url.render_as_string()}: {error.object!r} is not valid Unicode"
        ) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection to read with."""
    with _translated(engine.url), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine, *, flush: bool = True) -> Iterator[Connection]:
    """A transaction that holds the write lock from its start, committed when the block ends without error.

    Args:
        engine: the ledger's database.
        flush: wait until the disk has it. Without, it survives the end of any process, and the next flushed
            transaction takes it along; only a power cut in between loses it.
    """
    with _translated(engine.url), engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
