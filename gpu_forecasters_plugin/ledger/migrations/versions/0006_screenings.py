"""What the compiler said of each candidate that was screened.

Revision: 0006, after 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; runs of earlier versions have no rows in it."""
    op.create_table(
        "screening",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("candidate_key", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("fault", sa.String(length=20), nullable=True),
        sa.Column("line", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("stopped", sa.Text(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("sandbox", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_screening_run_id_run"),
        sa.PrimaryKeyConstraint("run_id", "candidate_key", name="pk_screening"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("screening")
