"""Bringing a database to the newest revision of the schema.

Alembic is loaded only where there is something to bring: every process of a run opens the ledger, and importing it
takes each of them longer than all the rest of opening.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, inspect, select, table

from gpu_forecasters_plugin.errors import LedgerError

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["check_known", "current_revision", "head_revision", "upgrade_to_head"]

_MIGRATIONS = Path(__file__).with_name("migrations")
_VERSION = table("alembic_version", column("version_num"))


def _revisions() -> list[str]:
    """Every revision, oldest first: the numbers that their files' names begin with."""
    return sorted(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def head_revision() -> str:
    """The revision that this version of the package writes."""
    return _revisions()[-1]


def current_revision(connection: Connection) -> str | None:
    """The revision of a database; ``None`` when it has no ledger yet."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar()


def _alembic_config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def check_known(revision: str | None) -> None:
    """Refuse what this version does not know.

    Raises:
        LedgerError: the database was written by a newer version of this package.
    """
    if revision is not None and revision not in _revisions():
        raise LedgerError(
            f"ledger has schema {revision!r}, which this version does not know: upgrade gpu-forecasters-plugin"
        )


def upgrade_to_head(connection: Connection) -> None:
    """Create the tables, or upgrade those of an older version.

    Raises:
        LedgerError: the database was written by a newer version of this package.
    """
    current = current_revision(connection)
    if current == head_revision():
        return
    check_known(current)
    from alembic import command

    command.upgrade(_alembic_config(connection), "head")
