"""What an observer is told, as immutable values.

Times are seconds since the epoch. Speed-ups are over the run's reference: above 1 is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.decision import Decision, Measurement
from gpu_forecasters_plugin.forecast import ForecastOutcome
from gpu_forecasters_plugin.ledger import RunIdentity

__all__ = ["DecisionTaken", "Event", "ForecastMade", "MeasurementEnded", "RunEnded", "RunStarted"]


@dataclass(frozen=True)
class RunStarted:
    """A run was begun, or goes on.

    Attributes:
        time: when.
        run_key: identity of this run and no other; the same when it is resumed.
        run_name: its name in the ledger.
        identity: task, device, forecaster, seed and so on.
        config: the ``surrogate:`` section, without the ledger's URL.
        resumed: an earlier process had begun it. What that one was not told any more is not told again.
    """

    time: float
    run_key: str
    run_name: str
    identity: RunIdentity
    config: dict[str, Any]
    resumed: bool


@dataclass(frozen=True)
class ForecastMade:
    """The forecaster has answered about a candidate.

    Attributes:
        time: when its pool was decided.
        pool_number: number of the pool in the run, from 0.
        candidate_id: the host's name of the candidate.
        candidate_key: identity of its source.
        outcome: the forecast, or the typed failure.
        anchor_speedup: measured speed-up of the kernel that the forecast's bins are relative to.
    """

    time: float
    pool_number: int
    candidate_id: str
    candidate_key: str
    outcome: ForecastOutcome
    anchor_speedup: float


@dataclass(frozen=True)
class DecisionTaken:
    """A candidate is to be measured, or not.

    Attributes:
        time: when its pool was decided.
        pool_number: number of the pool in the run, from 0.
        decision: action, reason, score and confidence.
        trust: share of its slots that the surrogate kept in that pool.
    """

    time: float
    pool_number: int
    decision: Decision
    trust: float


@dataclass(frozen=True)
class MeasurementEnded:
    """The host's real evaluator has answered, or was given up.

    Attributes:
        time: when.
        decision_id: the decision that it follows.
        candidate_key: identity of the source.
        pool_number: number of the pool in the run, from 0.
        reason: why it was measured.
        measurement: what came of it; without its payload.
        number: how many measurements have ended by now, this one included.
        best_speedup: the largest so far, this one included; ``None`` before the first that is ``ok``.
    """

    time: float
    decision_id: int
    candidate_key: str
    pool_number: int
    reason: str
    measurement: Measurement
    number: int
    best_speedup: float | None


@dataclass(frozen=True)
class RunEnded:
    """This process is done with the run; another may resume it.

    Attributes:
        time: when.
        measurements: measurements that have ended.
        best_speedup: the largest; ``None`` without any.
    """

    time: float
    measurements: int
    best_speedup: float | None


Event = RunStarted | ForecastMade | DecisionTaken | MeasurementEnded | RunEnded
