"""What a run has measured so far, as the gate sees it: a view that follows the ledger."""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, replace
from typing import Literal

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import GuardConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.forecast import Attempt, Observation
from gpu_forecasters_plugin.ledger import Ledger, Result
from gpu_forecasters_plugin.policies import trust

__all__ = ["Anchor", "History"]


def _by_pool_and_key(observation: Observation) -> tuple[int, str]:
    return observation.pool_id or 0, observation.candidate_key


def _attempt_by_pool_and_key(numbered: tuple[int, Attempt]) -> tuple[int, str]:
    return numbered[0], numbered[1].candidate_key


def _by_speed(observation: Observation) -> tuple[float, str]:
    return observation.speedup, observation.candidate_key


@dataclass(frozen=True)
class Anchor:
    """The kernel that bins are relative to; ``speedup`` is its own over the reference."""

    key: str
    code: str
    speedup: float


class History:
    """Follows the ledger by revision, so that results of other processes are seen too.

    Everything it knows is kept ready: a new result costs no walk over all the earlier ones.
    """

    def __init__(self, reference: Candidate, ledger: Ledger) -> None:
        self._reference = reference
        self._ledger = ledger
        self.revision = 0
        self._results: dict[int, Result] = {}
        self._answers: dict[str, Result] = {}
        self._observations: list[Observation] = []
        self._attempts: list[tuple[int, Attempt]] = []
        self._pairs: dict[int, dict[int, tuple[float, float]]] = {}
        self.best: Observation | None = None

    @property
    def finished(self) -> int:
        """Measurements that have ended, whatever their outcome."""
        return len(self._results)

    def refresh(self) -> None:
        """Read what was written since the last time."""
        for result in self._ledger.results_since(self.revision):
            self.revision = result.revision
            self._withdraw(self._results.get(result.decision_id))
            self._results[result.decision_id] = result
            self._learn(result)
            if self._answers_for_source(result):
                self._answers[result.candidate_key] = result

    def _learn(self, result: Result) -> None:
        if result.attempt is not None:
            insort(self._attempts, (result.pool_number, result.attempt), key=_attempt_by_pool_and_key)
        observation = result.observation
        if observation is None:
            return
        insort(self._observations, observation, key=_by_pool_and_key)
        self.best = observation if self.best is None else max(self.best, observation, key=_by_speed)
        if observation.forecast is not None:
            expected = observation.forecast.expected_log2() + math.log2(observation.anchor_speedup)
            pair = expected, observation.log2_speedup
            self._pairs.setdefault(result.pool_number, {})[result.decision_id] = pair

    def _withdraw(self, result: Result | None) -> None:
        """Forget a result that the next one replaces: a provisional one, or one that came after it was given up."""
        if result is None:
            return
        if result.attempt is not None:
            self._attempts.remove((result.pool_number, result.attempt))
        if result.observation is None:
            return
        self._observations.remove(result.observation)
        self._pairs.get(result.pool_number, {}).pop(result.decision_id, None)
        self.best = max(self._observations, key=_by_speed, default=None)

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
        return self._whole(result) if result is not None else None

    def _whole(self, result: Result) -> Measurement:
        """A measurement with its payload, which stays in the ledger until somebody wants it."""
        return replace(result.measurement, payload=self._ledger.payload(result.decision_id))

    @property
    def reference_time_us(self) -> float | None:
        """Measured time of the reference; ``None`` while it has none."""
        result = self._answers.get(self._reference.key)
        return None if result is None else result.measurement.time_us

    def last_of(self, candidate_key: str) -> Measurement | None:
        """The latest result of a source, whether or not it answers for it."""
        found = [r for _, r in sorted(self._results.items()) if r.candidate_key == candidate_key]
        return found[-1].measurement if found else None

    def provisional(self, decision_id: int) -> Measurement | None:
        """A result of which more may follow."""
        result = self._results.get(decision_id)
        return self._whole(result) if result is not None and result.provisional else None

    def observations(self) -> list[Observation]:
        """Everything a forecaster may learn from, by pool and key: an order that arrival cannot change."""
        return list(self._observations)

    def attempts(self) -> list[Attempt]:
        """Every measurement that says whether its candidate runs right, in the same order."""
        return [attempt for _, attempt in self._attempts]

    def anchor(self, kind: Literal["reference", "incumbent"]) -> Anchor:
        """The kernel that bins are relative to."""
        if kind == "incumbent" and self.best is not None:
            return Anchor(self.best.candidate_key, self.best.candidate_code, self.best.speedup)
        return Anchor(self._reference.key, self._reference.code, 1.0)

    def incumbent_log2(self, anchor_speedup: float) -> float:
        """log2 speed-up of the best kernel so far over the anchor; the reference counts as measured."""
        best = max(1.0, self.best.speedup) if self.best is not None else 1.0
        return math.log2(best / anchor_speedup)

    def parent_log2(self, parent_key: str | None, anchor_speedup: float) -> float | None:
        """log2 speed-up of a candidate's parent over the anchor; ``None`` where it has no measured time."""
        found = None if parent_key is None else self._answers.get(parent_key)
        speedup = None if found is None else found.measurement.speedup
        return None if speedup is None else math.log2(speedup / anchor_speedup)

    def trust(self, config: GuardConfig) -> float:
        """The guard's verdict on the forecasts so far."""
        return trust([tuple(pairs.values()) for _, pairs in sorted(self._pairs.items()) if pairs], config)
