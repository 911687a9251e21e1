"""Searches of a recorded task without any other process, whatever chooses their parents.

The proposer is that of the real hosts (:class:`~gpu_forecasters_plugin.recorded.proposer.RecordedProposer`): what it
makes of a parent when it is asked for the n-th time depends on seed, parent and n alone. Arms with the same seed are
offered the same stream for each parent, and skip in it what they know already. No source is measured twice, in any arm:
a finite recorded task would otherwise favour whoever remembers what was measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.compare.search_ledger import search_ledger
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.decision import Decision, Measurement, Reason
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.profiles import RecordedScreen
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer

__all__ = ["MEASURED_PER_PARENT", "PARENTS", "Archive", "ParentChoice", "replay"]

PARENTS = 2
"""Parents of a step."""

MEASURED_PER_PARENT = 4

_MAX_DRAWS = 1000

Pools = list[list[tuple[str, str]]]
"""Proposals of a step as (child, parent) ids, by pool: what is in one is decided on together."""


class Archive:
    """What a search has measured.

    Attributes:
        measured: speed-up by id, in the order of measuring; ``None`` for failures.
        parent_of: whose child it was, by id; the reference is nobody's.
    """

    def __init__(self) -> None:
        self.measured: dict[str, float | None] = {}
        self.parent_of: dict[str, str] = {}

    def ranked(self) -> list[str]:
        """Ids of the kernels that ran, the fastest first."""
        ran = {name: speedup for name, speedup in self.measured.items() if speedup is not None}
        return sorted(ran, key=lambda name: (-ran[name], name))


class ParentChoice(ABC):
    """Chooses the kernels that a step goes on from.

    Attributes:
        one_pool: whether the children of all parents are decided on together.
    """

    one_pool = False

    @abstractmethod
    def parents(self, archive: Archive, step: int) -> list[str]:
        """Ids of up to :data:`PARENTS` kernels of the archive that ran; called once for each step."""


@lru_cache(maxsize=2)
def _graph(pool: RecordedPool) -> ProposalGraph:
    """The graph of a pool; a process searches the same one many times."""
    return ProposalGraph.from_pool(pool)


@lru_cache(maxsize=20_000)
def _candidate(pool: RecordedPool, name: str, parent: str | None = None) -> Candidate:
    """A candidate of a pool, made once: its identity takes milliseconds to compute."""
    parent_code = None if parent is None else pool.candidates[parent].code
    return Candidate(name, pool.candidates[name].code, parent_code)


class _Search:
    """Proposals and measurements of one search; selection is the caller's.

    Attributes:
        archive: what was measured.
        refused: ids that are no kernels.
        seconds: GPU-seconds of the measurements.
    """

    def __init__(self, pool: RecordedPool, arm: Arm, seed: int, choice: ParentChoice) -> None:
        self._pool = pool
        self._arm = arm
        self._proposer = RecordedProposer(_graph(pool), seed=seed)
        self._choice = choice
        self._step = 0
        self.archive = Archive()
        self.refused: set[str] = set()
        self.seconds = 0.0

    def propose(self, per_parent: int, most: float = math.inf) -> Pools:
        """The proposals of the next step; none when nothing new is left."""
        parents = self._choice.parents(self.archive, self._step)
        self._step += 1
        proposed: dict[str, str] = {}
        pools: Pools = []
        for group in [parents] if self._choice.one_pool else [[parent] for parent in parents]:
            # As many whether or not the same kernel is chosen twice.
            slots = per_parent * (PARENTS if self._choice.one_pool else 1)
            count = int(min(slots, most - len(proposed)))
            pool = []
            for index in range(count):
                parent = group[index % len(group)]
                child = self._fresh_child(parent, proposed)
                if child is not None:
                    proposed[child] = parent
                    pool.append((child, parent))
            if pool:
                pools.append(pool)
        return pools

    def _fresh_child(self, parent: str, proposed: dict[str, str]) -> str | None:
        """The next source in the parent's stream that is new."""
        for _ in range(_MAX_DRAWS):
            child = self._proposer.next_child(parent)
            if child not in self.archive.measured and child not in proposed and child not in self.refused:
                return child
        return None

    def measure(self, name: str, parent: str | None = None) -> Measurement:
        """What was recorded for a candidate."""
        candidate = self._pool.candidates[name]
        self.archive.measured[name] = speedup = self._pool.speedup(name)
        if parent is not None:
            self.archive.parent_of[name] = parent
        seconds = self._arm.price(self._pool, name)
        self.seconds += seconds
        return Measurement(candidate.outcome, candidate.time_us, speedup, seconds, candidate.error)


