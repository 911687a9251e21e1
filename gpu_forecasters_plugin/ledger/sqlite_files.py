"""SQLite files of ledgers: reading one without changing it, and copying one, even while it is being written."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from urllib.parse import quote

from gpu_forecasters_plugin.errors import LedgerWriteError

__all__ = ["BUSY_TIMEOUT_MS", "Stamp", "connect_to_read", "copy_database", "keep_copy", "write_stamp"]

Stamp = tuple[tuple[int, int] | None, ...]
"""Time of the last write, in nanoseconds since the epoch, and size of each file of a database; ``None`` without it."""

BUSY_TIMEOUT_MS = 60_000
"""How long a connection waits for others."""


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, for any thread.

    Where it may, it is one of those that share the write-ahead log with all others: the last of them to close puts
    the log into the database, so that a reader that outlives the writer leaves things as the writer would have.

    Raises:
        sqlite3.Error: there is no such file, or it cannot be opened.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        option = "mode=rw"
    elif path.with_name(f"{path.name}-wal").exists():
        option = "mode=ro"
    else:
        option = "immutable=1"  # nobody writes, and SQLite must not create files of its own
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{option}",
        uri=True,
        timeout=BUSY_TIMEOUT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only=ON")
    return connection


def write_stamp(path: Path) -> Stamp:
    """What differs once a database has been written to: by its file and its write-ahead log."""
    return tuple(_file_stamp(file) for file in (path, path.with_name(f"{path.name}-wal")))


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def copy_database(source: Path, target: Path) -> None:
    """Copy all that is committed, what only the write-ahead log holds included.

    Raises:
        sqlite3.Error: the source cannot be read, or the target cannot be written.
    """
    with closing(connect_to_read(source)) as read, closing(sqlite3.connect(target)) as written:
        read.backup(written)


def keep_copy(path: Path, revision: str) -> Path:
    """Keep a ledger as it is, beside itself, before its schema is upgraded.

    Args:
        path: the ledger.
        revision: the revision that it has.

    Returns:
        The copy; one that is there already is not written over.

    Raises:
        LedgerWriteError: there is no place for it.
    """
    names = (f"{path.name}.revision-{revision}{f'-{n}' if n > 1 else ''}" for n in count(1))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    unfinished = path.with_name(f".{target.name}.{os.getpid()}")
    try:
        copy_database(path, unfinished)
        os.replace(unfinished, target)
    except (sqlite3.Error, OSError) as error:
        raise LedgerWriteError(
            f"ledger {path} was not upgraded, since no copy of it could be kept: {error}"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
    return target
