"""What a forecast cost in GPU time, and what speaks against it.

Revision: 0003, after 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; forecasts of earlier versions have none of these."""
    op.add_column("decision", sa.Column("forecast_gpu_seconds", sa.Float(), nullable=True))
    op.add_column("decision", sa.Column("covered_mass", sa.Float(), nullable=True))
    op.add_column("decision", sa.Column("suspicions", sa.JSON(), nullable=True))
    op.add_column("decision", sa.Column("disagrees", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in ("disagrees", "suspicions", "covered_mass", "forecast_gpu_seconds"):
        op.drop_column("decision", name)
