"""Tables of the ledger.

Times are seconds since the epoch (UTC). Nothing here holds a credential: identities are hashes and names.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

__all__ = ["candidate", "decision", "imported", "measurement", "metadata", "pool", "run", "screening"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(400), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("package_version", String(40), nullable=False),
    # The identity: a resume must agree in every one of these.
    Column("task", String(400), nullable=False),
    Column("reference_key", String(64), nullable=False),
    Column("evaluator_hash", String(64), nullable=False),
    Column("device", String(200), nullable=False),
    Column("driver", String(100), nullable=False),
    Column("bin_scheme", String(40), nullable=False),
    Column("forecaster", String(200), nullable=False),
    Column("model", String(400), nullable=False),
    Column("prompt_hash", String(64), nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("config", JSON, nullable=False),
)

candidate = Table(
    "candidate",
    metadata,
    Column("run_id", Integer, ForeignKey("run.id"), primary_key=True),
    Column("key", String(64), primary_key=True),
    # As first seen; what a database would refuse is escaped, so that no byte of a broken source is lost.
    Column("code", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

pool = Table(
    "pool",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, ForeignKey("run.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("trust", Float, nullable=False),
    Column("anchor_key", String(64), nullable=False),
    Column("anchor_speedup", Float, nullable=False),
    Column("forecast_seconds", Float, nullable=False),
    # The deferral in force: its threshold, where that came from, and whether forecasts had become miscalibrated.
    Column("threshold", Float),
    Column("threshold_from", String(20)),
    Column("miscalibrated", Boolean),
    Column("drift_evidence", Float),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("run_id", "number"),
)

decision = Table(
    "decision",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, ForeignKey("run.id"), nullable=False),
    Column("pool_id", Integer, ForeignKey("pool.id"), nullable=False, index=True),
    Column("candidate_id", String(400), nullable=False),
    Column("candidate_key", String(64), nullable=False),
    # The program that it was derived from, where the host tells.
    Column("parent_key", String(64)),
    Column("action", String(20), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("score", Float),
    Column("confidence", Float),
    Column("sampling_probability", Float),
    # The forecast, or why there is none.
    Column("probabilities", JSON),
    Column("components", JSON),
    Column("raw_sum", Float),
    Column("source", String(200)),
    Column("failure", String(20)),
    Column("failure_detail", Text),
    Column("seconds", Float),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("forecast_gpu_seconds", Float),
    Column("covered_mass", Float),
    Column("suspicions", JSON),
    Column("disagrees", Boolean),
    # The risk that it does not build or run, and that it gives wrong results, as far as the forecast foretells it.
    Column("p_invalid", Float),
    Column("p_incorrect", Float),
    Column("created_at", Float, nullable=False),
    Index("ix_decision_run_key", "run_id", "candidate_key"),
)

measurement = Table(
    "measurement",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, ForeignKey("run.id"), nullable=False),
    Column("decision_id", Integer, ForeignKey("decision.id"), nullable=False, unique=True),
    Column("candidate_key", String(64), nullable=False),
    # Written when the budget is charged, before the evaluator is called.
    Column("charged_at", Float, nullable=False),
    Column("worker_host", String(200), nullable=False),
    Column("worker_pid", Integer, nullable=False),
    Column("worker_started_at", Float, nullable=False),
    # Written when it has ended; revision counts the run's result writes, so that readers can follow.
    Column("revision", Integer),
    Column("provisional", Boolean, nullable=False, default=False),
    Column("outcome", String(20)),
    Column("value", Float),
    Column("time_us", Float),
    Column("speedup", Float),
    Column("gpu_seconds", Float),
    Column("error", Text),
    Column("payload", Text),
    Column("finished_at", Float),
    Index("ix_measurement_run_revision", "run_id", "revision"),
    Index("ix_measurement_run_key", "run_id", "candidate_key"),
)

# What the compiler said of a source, where a screen was in force; an undecided verdict gives way to a decided one.
screening = Table(
    "screening",
    metadata,
    Column("run_id", Integer, ForeignKey("run.id"), primary_key=True),
    Column("candidate_key", String(64), primary_key=True),
    Column("status", String(20), nullable=False),
    Column("fault", String(20)),
    Column("line", Integer),
    # In the compiler's words, of which the candidate chooses some.
    Column("message", Text, nullable=False),
    Column("stopped", Text, nullable=False),
    Column("profile", JSON),
    Column("seconds", Float, nullable=False),
    Column("cpu_seconds", Float, nullable=False),
    Column("sandbox", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
)

# Measurements of elsewhere, for training and evaluation. No run reads this table: what is in it answers for nothing.
imported = Table(
    "imported",
    metadata,
    Column("id", Integer, primary_key=True),
    # Of all that the row says, so that the same file twice is the same rows once.
    Column("digest", String(64), nullable=False, unique=True),
    Column("row_id", Text, nullable=False),
    Column("candidate_key", String(64), nullable=False),
    Column("task", Text, nullable=False),
    Column("language", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("reference_code", Text, nullable=False),
    Column("candidate_code", Text, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("speedup", Float),
    Column("time_us", Float),
    Column("reason", String(20)),
    Column("sampling_probability", Float),
    Column("imported_at", Float, nullable=False),
)
