"""What a run has measured so far, as the gate sees it: a view that follows the ledger."""

from __future__ import annotations

import math
from typing import Literal

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import GuardConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.forecast import Observation
from gpu_forecasters_plugin.ledger import Ledger, Result
from gpu_forecasters_plugin.policies import trust

__all__ = ["History"]


class History:
    """Follows the ledger by revision, so that results of other processes are seen too."""

    def __init__(self, reference: Candidate, ledger: Ledger) -> None:
        self._reference = reference
        self._ledger = ledger
        self._revision = 0
        self._results: dict[int, Result] = {}
        self._answers: dict[str, Measurement] = {}
        self.best: Observation | None = None

    @property
    def finished(self) -> int:
        """Measurements that have ended, whatever their outcome."""
        return len(self._results)

    def refresh(self) -> bool:
        """Read what was written since the last time; whether there was anything."""
        news = self._ledger.results_since(self._revision)
        for result in news:
            self._revision = result.revision
            self._results[result.decision_id] = result
            if result.measurement.outcome is not Outcome.INFRASTRUCTURE and not result.provisional:
                self._answers[result.candidate_key] = result.measurement
        if news:
            self.best = max(self.observations(), key=lambda o: (o.speedup, o.candidate_key), default=None)
        return bool(news)

    def answer(self, candidate_key: str) -> Measurement | None:
        """The measurement that answers for a source."""
        return self._answers.get(candidate_key)

    def provisional(self, decision_id: int) -> Measurement | None:
        """A result of which more may follow."""
        result = self._results.get(decision_id)
        return result.measurement if result is not None and result.provisional else None

    def observations(self) -> list[Observation]:
        """Everything a forecaster may learn from, by pool and key: an order that arrival cannot change."""
        found = [observation for r in self._results.values() if (observation := r.observation()) is not None]
        return sorted(found, key=lambda o: (o.pool_id or 0, o.candidate_key))

    def anchor(self, kind: Literal["reference", "incumbent"]) -> tuple[str, str, float]:
        """Key, source and speed-up of the kernel that bins are relative to."""
        if kind == "incumbent" and self.best is not None:
            return self.best.candidate_key, self.best.candidate_code, self.best.speedup
        return self._reference.key, self._reference.code, 1.0

    def incumbent_log2(self, anchor_speedup: float) -> float:
        """log2 speed-up of the best kernel so far over the anchor; the reference counts as measured."""
        best = max(1.0, self.best.speedup) if self.best is not None else 1.0
        return math.log2(best / anchor_speedup)

    def trust(self, config: GuardConfig) -> float:
        """The guard's verdict on the forecasts so far."""
        pools: dict[int, list[tuple[float, float]]] = {}
        for _, result in sorted(self._results.items()):
            speedup = result.measurement.speedup
            if result.score is not None and speedup is not None:
                pools.setdefault(result.pool_number, []).append((result.score, math.log2(speedup)))
        return trust([pools[number] for number in sorted(pools)], config)
