"""Asking a forecaster: what it may learn, what it is asked, and when it is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_forecasters_plugin.breaker import OutageBreaker
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.forecast import Attempt, ForecastFailure, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import ContainedForecaster, Forecaster
from gpu_forecasters_plugin.history import Anchor, History
from gpu_forecasters_plugin.ledger import LedgerReader, RunIdentity
from gpu_forecasters_plugin.screen.profile import SourceProfile
from gpu_forecasters_plugin.screen.verdict import Verdict

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
        ledger: LedgerReader,
    ) -> None:
        self._forecaster = ContainedForecaster(forecaster)
        self._reference = reference
        self._history = history
        self._identity = identity
        self._shapes = config.shapes or ""
        self._breaker = OutageBreaker()
        self._observed_revision = 0
        self._closed = False
        self._ledger = ledger
        # Kept whatever the setting is now: a resumed run knows what it knew.
        self._verdicts: dict[str, Verdict] = ledger.verdicts()
        self._not_screened: set[str] = set()

    def screened(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take note of what the compiler said of candidates, by key; what is undecided may be decided later."""
        self._verdicts.update(verdicts)

    def observe(self) -> None:
        """Let the forecaster learn what is new since it last did, whoever has read the ledger meanwhile."""
        if self._history.revision == self._observed_revision:
            return
        observations = self._history.observations()
        self._look_up({seen.candidate_key for seen in observations})
        if self._forecaster.foresees_failure:
            attempts = self._history.attempts()
            self._forecaster.observe_attempts([self._compiled(attempt) for attempt in attempts])
        self._forecaster.observe(
            [replace(seen, profile=self._profile(seen.candidate_key)) for seen in observations]
            if self._verdicts
            else observations
        )
        self._observed_revision = self._history.revision

    def _look_up(self, keys: set[str]) -> None:
        """Read the verdicts of other processes on candidates, once."""
        if self._verdicts and (missing := keys - self._verdicts.keys() - self._not_screened):
            found = self._ledger.verdicts(missing)
            self._verdicts |= found
            self._not_screened |= missing - found.keys()

    def _compiled(self, attempt: Attempt) -> Attempt:
        verdict = self._verdicts.get(attempt.candidate_key)
        if verdict is None:
            return attempt
        return replace(attempt, profile=verdict.profile, screened=verdict.status.value)

    def _profile(self, key: str) -> SourceProfile | None:
        verdict = self._verdicts.get(key)
        return None if verdict is None else verdict.profile

    def queries(self, candidates: Sequence[Candidate], anchor: Anchor) -> list[Query]:
        """What the forecaster is asked about candidates, relative to an anchor."""
        anchor_profile, reference_profile = self._profile(anchor.key), self._profile(self._reference.key)
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
                self._profile(candidate.key),
                anchor_profile,
                reference_profile,
                self._verdicts[candidate.key].status.value if candidate.key in self._verdicts else None,
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
