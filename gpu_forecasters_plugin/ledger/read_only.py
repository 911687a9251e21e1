"""Opening a ledger to look at it: nothing in it changes, whatever version of this package has written it.

A ledger of an older revision is read through an upgraded copy. Readers keep no writer waiting, and wait for none.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import weakref
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from gpu_forecasters_plugin.errors import LedgerError, LedgerMissingError
from gpu_forecasters_plugin.ledger.engine import connected_engine, reading, writable_engine, writing
from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE, ledgers_below, resolve_url, shown_url
from gpu_forecasters_plugin.ledger.schema import check_known, current_revision, head_revision, upgrade_to_head
from gpu_forecasters_plugin.ledger.sqlite_files import connect_to_read, copy_database, write_stamp
from gpu_forecasters_plugin.printable import listed

__all__ = ["COPIED_AT", "ledger_revision", "open_to_read"]

COPIED_AT = "gpu_forecasters_copied_at"
"""Execution option of an engine on a copy: the write stamp that the ledger had before it was copied."""


def open_to_read(target: str | Path, base: Path | None = None) -> Engine:
    """Open a ledger that is there, for reading alone.

    Args:
        target: SQLAlchemy URL, or the path of an SQLite file.
        base: folder that a relative path is relative to.

    Raises:
        LedgerError: there is no ledger, it cannot be read, it was written by a newer version, or it is a PostgreSQL
            database of an older one.
        MissingExtraError: PostgreSQL without its driver.
    """
    url = resolve_url(target, base)
    engine = _engine(url)
    try:
        found = _revision(engine)
        if found is None:
            raise LedgerMissingError(f"{shown_url(url)} holds no ledger")
        check_known(found)
        if found == head_revision():
            return engine
    except BaseException:
        engine.dispose()
        raise
    engine.dispose()
    if url.get_backend_name() != "sqlite":
        raise LedgerError(
            f"ledger {shown_url(url)} has schema {found!r}, and this version reads {head_revision()!r}: upgrade it "
            "with gpu-forecasters ledger upgrade, after which older versions cannot use it any more"
        )
    return _engine_on_upgraded_copy(url)


def ledger_revision(url: URL) -> str | None:
    """The schema's revision of a database that is there; ``None`` when it holds no ledger.

    Raises:
        LedgerError: it cannot be read.
        MissingExtraError: PostgreSQL without its driver.
    """
    engine = _engine(url)
    try:
        return _revision(engine)
    finally:
        engine.dispose()


def _revision(engine: Engine) -> str | None:
    with reading(engine) as connection:
        return current_revision(connection)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return connected_engine(url, execution_options={"postgresql_readonly": True})
    path = Path(str(url.database))
    if not path.exists():
        raise LedgerMissingError(f"there is no ledger {path}{_instead(path)}")
    if path.is_dir():
        raise LedgerError(f"ledger {path} is a folder; give a file")
    return connected_engine(url, creator=lambda: connect_to_read(path))


def _instead(path: Path) -> str:
    """Whoever names a comparison's folder means the ledgers of its runs."""
    below = ledgers_below(path.parent) if path.name == LEDGER_FILE else []
    return f"; there are: {listed(below)}" if below else ""


def _engine_on_upgraded_copy(url: URL) -> Engine:
    """An engine on a temporary copy, which is deleted with it."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-forecasters-"))
    copy = folder / "copy.sqlite3"
    stamp = write_stamp(Path(str(url.database)))
    try:
        _copy_and_upgrade(url, copy)
        # Under the ledger's own URL: that is what messages are to name.
        engine = connected_engine(
            url, creator=lambda: connect_to_read(copy), execution_options={COPIED_AT: stamp}
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(engine, shutil.rmtree, folder, ignore_errors=True)
    return engine


def _copy_and_upgrade(url: URL, copy: Path) -> None:
    try:
        copy_database(Path(str(url.database)), copy)
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"ledger {url.database} cannot be copied to be read: {error}") from None
    engine = writable_engine(URL.create("sqlite", database=str(copy)))
    with writing(engine) as connection:
        upgrade_to_head(connection)
    engine.dispose()
