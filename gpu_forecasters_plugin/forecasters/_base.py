"""The extension point of forecasters: one verb, batch in, batch out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpu_forecasters_plugin.forecast import ForecastOutcome, Observation, Query

__all__ = ["Forecaster"]


class Forecaster(ABC):
    """Turns questions into forecasts.

    Promises: :meth:`forecast` answers every query, in order, with a forecast or a typed failure, and never
    raises for what a candidate contains or an endpoint does. The same queries after the same observations give
    the same answers, whatever the order. A forecaster belongs to one gate: its calls come one at a time, from
    any thread. It never sees the budget and decides nothing.

    Attributes:
        name: what ledgers and reports call it.
        model: the model that answers, as its endpoint calls it; empty where there is none.
        prompt_hash: identity of the prompts that it writes; empty where there are none.
    """

    name: str = "forecaster"
    model: str = ""
    prompt_hash: str = ""

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
