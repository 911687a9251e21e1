"""What a killed run has left half done in its folder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gpu_forecasters_plugin.errors import HostError

__all__ = ["DATABASE", "check_database", "set_aside_unfinished"]

DATABASE = "programs.sqlite"
_ASIDE = "unfinished"


def check_database(folder: Path) -> None:
    """Make sure that ShinkaEvolve can read its database, if there is one.

    Raises:
        HostError: it cannot.
    """
    database = folder / DATABASE
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database, timeout=60.0)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise HostError(
            f"ShinkaEvolve's database {database} cannot be read: {error}; move it away to go on with an empty "
            "population (what was measured is in the ledger), or choose another output folder"
        ) from None


def set_aside_unfinished(folder: Path) -> None:
    """Move aside the proposals that a killed run had begun and ShinkaEvolve has not stored.

    A resumed run would come upon their folders, take each for the work of somebody else, and wait. A database that
    holds nothing but the initial program goes too: ShinkaEvolve would start afresh and store that a second time.

    Args:
        folder: the run's folder; what is moved goes below ``unfinished`` in it.
    """
    last = _last_stored_generation(folder / DATABASE)
    if last is None:
        return
    begun = [p for p in folder.glob("gen_*") if p.name[4:].isdigit() and int(p.name[4:]) > last]
    if last == 0:
        begun += folder.glob(f"{DATABASE}*")
    if not begun:
        return
    place = folder / _ASIDE / str(1 + sum(1 for _ in (folder / _ASIDE).glob("*")))
    place.mkdir(parents=True)
    for path in begun:
        path.rename(place / path.name)


def _last_stored_generation(database: Path) -> int | None:
    """The last generation in ShinkaEvolve's database, 0 without one; ``None`` if that cannot be told."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database, timeout=60.0)) as connection:
        try:
            row = connection.execute("SELECT MAX(generation) FROM programs").fetchone()
        except sqlite3.OperationalError:  # killed before it had a table
            return 0
        except sqlite3.DatabaseError:
            return None
    return int(row[0] or 0)
