"""Asking a forecaster about measured kernels without letting it know what it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.errors import ForecasterError
from gpu_forecasters_plugin.evaluation.kept import KeptForecasts
from gpu_forecasters_plugin.evaluation.pairs import Pair
from gpu_forecasters_plugin.forecast import (
    Attempt,
    FailureKind,
    Forecast,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters import ContainedForecaster, WarmStartTask
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.recorded.pool import recorded_references
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["Answers", "Protocol", "ask_about"]

_BATCH = 32
_POOL = 4
"""Measurements after which a forecaster that learns within a run is told of them."""

_FEWEST_ROWS = 8
"""A task with fewer measured kernels teaches nothing about others."""

_OUTAGE = {FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
_BATCHES_OF_OUTAGE = 2


@dataclass(frozen=True)
class Protocol:
    """What a forecaster may learn from before it is asked.

    Attributes:
        config: which forecaster.
        seed: of the forecaster.
        shapes: the inputs that kernels are timed on, in words.
        within_run: so many measured kernels of each run (a task on a device with one reference) are learned from, in
            pools of four as a search would, and are not scored; 0: nothing of the task is known.
        shuffle: seed of the order in which a run's kernels come; ``None``: as in the file.
    """

    config: ForecasterConfig
    seed: int = 0
    shapes: str = ""
    within_run: int = 0
    shuffle: int | None = None


@dataclass(frozen=True)
class Answers:
    """What was forecast.

    Attributes:
        outcomes: by id of the pair; those that were learned from are not among them, and failed kernels only where the
            forecaster foresees failure.
        learned_from: kernels that were learned from, failed ones included.
    """

    outcomes: dict[str, ForecastOutcome]
    learned_from: int


def ask_about(
    pairs: Sequence[Pair],
    protocol: Protocol,
    kept: KeptForecasts | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Answers:
    """Forecast every kernel that was measured, task by task.

    What learns across tasks learns from the *other* tasks' kernels alone, and from recorded tasks of other operations.

    Args:
        pairs: kernels.
        protocol: who is asked, and what it may know.
        kept: forecasts that were made before, and where to keep new ones.
        progress: told how many kernels are done.

    Raises:
        ForecasterError: nobody answers any more; what was answered is kept.
        ConfigError, MissingExtraError, PluginError: as :func:`build_forecaster`.
    """
    asking = _Asking(pairs, protocol, kept, progress)
    try:
        for task in dict.fromkeys(pair.task for pair in pairs):
            asking.ask_task(task)
    finally:
        asking.close()
    return Answers(asking.outcomes, asking.learned_from)


class _Asking:
    """One evaluation under way."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        protocol: Protocol,
        kept: KeptForecasts | None,
        progress: Callable[[int], None],
    ) -> None:
        self.outcomes: dict[str, ForecastOutcome] = {}
        self.learned_from = 0
        self._runs: dict[str, dict[tuple[str, str], list[Pair]]] = {}
        for pair in pairs:
            run = (pair.reference_code, pair.device)
            self._runs.setdefault(pair.task, {}).setdefault(run, []).append(pair)
        self._protocol = protocol
        self._kept = kept
        self._progress = progress
        self._training = list(_training(self._runs))
        self._forecaster: ContainedForecaster | None = None
        self._built_for: tuple[str, ...] | None = None
        self._done = 0
        self._silent = 0

    def close(self) -> None:
        if self._forecaster is not None:
            self._forecaster.close()

    def ask_task(self, task: str) -> None:
        for run in self._runs[task].values():
            self._ask_run(task, self._ordered(run))

    def _ordered(self, run: list[Pair]) -> list[Pair]:
        seed = self._protocol.shuffle
        return run if seed is None else sorted(run, key=lambda pair: keyed_uniform(seed, pair.id))

    def _ask_run(self, task: str, run: list[Pair]) -> None:
        first, rest = run[: self._protocol.within_run], run[self._protocol.within_run :]
        forecaster = self._forecaster_for(task)
        scored = [p for p in rest if p.speedup is not None or (forecaster.foresees_failure and p.ending)]
        observations: list[Observation] = []
        for number, pool in enumerate(_batches([p for p in first if p.speedup is not None], _POOL)):
            forecaster.observe(observations)
            answers = self._answers(forecaster, pool)
            observations += [
                _observed(pair, answer, number) for pair, answer in zip(pool, answers, strict=True)
            ]
        forecaster.observe_attempts([attempt for pair in first if (attempt := _attempt(pair)) is not None])
        forecaster.observe(observations)
        for batch in _batches(scored, _BATCH):
            for pair, answer in zip(batch, self._answers(forecaster, batch), strict=True):
                self.outcomes[pair.id] = answer
        self.learned_from += len(first)
        self._done += len(run) - len(scored) - len(observations)
        self._progress(self._done)

    def _recorded_as(self, task: str) -> str:
        """The recorded task that has this one's name or reference, whose times must not be known; else empty."""
        recorded = recorded_references()
        if task.lower() in recorded.values():
            return task.lower()
        keys = (source_key(reference) for reference, _ in self._runs[task])
        return next((recorded[key] for key in keys if key in recorded), "")

    def _answers(self, forecaster: ContainedForecaster, batch: Sequence[Pair]) -> list[ForecastOutcome]:
        known = {pair.id: None if self._kept is None else self._kept.get(pair) for pair in batch}
        asked = [pair for pair in batch if known[pair.id] is None]
        if asked:
            answers = forecaster.forecast([_query(pair, self._protocol.shapes) for pair in asked])
            if self._kept is not None:
                self._kept.add(asked, answers)
            known |= {pair.id: answer for pair, answer in zip(asked, answers, strict=True)}
            self._watch(answers)
        self._done += len(batch)
        self._progress(self._done)
        return [answer for answer in known.values() if answer is not None]

    def _watch(self, answers: Sequence[ForecastOutcome]) -> None:
        """Give up where nobody answers, rather than wait for every row in turn."""
        out = all(isinstance(a, ForecastFailure) and a.kind in _OUTAGE for a in answers)
        self._silent = self._silent + 1 if out else 0
        last = answers[-1]
        if self._silent >= _BATCHES_OF_OUTAGE and isinstance(last, ForecastFailure):
            raise ForecasterError(
                f"nobody answers ({last.kind}: {printable(last.detail)}): what was answered is kept; "
                "start the same command again when the endpoint is back"
            )

    def _forecaster_for(self, task: str) -> ContainedForecaster:
        """One that knows nothing of the task; the last one where it is the same."""
        others = [other for other in self._training if other.operation.lower() != task.lower()]
        operation = self._recorded_as(task)
        wanted = (operation, *sorted({other.operation for other in others}))
        if self._forecaster is None or wanted != self._built_for:
            self.close()
            built = build_forecaster(
                self._protocol.config, seed=self._protocol.seed, operation=operation, training=others
            )
            self._forecaster, self._built_for = ContainedForecaster(built), wanted
        return self._forecaster


