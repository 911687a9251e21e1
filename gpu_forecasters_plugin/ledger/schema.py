"""Bringing a database to the newest revision of the schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from gpu_forecasters_plugin.errors import LedgerError

__all__ = ["current_revision", "head_revision", "upgrade_to_head"]


def _alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head_revision() -> str:
    """The revision that this version of the package writes."""
    head = ScriptDirectory.from_config(_alembic_config()).get_current_head()
    assert head is not None  # the package ships at least one revision
    return head


def current_revision(connection: Connection) -> str | None:
    """The revision of a database; ``None`` when it has no ledger yet."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade_to_head(connection: Connection) -> None:
    """Create the tables, or upgrade those of an older version.

    Raises:
        LedgerError: the database was written by a newer version of this package.
    """
    current = current_revision(connection)
    if current == head_revision():
        return
    known = {
        revision.revision for revision in ScriptDirectory.from_config(_alembic_config()).walk_revisions()
    }
    if current is not None and current not in known:
        raise LedgerError(
            f"ledger has schema {current!r}, which this version does not know: upgrade gpu-forecasters-plugin"
        )
    command.upgrade(_alembic_config(connection), "head")
