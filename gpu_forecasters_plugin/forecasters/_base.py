"""The extension point of forecasters: one verb, batch in, batch out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpu_forecasters_plugin.forecast import Attempt, ForecastOutcome, Observation, Query

__all__ = ["Forecaster"]


class Forecaster(ABC):
    """Turns questions into forecasts.

    Promises: :meth:`forecast` answers every query, in order, with a forecast or a typed failure, and never
    raises for what a candidate contains or an endpoint does. The same queries after the same observations give
    the same answers, whatever the order. A forecaster belongs to one gate: its calls come one at a time, from
    any thread, but for :meth:`close`. It never sees the budget and decides nothing.

    Attributes:
        name: what ledgers and reports call it.
        model: the model that answers, as its endpoint calls it; empty where there is none.
        prompt_hash: identity of the prompts that it writes; empty where there are none.
        waits: whether its forecasts are spent waiting, as for a network, rather than computing: a mixture asks such
            experts at the same time, each from a thread of its own.
        foresees_failure: whether its forecasts say with what probability a candidate runs right.
    """

    name: str = "forecaster"
    model: str = ""
    prompt_hash: str = ""
    waits: bool = False
    foresees_failure: bool = False

    @abstractmethod
    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """Answer each query, in order.

        Args:
            queries: questions of one pool; they may share anchor and hardware.

        Returns:
            As many outcomes as queries.
        """

    def observe(self, observations: Sequence[Observation]) -> None:  # noqa: B027 - optional by design
        """Learn from everything measured so far.

        Called before a pool is forecast whenever there is something new, with *all* observations of the run
        in the ledger's order, so that a resumed run learns exactly what the interrupted one had.

        Args:
            observations: measurements with outcome ``ok``.
        """

    def observe_attempts(self, attempts: Sequence[Attempt]) -> None:  # noqa: B027 - optional by design
        """Learn which candidates run right.

        Called before :meth:`observe` whenever there is something new, with *all* measurements of the run that say
        something about their candidate, failures among them, in the ledger's order.

        Args:
            attempts: measurements that have ended, however they did.
        """

    def close(self) -> None:  # noqa: B027 - optional by design
        """End for good: the run is over.

        May be called at any time, from any thread, more than once. Forecasts under way that wait for somebody come
        back within two seconds, as failures; a forecaster that is closed answers with failures alone, if it is asked
        at all. One that computes in this process may finish what it has begun.
        """
