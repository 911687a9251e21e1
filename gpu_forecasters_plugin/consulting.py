"""Asking a forecaster: what it may learn, what it is asked, and when it is left alone."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_forecasters_plugin.breaker import OutageBreaker
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.forecast import ForecastFailure, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import ContainedForecaster, Forecaster
from gpu_forecasters_plugin.history import Anchor, History
from gpu_forecasters_plugin.ledger import RunIdentity

__all__ = ["Consultant"]


class Consultant:
    """Puts a run's candidates to its forecaster."""

    def __init__(
        self,
        forecaster: Forecaster,
        reference: Candidate,
        history: History,
        identity: RunIdentity,
        config: SurrogateConfig,
    ) -> None:
        self._forecaster = ContainedForecaster(forecaster)
        self._reference = reference
        self._history = history
        self._identity = identity
        self._shapes = config.shapes or ""
        self._breaker = OutageBreaker()
        self._observed_revision = 0
        self._closed = False

    def observe(self) -> None:
        """Let the forecaster learn what is new since it last did, whoever has read the ledger meanwhile."""
        if self._history.revision != self._observed_revision:
            self._forecaster.observe(self._history.observations())
            self._observed_revision = self._history.revision

    def queries(self, candidates: Sequence[Candidate], anchor: Anchor) -> list[Query]:
        """What the forecaster is asked about candidates, relative to an anchor."""
        return [
            Query(
                candidate.key,
                candidate.code,
                anchor.code,
                self._reference.code,
                anchor.speedup,
                self._identity.task,
                self._identity.device,
                candidate.parent_code,
                self._shapes,
                self._history.reference_time_us,
            )
            for candidate in candidates
        ]

    def forecast(self, queries: Sequence[Query]) -> dict[str, ForecastOutcome]:
        """What the forecaster says, by candidate key; nothing while it is down, or when this is closed."""
        if not queries or self._closed:
            return {}
        if self._breaker.open:
            self._breaker.skipped()
            return {}
        outcomes = self._forecaster.forecast(queries)
        self._watch(outcomes)
        return {query.candidate_key: outcome for query, outcome in zip(queries, outcomes, strict=True)}

    def close(self) -> None:
        """Give up what is under way, within two seconds, and ask no more; from any thread."""
        self._closed = True
        self._forecaster.close()

    def _watch(self, outcomes: Sequence[ForecastOutcome]) -> None:
        """Take note of an outage; what was given up is none."""
        if self._closed:
            return
        failures = [outcome for outcome in outcomes if isinstance(outcome, ForecastFailure)]
        detail = f"{failures[0].kind}: {failures[0].detail}" if failures else ""
        self._breaker.record(answered=len(failures) < len(outcomes), detail=detail)
