"""What a forecast says of the risk that its candidate fails.

Revision: 0005, after 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = ("p_invalid", "p_incorrect")


def upgrade() -> None:
    """Add the columns; rows of earlier versions have none of these."""
    for name in _COLUMNS:
        op.add_column("decision", sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in reversed(_COLUMNS):
        op.drop_column("decision", name)
