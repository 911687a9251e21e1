"""Opening a ledger's database, and translating its errors.

SQLite: write-ahead log, full synchronisation (a committed measurement survives a power cut), waits instead of
"database is locked", and every writing transaction takes the write lock at once.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gpu_forecasters_plugin.errors import LedgerError, LedgerWriteError, MissingExtraError
from gpu_forecasters_plugin.ledger.locating import resolve_url, shown_url
from gpu_forecasters_plugin.ledger.schema import (
    check_known,
    current_revision,
    head_revision,
    upgrade_to_head,
)
from gpu_forecasters_plugin.ledger.sqlite_files import BUSY_TIMEOUT_MS, keep_copy

__all__ = [
    "connected_engine",
    "open_engine",
    "reading",
    "writable_engine",
    "writing",
]

logger = logging.getLogger(__name__)

_MIGRATION_LOCK = 0x67707566
"""Key of PostgreSQL's advisory lock while the schema is upgraded."""


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


def connected_engine(url: URL, **options: Any) -> Engine:
    """An engine for the database of a URL, as :func:`sqlalchemy.create_engine` makes it; safe to fork.

    Raises:
        MissingExtraError: PostgreSQL without its driver.
    """
    try:
        engine = create_engine(url, **options)
    except ModuleNotFoundError:
        raise MissingExtraError("psycopg", "postgres") from None
    _forget_after_fork(engine)
    return engine


def writable_engine(url: URL) -> Engine:
    """An engine whose connections may write, and wait for each other."""
    engine = connected_engine(url)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
    return engine


def open_engine(target: str | Path, base: Path | None = None, *, create: bool = True) -> Engine:
    """Open a ledger's database for writing, and bring its schema to the newest revision.

    Of an SQLite ledger that has an older revision a copy is kept beside it.

    Args:
        target: SQLAlchemy URL, or the path of an SQLite file.
        base: folder that a relative path is relative to.
        create: make a new ledger where there is none; otherwise that is an error.

    Raises:
        LedgerError: unsupported database, unwritable path, not a ledger, or written by a newer version.
        MissingExtraError: PostgreSQL without its driver.
    """
    url = resolve_url(target, base)
    if url.get_backend_name() == "sqlite":
        if not create and not Path(str(url.database)).exists():
            raise LedgerError(f"there is no ledger {url.database}")
        _prepare_file(url)
    if not create:
        _check_holds_ledger(connected_engine(url))
    engine = writable_engine(url)
    with reading(engine) as connection:
        ready = current_revision(connection) == head_revision()
    if not ready:
        _upgrade(engine)
    return engine


def _upgrade(engine: Engine) -> None:
    """Create the tables, or upgrade those of an older version, unless another process just did."""
    is_sqlite = engine.dialect.name == "sqlite"
    with writing(engine) as connection:
        if not is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        found = current_revision(connection)
        check_known(found)
        if found is not None and found != head_revision():
            kept = (
                f", and {keep_copy(Path(str(engine.url.database)), found)} is what it was"
                if is_sqlite
                else ""
            )
            logger.warning(
                "ledger %s is upgraded from revision %s to %s%s",
                shown_url(engine.url),
                found,
                head_revision(),
                kept,
            )
        upgrade_to_head(connection)


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Database errors as ours, without the statement and its values."""
    try:
        yield
    except DBAPIError as error:
        name = shown_url(url)
        reason = " ".join(str(error.orig).split())
        if isinstance(error.orig, sqlite3.OperationalError):
            raise LedgerWriteError(f"ledger {name} cannot be read or written: {reason}") from error
        raise LedgerError(f"ledger {name}: {reason}") from error
    except json.JSONDecodeError as error:
        raise LedgerError(
            f"ledger {shown_url(url)} is damaged: what should be JSON is none ({error})"
        ) from error
    except SQLAlchemyError as error:
        raise LedgerError(f"ledger {url.render_as_string()}: {error}") from error
    except UnicodeEncodeError as error:  # in a name: sources and messages are escaped
        raise LedgerError(
            f"ledger {url.render_as_string()}: {error.object!r} is not valid Unicode"
        ) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection to read with."""
    with translated_errors(engine.url), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine, *, flush: bool = True) -> Iterator[Connection]:
    """A transaction that holds the write lock from its start, committed when the block ends without error.

    Args:
        engine: the ledger's database.
        flush: wait until the disk has it. Without, it survives the end of any process, and the next flushed
            transaction takes it along; only a power cut in between loses it.
    """
    with translated_errors(engine.url), engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
