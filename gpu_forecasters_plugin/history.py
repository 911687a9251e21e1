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
        self.revision = 0
        self._results: dict[int, Result] = {}
        self._answers: dict[str, Result] = {}
        self.best: Observation | None = None

    @property
    def finished(self) -> int:
        """Measurements that have ended, whatever their outcome."""
        return len(self._results)

    def refresh(self) -> None:
        """Read what was written since the last time."""
        news = self._ledger.results_since(self.revision)
        for result in news:
            self.revision = result.revision
            self._results[result.decision_id] = result
            if self._answers_for_source(result):
                self._answers[result.candidate_key] = result
        if news:
            self.best = max(self.observations(), key=lambda o: (o.speedup, o.candidate_key), default=None)

    def _answers_for_source(self, result: Result) -> bool:
        """Whether a result says more about its source than what is known."""
        outcome, known = result.measurement.outcome, self._answers.get(result.candidate_key)
        if outcome is Outcome.INFRASTRUCTURE or result.provisional:
            return False
        if result.candidate_key == self._reference.key and outcome is not Outcome.OK:
            return False  # the user mends evaluator, metric or program, and it is measured again
        # An evaluator that answers after it was given up has no say once the source was measured again.
        return outcome is not Outcome.LATE or known is None or known.decision_id == result.decision_id

    def answer(self, candidate_key: str) -> Measurement | None:
        """The measurement that answers for a source."""
        result = self._answers.get(candidate_key)
        return result.measurement if result is not None else None

    def last_of(self, candidate_key: str) -> Measurement | None:
        """The latest result of a source, whether or not it answers for it."""
        found = [r for _, r in sorted(self._results.items()) if r.candidate_key == candidate_key]
        return found[-1].measurement if found else None

    def provisional(self, decision_id: int) -> Measurement | None:
        """A result of which more may follow."""
        result = self._results.get(decision_id)
        return result.measurement if result is not None and result.provisional else None

    def observations(self) -> list[Observation]:
        """Everything a forecaster may learn from, by pool and key: an order that arrival cannot change."""
        found = [observation for r in self._results.values() if (observation := r.observation) is not None]
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
            expected = result.expected_log2
            if expected is not None and speedup is not None:
                pools.setdefault(result.pool_number, []).append((expected, math.log2(speedup)))
        return trust([pools[number] for number in sorted(pools)], config)
