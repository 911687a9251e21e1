"""A forecaster of anybody's, kept from ending a run: whatever it raises becomes a typed failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["ContainedForecaster"]

logger = logging.getLogger(__name__)

_LONGEST_DETAIL = 500


class ContainedForecaster(Forecaster):
    """Keeps the promises of :class:`Forecaster` for one that may break them.

    An error while it forecasts, or a wrong number or kind of answers, makes an ``invalid`` failure of every query of
    that pool. After an error while it learns it is not asked until it has learned without one: it may be in any
    state. The first error is announced, further ones are counted.

    Attributes:
        errors: how many calls have failed.
    """

    def __init__(self, inner: Forecaster) -> None:
        self.name, self.model, self.prompt_hash = inner.name, inner.model, inner.prompt_hash
        self.errors = 0
        self._inner = inner
        self._not_learned: str | None = None

    def observe(self, observations: Sequence[Observation]) -> None:
        """Pass the observations on."""
        self._not_learned = self._attempt(lambda: self._inner.observe(observations))

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The forecaster's own answers, or failures."""
        answers: list[ForecastOutcome] = []
        problem = self._not_learned or self._attempt(lambda: answers.extend(self._checked(queries)))
        if problem is not None:
            return [ForecastFailure(FailureKind.INVALID, problem, self.name) for _ in queries]
        return answers

    def _checked(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        answers = list(self._inner.forecast(queries))
        if len(answers) != len(queries):
            raise ValueError(f"{len(answers)} answers to {len(queries)} queries")
        for answer in answers:
            if not isinstance(answer, Forecast | ForecastFailure):
                raise TypeError(f"an answer is {type(answer).__name__}, neither a forecast nor a failure")
        return answers

    def _attempt(self, call: Callable[[], None]) -> str | None:
        """What went wrong, if anything did."""
        try:
            call()
        except Exception as error:  # it may be anybody's: only what ends the process goes through
            self.errors += 1
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_DETAIL]
            level = logging.ERROR if self.errors == 1 else logging.DEBUG
            logger.log(
                level,
                "forecaster %r raised %s: its pool goes without forecasts (error %d; later ones at level debug)",
                self.name,
                problem,
                self.errors,
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            return problem
        return None
