"""Asking a forecaster: what it may learn, what it is asked, and when it is left alone."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_forecasters_plugin.breaker import OutageBreaker
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.forecast import ForecastFailure, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import ContainedForecaster, Forecaster
from gpu_forecasters_plugin.history import History
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
        self._anchor = config.anchor
        self._shapes = config.shapes or ""
        self._breaker = OutageBreaker()
        self._observed_revision = 0

    def observe(self) -> None:
        """Let the forecaster learn what is new since it last did, whoever has read the ledger meanwhile."""
        if self._history.revision != self._observed_revision:
            self._forecaster.observe(self._history.observations())
            self._observed_revision = self._history.revision

    def forecast(self, candidates: Sequence[Candidate]) -> dict[str, ForecastOutcome]:
        """What the forecaster says, by candidate key; nothing while it is down."""
        if not candidates:
            return {}
        if self._breaker.open:
            self._breaker.skipped()
            return {}
        outcomes = self._forecaster.forecast(self._queries(candidates))
        failures = [outcome for outcome in outcomes if isinstance(outcome, ForecastFailure)]
        detail = f"{failures[0].kind}: {failures[0].detail}" if failures else ""
        self._breaker.record(answered=len(failures) < len(outcomes), detail=detail)
        return {candidate.key: outcome for candidate, outcome in zip(candidates, outcomes, strict=True)}

    def _queries(self, candidates: Sequence[Candidate]) -> list[Query]:
        _, anchor_code, anchor_speedup = self._history.anchor(self._anchor)
        return [
            Query(
                candidate.key,
                candidate.code,
                anchor_code,
                self._reference.code,
                anchor_speedup,
                self._identity.task,
                self._identity.device,
                candidate.parent_code,
                self._shapes,
                self._history.reference_time_us,
            )
            for candidate in candidates
        ]