def _training(runs: dict[str, dict[tuple[str, str], list[Pair]]]) -> Iterator[WarmStartTask]:
    """What each run teaches about other tasks."""
    for task, kernels in runs.items():
        for (reference, _), run in kernels.items():
            measured = [
                (pair.candidate_code, math.log2(pair.speedup), _profile(pair))
                for pair in run
                if pair.speedup is not None
            ]
            if len(measured) >= _FEWEST_ROWS:
                attempts = tuple(attempt for pair in run if (attempt := _attempt(pair)) is not None)
                profile = next((p.reference_profile for p in run if p.reference_profile is not None), None)
                codes, speedups, profiles = zip(*measured, strict=True)
                yield WarmStartTask(task, reference, codes, speedups, profiles, profile, attempts)


def _batches(pairs: Sequence[Pair], size: int) -> Iterator[list[Pair]]:
    waiting = iter(pairs)
    while batch := list(islice(waiting, size)):
        yield batch


def _query(pair: Pair, shapes: str) -> Query:
    return Query(
        candidate_key=pair.candidate_key,
        candidate_code=pair.candidate_code,
        anchor_code=pair.reference_code,
        reference_code=pair.reference_code,
        task=pair.task,
        device=pair.device,
        shapes=shapes,
        profile=_profile(pair),
        anchor_profile=pair.reference_profile,
        reference_profile=pair.reference_profile,
        screened=_screened(pair),
    )


def _profile(pair: Pair) -> SourceProfile | None:
    return None if pair.verdict is None else pair.verdict.profile


def _screened(pair: Pair) -> str | None:
    return None if pair.verdict is None else pair.verdict.status.value


def _attempt(pair: Pair) -> Attempt | None:
    if pair.ending is None:
        return None
    return Attempt(pair.candidate_key, pair.candidate_code, pair.ending, _profile(pair), _screened(pair))


def _observed(pair: Pair, answer: ForecastOutcome, number: int) -> Observation:
    assert pair.speedup is not None
    forecast = answer if isinstance(answer, Forecast) else None
    return Observation(
        pair.candidate_key, pair.candidate_code, pair.speedup, number, forecast, profile=_profile(pair)
    )