def replay(
    choice: ParentChoice,
    pool: RecordedPool,
    arm: Arm,
    seed: int,
    budget: int,
    folder: Path,
    on_measurements: Callable[[int], None] = lambda done: None,
) -> ArmRun:
    """Search until the budget is spent, or nothing new is left to propose.

    A step proposes :data:`MEASURED_PER_PARENT` children per parent without a filter, all measured, and
    ``oversample`` times as many with it. Whatever a step measures, it knows nothing of the rest of the step: results
    are equally stale in every arm.

    Args:
        choice: chooses parents; new for each search.
        pool: the recorded task.
        arm: what selects.
        seed: seed of proposals and selection.
        budget: measurements, the reference's included.
        folder: where the ledger goes.
        on_measurements: told the number of measurements so far, step by step.
    """
    search = _Search(pool, arm, seed, choice)
    config = arm.seeded(seed, budget, pool)
    forecasting = 0.0
    if config is None:
        considered = _without_filter(search, pool, arm, budget, on_measurements)
    else:
        considered, forecasting = _with_filter(search, pool, config, folder, on_measurements)
    curve = best_so_far(list(search.archive.measured.values()))
    return ArmRun(arm.name, seed, curve, considered, search.seconds, forecasting)


def _without_filter(
    search: _Search, pool: RecordedPool, arm: Arm, budget: int, on_measurements: Callable[[int], None]
) -> int:
    """How many candidates were considered."""
    limit = math.inf if arm.gpu_seconds is None else arm.gpu_seconds
    search.measure(pool.reference_id)
    considered = 1
    while (left := budget - len(search.archive.measured)) and (
        pools := search.propose(MEASURED_PER_PARENT, left)
    ):
        for name, parent in (proposal for proposals in pools for proposal in proposals):
            if search.seconds >= limit:
                return considered
            considered += 1
            search.measure(name, parent)
        on_measurements(len(search.archive.measured))
    return considered


def _with_filter(
    search: _Search,
    pool: RecordedPool,
    config: SurrogateConfig,
    folder: Path,
    on_measurements: Callable[[int], None],
) -> tuple[int, float]:
    """How many candidates were considered, and the GPU-seconds of their forecasts."""
    reference = _candidate(pool, pool.reference_id)
    forecaster = build_forecaster(config.forecaster, seed=config.seed, operation=pool.operation)
    screen = None if config.screen.policy == "off" else RecordedScreen(pool)
    with (
        search_ledger(folder) as ledger,
        Gate(reference, forecaster, ledger, config, screen=screen) as gate,
    ):
        (first,) = gate.ask([reference])
        gate.tell(first.id, search.measure(pool.reference_id))
        on_measurements(1)
        considered = 1
        while not gate.budget_spent() and (pools := search.propose(MEASURED_PER_PARENT * config.oversample)):
            decided = [_decided(gate, pool, proposals) for proposals in pools]
            for candidate_id, parent, decision in (row for rows in decided for row in rows):
                considered += 1
                if decision.measure and gate.start(decision.id):
                    gate.tell(decision.id, search.measure(candidate_id, parent))
                elif decision.reason is Reason.INVALID_SOURCE:
                    search.refused.add(candidate_id)
            on_measurements(len(search.archive.measured))
        return considered, ledger.budget_use(forecasts=True).forecast_gpu_seconds or 0.0


def _decided(
    gate: Gate, pool: RecordedPool, proposals: Sequence[tuple[str, str]]
) -> list[tuple[str, str, Decision]]:
    """Child, parent and decision of each proposal."""
    asked = [_candidate(pool, name, parent) for name, parent in proposals]
    decisions = gate.ask(asked)
    return [(name, parent, d) for (name, parent), d in zip(proposals, decisions, strict=True)]
