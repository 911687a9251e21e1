"""What the proposals have cost that were not measured."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["ATTEMPT_STAGE", "SkippedCosts"]

ATTEMPT_STAGE = "surrogate"
"""Stage of our rows among the host's attempts."""

_SHARE = "surrogate_skipped_cost"
_COSTS = ("embed_cost", "novelty_cost")


class SkippedCosts:
    """Adds them to the cost of the next program that the host stores, which is where it counts costs.

    So its cost limit and its plots know all that was paid, after a resume too.
    """

    def __init__(self, database: Path) -> None:
        """Start with what an earlier run has left.

        Args:
            database: the host's, which need not exist.
        """
        self._unbooked = self._carried = _left_in(database)

    def skipped(self, job: Any) -> float:
        """Note what a job's proposal has cost, in the host's unit."""
        data = job.meta_patch_data or {}
        cost = float(data.get("api_costs") or 0.0) + sum(float(getattr(job, name) or 0.0) for name in _COSTS)
        self._unbooked += cost
        return cost

    def book(self, job: Any) -> None:
        """Add what is not booked yet to a job that the host is about to store."""
        data = job.meta_patch_data
        data["api_costs"] = (data.get("api_costs") or 0.0) + self._unbooked
        data[_SHARE] = self._unbooked
        self._unbooked = 0.0

    def carry_over(self, runner: Any) -> None:
        """Tell a resumed runner, once it has summed up its own database, what that does not hold."""
        runner.total_api_cost += self._carried
        self._carried = 0.0


def _left_in(database: Path) -> float:
    if not database.exists():
        return 0.0
    with closing(sqlite3.connect(database, timeout=60.0)) as connection:
        try:
            attempts = connection.execute(
                "SELECT details FROM attempt_log WHERE stage = ?", (ATTEMPT_STAGE,)
            ).fetchall()
            programs = connection.execute("SELECT metadata FROM programs").fetchall()
        except sqlite3.DatabaseError:  # killed before it had tables
            return 0.0
    paid = sum(json.loads(text)["cost"] for (text,) in attempts)
    booked = sum(json.loads(text or "{}").get(_SHARE) or 0.0 for (text,) in programs)
    return max(0.0, float(paid - booked))
