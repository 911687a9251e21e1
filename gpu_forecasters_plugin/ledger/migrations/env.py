"""Alembic environment: runs on the connection that the ledger hands over."""

from alembic import context

from gpu_forecasters_plugin.ledger.models import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
