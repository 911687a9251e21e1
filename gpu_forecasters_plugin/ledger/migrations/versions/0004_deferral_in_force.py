"""The deferral that a pool was decided by, whether its forecaster had drifted, and what candidates are derived from.

Revision: 0004, after 0003.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; rows of earlier versions have none of these."""
    op.add_column("pool", sa.Column("threshold", sa.Float(), nullable=True))
    op.add_column("pool", sa.Column("threshold_from", sa.String(length=20), nullable=True))
    op.add_column("pool", sa.Column("miscalibrated", sa.Boolean(), nullable=True))
    op.add_column("pool", sa.Column("drift_evidence", sa.Float(), nullable=True))
    op.add_column("decision", sa.Column("parent_key", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("decision", "parent_key")
    for name in ("drift_evidence", "miscalibrated", "threshold_from", "threshold"):
        op.drop_column("pool", name)
