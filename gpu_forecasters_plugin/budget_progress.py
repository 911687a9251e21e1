"""Shows how far a run's budget is while its host works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpu_forecasters_plugin.errors import LedgerError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.progress import WorkProgress

__all__ = ["budget_progress"]

_EVERY_S = 1.0


@contextmanager
def budget_progress(gate: Gate, ledger: Ledger) -> Iterator[None]:
    """Follow the ledger from a thread, on the terminal."""
    ended = threading.Event()

    def look() -> None:
        best = gate.best_speedup
        label = "no speed-up yet" if best is None else f"best {best:.2f}x"
        with suppress(LedgerError):  # the run itself says so, and ends
            progress.update(ledger.budget_use().measurements, label)

    def follow() -> None:
        while not ended.wait(_EVERY_S):
            look()

    with WorkProgress(gate.config.budget.measurements) as progress:
        thread = threading.Thread(target=follow, name="gpu-forecasters-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            look()
