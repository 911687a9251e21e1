"""Rows imported from elsewhere.

Revision: 0002, after 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "imported",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("row_id", sa.Text(), nullable=False),
        sa.Column("candidate_key", sa.String(length=64), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("reference_code", sa.Text(), nullable=False),
        sa.Column("candidate_code", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("time_us", sa.Float(), nullable=True),
        sa.Column("reason", sa.String(length=20), nullable=True),
        sa.Column("sampling_probability", sa.Float(), nullable=True),
        sa.Column("imported_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_imported")),
        sa.UniqueConstraint("digest", name=op.f("uq_imported_digest")),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("imported")
