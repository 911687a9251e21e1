"""A forecaster of anybody's, kept from ending a run: whatever it raises becomes a typed failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from gpu_forecasters_plugin.failure_log import FailureLog
from gpu_forecasters_plugin.forecast import (
    Attempt,
    FailureKind,
    Forecast,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["ContainedForecaster", "Containment"]

T = TypeVar("T")

_LOST = "its pool"


class Containment:
    """Turns the unexpected errors of one forecaster into failures; the first is announced, further ones are counted.

    Args:
        name: whose errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._failures = FailureLog(f"forecaster {name!r}")

    @property
    def errors(self) -> int:
        """How many there were."""
        return self._failures.count

    def failure(self, error: BaseException, lost: str) -> ForecastFailure:
        """The ``invalid`` failure that stands for an error.

        Args:
            error: what was raised.
            lost: what goes without a forecast for it.
        """
        problem = self._failures.add(error, f"{lost} goes without forecast")
        return ForecastFailure(FailureKind.INVALID, problem, self.name)

    def attempt(self, call: Callable[[], T], lost: str) -> T | ForecastFailure:
        """What a call returns, or the failure that stands for what it raises; ``lost`` as for :meth:`failure`."""
        try:
            return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may be anybody's: only the user ends the process
            return self.failure(error, lost)


class ContainedForecaster(Forecaster):
    """Keeps the promises of :class:`Forecaster` for one that may break them.

    An error while it forecasts, or a wrong number or kind of answers, makes an ``invalid`` failure of every query of
    that pool: of an answer that never came nobody can tell for which query. Forecasters that can tell contain their
    errors query by query. After an error while it learns it is not asked until it has learned without one: it may be
    in any state.
    """

    def __init__(self, inner: Forecaster) -> None:
        self.name, self.model, self.prompt_hash = inner.name, inner.model, inner.prompt_hash
        self.waits = inner.waits
        self.foresees_failure = inner.foresees_failure
        self._inner = inner
        self._containment = Containment(inner.name)
        self._not_learned: ForecastFailure | None = None
        self._attempts_not_learned: ForecastFailure | None = None

    @property
    def errors(self) -> int:
        """How many calls have failed."""
        return self._containment.errors

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass the observations on."""
        self._not_learned = self._containment.attempt(lambda: self._inner.observe(observations), _LOST)

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Pass the attempts on."""
        self._attempts_not_learned = self._containment.attempt(
            lambda: self._inner.observe_attempts(attempts), _LOST
        )

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The forecaster's own answers, or failures."""
        failure = self._not_learned or self._attempts_not_learned
        if failure is not None:
            return [failure] * len(queries)
        answers = self._containment.attempt(partial(self._checked, queries), _LOST)
        return [answers] * len(queries) if isinstance(answers, ForecastFailure) else answers

    def close(self) -> None:
        """Close it."""
        self._containment.attempt(self._inner.close, "nothing")

    def _checked(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        answers = list(self._inner.forecast(queries))
        if len(answers) != len(queries):
            raise ValueError(f"{len(answers)} answers to {len(queries)} queries")
        for answer in answers:
            if not isinstance(answer, Forecast | ForecastFailure):
                raise TypeError(f"an answer is {type(answer).__name__}, neither a forecast nor a failure")
        return answers
