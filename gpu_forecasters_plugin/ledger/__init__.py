"""The ledger: the durable record of forecasts, decisions, charges and measurements."""

from gpu_forecasters_plugin.ledger.records import (
    BudgetUse,
    Charge,
    DecisionDraft,
    PoolDraft,
    RunIdentity,
    Worker,
)
from gpu_forecasters_plugin.ledger.store import Ledger, Result

__all__ = [
    "BudgetUse",
    "Charge",
    "DecisionDraft",
    "Ledger",
    "PoolDraft",
    "Result",
    "RunIdentity",
    "Worker",
]
