"""The ledger: the durable record of forecasts, decisions, charges and measurements."""

from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.records import (
    BudgetUse,
    Charge,
    DecisionDraft,
    PoolDraft,
    RunIdentity,
    Worker,
)
from gpu_forecasters_plugin.ledger.results import Result
from gpu_forecasters_plugin.ledger.store import Ledger

__all__ = [
    "BudgetUse",
    "Charge",
    "DecisionDraft",
    "Ledger",
    "LedgerReader",
    "PoolDraft",
    "Result",
    "RunIdentity",
    "Worker",
]
