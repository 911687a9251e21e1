"""The first schema: runs, candidates, pools, decisions, measurements.

Revision: 0001, after none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=400), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("package_version", sa.String(length=40), nullable=False),
        sa.Column("task", sa.String(length=400), nullable=False),
        sa.Column("reference_key", sa.String(length=64), nullable=False),
        sa.Column("evaluator_hash", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("driver", sa.String(length=100), nullable=False),
        sa.Column("bin_scheme", sa.String(length=40), nullable=False),
        sa.Column("forecaster", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=400), nullable=False),
        sa.Column("prompt_hash", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("name", name=op.f("uq_run_name")),
    )
    op.create_table(
        "candidate",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_candidate_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("pk_candidate")),
    )
    op.create_table(
        "pool",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("trust", sa.Float(), nullable=False),
        sa.Column("anchor_key", sa.String(length=64), nullable=False),
        sa.Column("anchor_speedup", sa.Float(), nullable=False),
        sa.Column("forecast_seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_pool_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool")),
        sa.UniqueConstraint("run_id", "number", name=op.f("uq_pool_run_id")),
    )
    op.create_index(op.f("ix_pool_run_id"), "pool", ["run_id"], unique=False)
    op.create_table(
        "decision",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("candidate_id", sa.String(length=400), nullable=False),
        sa.Column("candidate_key", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=20), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("sampling_probability", sa.Float(), nullable=True),
        sa.Column("probabilities", sa.JSON(), nullable=True),
        sa.Column("components", sa.JSON(), nullable=True),
        sa.Column("raw_sum", sa.Float(), nullable=True),
        sa.Column("source", sa.String(length=200), nullable=True),
        sa.Column("failure", sa.String(length=20), nullable=True),
        sa.Column("failure_detail", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_decision_pool_id_pool")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_decision_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision")),
    )
    op.create_index(op.f("ix_decision_pool_id"), "decision", ["pool_id"], unique=False)
    op.create_index("ix_decision_run_key", "decision", ["run_id", "candidate_key"], unique=False)
    op.create_table(
        "measurement",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("decision_id", sa.Integer(), nullable=False),
        sa.Column("candidate_key", sa.String(length=64), nullable=False),
        sa.Column("charged_at", sa.Float(), nullable=False),
        sa.Column("worker_host", sa.String(length=200), nullable=False),
        sa.Column("worker_pid", sa.Integer(), nullable=False),
        sa.Column("worker_started_at", sa.Float(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("time_us", sa.Float(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("gpu_seconds", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decision.id"], name=op.f("fk_measurement_decision_id_decision")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_measurement_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("decision_id", name=op.f("uq_measurement_decision_id")),
    )
    op.create_index("ix_measurement_run_key", "measurement", ["run_id", "candidate_key"], unique=False)
    op.create_index("ix_measurement_run_revision", "measurement", ["run_id", "revision"], unique=False)


def downgrade() -> None:
    """Drop the tables."""
    op.drop_index("ix_measurement_run_revision", table_name="measurement")
    op.drop_index("ix_measurement_run_key", table_name="measurement")
    op.drop_table("measurement")
    op.drop_index("ix_decision_run_key", table_name="decision")
    op.drop_index(op.f("ix_decision_pool_id"), table_name="decision")
    op.drop_table("decision")
    op.drop_index(op.f("ix_pool_run_id"), table_name="pool")
    op.drop_table("pool")
    op.drop_table("candidate")
    op.drop_table("run")
