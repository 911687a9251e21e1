"""Actions and what came of them: decisions with their reason, measurements with their outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gpu_forecasters_plugin.forecast import ForecastOutcome

__all__ = ["FAILURES", "Action", "Decision", "Measurement", "Outcome", "Reason"]


class Action(StrEnum):
    """Whether the host's real evaluator is called."""

    MEASURE = "measure"
    SKIP = "skip"


class Reason(StrEnum):
    """Why a decision was taken."""

    TOP_FRACTION = "top_fraction"
    UNCERTAIN = "uncertain"
    NO_FORECAST = "no_forecast"
    AUDIT = "audit"
    WARM_UP = "warm_up"
    FALLBACK = "fallback"
    NOT_SELECTED = "not_selected"
    DUPLICATE = "duplicate"
    INVALID_SOURCE = "invalid_source"
    BUDGET_SPENT = "budget_spent"


class Outcome(StrEnum):
    """How a measurement ended. Only ``ok`` has a time."""

    OK = "ok"
    INCORRECT = "incorrect"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"
    IMPLAUSIBLE = "implausible"
    LATE = "late"


FAILURES = frozenset(Outcome) - {Outcome.OK}


@dataclass(frozen=True)
class Measurement:
    """One call of the host's real evaluator.

    Attributes:
        outcome: how it ended.
        time_us: measured time in microseconds, when the evaluator reports one; ``None`` unless ``ok``.
        speedup: reference time / candidate time; ``None`` unless ``ok``.
        gpu_seconds: wall time that the evaluator held its worker, in seconds.
        error: first line of what went wrong.
        payload: what the host wants back when a duplicate is answered from the ledger; text.
        value: the evaluator's own metric that time or speed-up was read from, in its own unit.
    """

    outcome: Outcome
    time_us: float | None = None
    speedup: float | None = None
    gpu_seconds: float = 0.0
    error: str | None = None
    payload: str | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("time_us", self.time_us), ("speedup", self.speedup)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is a positive finite number, got {value!r}")
        if self.outcome is Outcome.OK and self.speedup is None:
            raise ValueError("a measurement with outcome ok needs a speedup")
        if self.outcome is not Outcome.OK and (self.time_us is not None or self.speedup is not None):
            raise ValueError(f"a measurement with outcome {self.outcome} has no time")
        if not (math.isfinite(self.gpu_seconds) and self.gpu_seconds >= 0):
            raise ValueError(f"gpu_seconds is a non-negative finite number, got {self.gpu_seconds!r}")


@dataclass(frozen=True)
class Decision:
    """What to do with one candidate, and why.

    Attributes:
        id: number of the decision in the ledger; pass it to ``Gate.tell``.
        candidate_id: the host's name of the candidate.
        candidate_key: identity of its normalised source.
        pool_id: the pool that it was decided in.
        action: ``measure`` or ``skip``.
        reason: why.
        score: what the ranking rule gave it; higher is more promising; ``None`` without a forecast.
        confidence: confidence of its forecast; ``None`` without one.
        forecast: the forecast or the typed failure; ``None`` when none was asked for.
        sampling_probability: chance with which a row chosen at random (``audit``, ``warm_up``, ``fallback``) was drawn.
        answer: for a ``duplicate``: the measurement that answers; ``None`` while it is still running.
        detail: for an ``invalid_source``: what is wrong with it, in the compiler's words.
    """

    id: int
    candidate_id: str
    candidate_key: str
    pool_id: int
    action: Action
    reason: Reason
    score: float | None = None
    confidence: float | None = None
    forecast: ForecastOutcome | None = None
    sampling_probability: float | None = None
    answer: Measurement | None = None
    detail: str | None = None

    @property
    def measure(self) -> bool:
        """Whether the host is to call its real evaluator."""
        return self.action is Action.MEASURE
