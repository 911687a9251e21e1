"""A forecaster, a ranking rule, a selection policy and an observer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.forecast import Forecast, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.observers import Event, Observer
from gpu_forecasters_plugin.policies import (
    Choice,
    Member,
    PoolState,
    RankingContext,
    RankingRule,
    SelectionPolicy,
)


class WarpForecaster(Forecaster):
    """The more warps, the faster."""

    name = "toy-warps"

    def __init__(self, mass: float) -> None:
        self._mass = mass

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        return [self._answer(query.candidate_code) for query in queries]

    def _answer(self, code: str) -> Forecast:
        found = re.search(r"num_warps=(\d+)", code)
        best = min(N_BINS, 3 + int(found.group(1)).bit_length()) if found else 1
        rest = (1.0 - self._mass) / (N_BINS - 1)
        return Forecast.from_weights([self._mass if i == best else rest for i in range(1, N_BINS + 1)])


class Pessimist(RankingRule):
    """A low quantile of log2 speed-up."""

    def __init__(self, level: float) -> None:
        self._level = level

    def score(self, forecast: Forecast, candidate_key: str, context: RankingContext) -> float:
        return forecast.quantile(self._level)


class FirstFew(SelectionPolicy):
    """The best few of every pool, whatever its size; chance while the run warms up."""

    def __init__(self, most: int) -> None:
        self._most = most

    def select(self, members: Sequence[Member], state: PoolState) -> dict[str, Choice]:
        if state.remaining == 0:
            return {member.key: Choice(Action.SKIP, Reason.BUDGET_SPENT) for member in members}

        def rank(member: Member) -> tuple[float, float]:
            chance = keyed_uniform(state.seed, "toy", state.pool_id, member.key)
            known = member.rank is not None and not state.warming_up
            return (-(member.rank or 0.0) if known else 0.0, chance)

        room = self._most if state.remaining is None else min(self._most, state.remaining)
        reason = Reason.WARM_UP if state.warming_up else Reason.TOP_FRACTION
        measured, skipped = Choice(Action.MEASURE, reason), Choice(Action.SKIP, Reason.NOT_SELECTED)
        ordered = sorted(members, key=rank)
        return {member.key: measured if place < room else skipped for place, member in enumerate(ordered)}


class EventCounter(Observer):
    """Counts events by kind, and writes the counts when the run ends."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._counts: Counter[str] = Counter()

    def notify(self, event: Event) -> None:
        self._counts[type(event).__name__] += 1

    def close(self) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(self._counts) + "\n")
