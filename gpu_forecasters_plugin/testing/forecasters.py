"""What every forecaster keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.testing.samples import (
    HOSTILE_SOURCES,
    kernel,
    observation,
    query,
    randomness_untouched,
)

__all__ = ["ForecasterContract"]

Beliefs = list[tuple[float, ...] | str]


def _beliefs(forecaster: Forecaster, queries: Sequence[Query]) -> Beliefs:
    """The probabilities, or the kind of failure, of each answer."""
    answers = forecaster.forecast(queries)
    return [answer.probabilities if isinstance(answer, Forecast) else str(answer.kind) for answer in answers]


class ForecasterContract:
    """Override :meth:`make`.

    Attributes:
        tolerance: largest difference of two probabilities that are to be equal: 0 for most, a little for models that
            compute a batch in another order.
    """

    tolerance = 1e-9

    @pytest.fixture
    def make(self) -> Callable[[], Forecaster]:
        """A function that makes a new forecaster, the same each time."""
        raise NotImplementedError("override the fixture make")

    @pytest.fixture
    def queries(self) -> list[Query]:
        """Questions that it is asked; some of them about sources that a search should not have proposed."""
        asked = [query(kernel(number)) for number in range(1, 7)]
        return [*asked, query(kernel(3), anchor_speedup=1.5)]

    def _same(self, found: Beliefs, expected: Beliefs) -> None:
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, str) or isinstance(other, str):
                assert one == other
            else:
                assert one == pytest.approx(other, abs=self.tolerance)

    def test_every_query_is_answered_in_order(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        forecaster = make()
        answers = forecaster.forecast(queries)
        assert len(answers) == len(queries)
        assert all(isinstance(answer, Forecast | ForecastFailure) for answer in answers)
        assert forecaster.forecast([]) == []

    def test_an_answer_does_not_depend_on_the_order_or_on_the_rest_of_the_pool(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        forecaster = make()
        together = _beliefs(forecaster, queries)
        self._same(_beliefs(forecaster, queries[::-1]), together[::-1])
        self._same([belief for q in queries for belief in _beliefs(forecaster, [q])], together)

    def test_what_was_observed_is_all_that_answers_depend_on(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        # A resumed run observes everything at once; the run before had observed it bit by bit.
        followed, resumed = make(), make()
        measured = [observation(number) for number in range(10, 30)]
        for known in (7, 13, len(measured)):
            followed.observe(measured[:known])
            followed.forecast(queries[:2])
        resumed.observe(measured)
        self._same(_beliefs(resumed, queries), _beliefs(followed, queries))

    def test_observing_the_same_again_changes_nothing(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        forecaster = make()
        measured = [observation(number) for number in range(10, 22)]
        forecaster.observe(measured)
        once = _beliefs(forecaster, queries)
        forecaster.observe(measured)
        self._same(_beliefs(forecaster, queries), once)

    def test_its_own_forecasts_come_back_with_the_measurements(self, make: Callable[[], Forecaster]) -> None:
        forecaster = make()
        asked = [query(kernel(number)) for number in range(10, 20)]
        answers = forecaster.forecast(asked)
        forecaster.observe(
            [
                observation(number, answer if isinstance(answer, Forecast) else None)
                for number, answer in zip(range(10, 20), answers, strict=True)
            ]
        )
        assert len(forecaster.forecast(asked)) == len(asked)

    @pytest.mark.parametrize("code", HOSTILE_SOURCES, ids=lambda code: ascii(code[:12]))
    def test_no_source_makes_it_raise(self, make: Callable[[], Forecaster], code: str) -> None:
        answers = make().forecast([query(Candidate("hostile", code)), query(kernel(1))])
        assert len(answers) == 2
        assert all(isinstance(answer, Forecast | ForecastFailure) for answer in answers)

    def test_it_has_an_identity(self, make: Callable[[], Forecaster]) -> None:
        one, other = make(), make()
        assert one.name and one.name.isprintable()
        assert isinstance(one.model, str) and isinstance(one.prompt_hash, str)
        assert len(one.prompt_hash) <= 64, "what is longer does not fit the ledger"
        identities = [(f.name, f.model, f.prompt_hash) for f in (one, other)]
        assert identities[0] == identities[1], "a resume would be refused"

    def test_it_leaves_global_randomness_alone(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        with randomness_untouched():
            forecaster = make()
            forecaster.observe([observation(number) for number in range(10, 22)])
            forecaster.forecast(queries)

    def test_closing_twice_is_closing_once(
        self, make: Callable[[], Forecaster], queries: list[Query]
    ) -> None:
        forecaster = make()
        forecaster.forecast(queries[:1])
        forecaster.close()
        forecaster.close()
