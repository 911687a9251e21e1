"""A forecaster that does as it is told and remembers what it was asked: for tests of what is around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_forecasters_plugin.errors import ForecasterError
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome, Observation, Query
from gpu_forecasters_plugin.forecasters._base import Forecaster

__all__ = ["ScriptedForecaster"]

Answer = ForecastOutcome | Sequence[float]


class ScriptedForecaster(Forecaster):
    """Answers from a script.

    Args:
        script: a function from query to answer, or a list of answers that is used up in the order of the
            queries. An answer is a forecast, a failure, or eight weights.
        name: what ledgers and reports call it.

    Attributes:
        batches: the queries of each call, in order.
        observed: the observations of each call, in order.
    """

    def __init__(
        self, script: Callable[[Query], Answer] | Sequence[Answer], *, name: str = "scripted"
    ) -> None:
        self.name = name
        self.batches: list[list[Query]] = []
        self.observed: list[list[Observation]] = []
        self._ask = script if callable(script) else None
        self._answers: list[Answer] = [] if callable(script) else list(script)

    @property
    def queries(self) -> list[Query]:
        """All queries so far."""
        return [query for batch in self.batches for query in batch]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Remember the observations."""
        self.observed.append(list(observations))

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The next answers.

        Raises:
            ForecasterError: the list of answers is used up. A test that asks for more is wrong.
        """
        self.batches.append(list(queries))
        return [self._outcome(self._next(query)) for query in queries]

    def _next(self, query: Query) -> Answer:
        if self._ask is not None:
            return self._ask(query)
        if not self._answers:
            raise ForecasterError(f"script of {self.name!r} is used up at query {len(self.queries)}")
        return self._answers.pop(0)

    def _outcome(self, answer: Answer) -> ForecastOutcome:
        if isinstance(answer, Sequence):
            return Forecast.from_weights(answer, source=self.name)
        return answer
