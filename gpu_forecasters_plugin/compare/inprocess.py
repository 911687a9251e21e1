"""A small evolutionary search in this process: the host for comparisons over many seeds.

The paper's search (arXiv 2605.31464): two parents a step; four candidates per parent are measured, chosen from as many
without the filter and from four times as many with it. The first parent is the best kernel so far, the second is drawn
by rank. No source is proposed twice, in any arm: a finite recorded task would otherwise favour whoever remembers
what was measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.recorded.pool import RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph

__all__ = ["InProcessHost"]

PARENTS = 2
MEASURED_PER_PARENT = 4
_RANK_DECAY = 0.6
_RESTART = 0.3
_MAX_DRAWS = 300


class _Search:
    """Proposals and measurements of one search; selection is the caller's."""

    def __init__(self, pool: RecordedPool, graph: ProposalGraph, seed: int) -> None:
        self._pool = pool
        self._graph = graph
        self._random = random.Random(f"inprocess/{seed}")
        self.measured: dict[str, float | None] = {pool.reference_id: 1.0}
        self.refused: set[str] = set()

    def parents(self) -> list[str]:
        """The best kernel, and another drawn by rank."""
        ranked = sorted(
            (name for name, speedup in self.measured.items() if speedup is not None),
            key=lambda name: (-(self.measured[name] or 0.0), name),
        )
        weights = [_RANK_DECAY**rank for rank in range(len(ranked))]
        return [ranked[0], self._random.choices(ranked, weights)[0]][:PARENTS]

    def propose(self, count: int) -> list[tuple[str, str]]:
        """(child, parent) ids: unmeasured, distinct, as evenly spread over the parents as the graph allows."""
        proposed: dict[str, str] = {}
        parents = self.parents()
        for index in range(count):
            parent = parents[index % len(parents)]
            child = self._fresh_child(parent, proposed)
            if child is not None:
                proposed[child] = parent
        return list(proposed.items())

    def _fresh_child(self, parent: str, proposed: dict[str, str]) -> str | None:
        """A source that is new, as near to the parent as a walk that often starts again finds one."""
        node = parent
        for _ in range(_MAX_DRAWS):
            node = self._graph.step(node, self._random)
            if node not in self.measured and node not in proposed and node not in self.refused:
                return node
            if self._random.random() < _RESTART:
                node = parent
        return None

    def measure(self, name: str) -> Measurement:
        """What was recorded for a candidate."""
        candidate = self._pool.candidates[name]
        self.measured[name] = speedup = self._pool.speedup(name)
        seconds = kernel_seconds(self._pool, name)
        return Measurement(candidate.outcome, candidate.time_us, speedup, seconds, candidate.error)


def kernel_seconds(pool: RecordedPool, name: str) -> float:
    """Kernel time that measuring a candidate took, in seconds: repeats times median; 0 for failures."""
    time_us = pool.candidates[name].time_us
    return 0.0 if time_us is None else time_us * 1e-6 * pool.repeats


class InProcessHost:
    """Replays a recorded task without any other process."""

    name = "inprocess"

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None] = lambda done: None,
    ) -> ArmRun:
        """Search until the budget is spent, or nothing new is left to propose."""
        search = _Search(pool, ProposalGraph.from_pool(pool), seed)
        config = arm.seeded(seed, budget, pool.operation)
        on_measurements(1)
        if config is None:
            considered, order = self._without_filter(search, budget, on_measurements)
        else:
            considered, order = self._with_filter(search, pool, config, budget, folder, on_measurements)
        speedups = [pool.speedup(name) for name in order]
        seconds = math.fsum(kernel_seconds(pool, name) for name in order)
        return ArmRun(arm.name, seed, best_so_far(speedups), considered, seconds)

    @staticmethod
    def _without_filter(
        search: _Search, budget: int, on_measurements: Callable[[int], None]
    ) -> tuple[int, list[str]]:
        considered = 1
        while len(search.measured) < budget:
            step = min(PARENTS * MEASURED_PER_PARENT, budget - len(search.measured))
            proposals = search.propose(step)
            if not proposals:
                break
            considered += len(proposals)
            for name, _ in proposals:
                search.measure(name)
            on_measurements(len(search.measured))
        return considered, list(search.measured)

    @staticmethod
    def _with_filter(
        search: _Search,
        pool: RecordedPool,
        config: SurrogateConfig,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None],
    ) -> tuple[int, list[str]]:
        folder.mkdir(parents=True, exist_ok=True)
        reference = _candidate(pool, pool.reference_id)
        forecaster = build_forecaster(config.forecaster, seed=config.seed, operation=pool.operation)
        gate = Gate(reference, forecaster, Ledger(folder / "ledger.sqlite3"), config)
        (first,) = gate.ask([reference])
        gate.tell(first.id, Measurement(Outcome.OK, pool.reference.time_us, 1.0))
        considered = 1
        size = PARENTS * MEASURED_PER_PARENT * config.oversample
        while len(search.measured) < budget:
            proposals = search.propose(size)
            if not proposals:
                break
            considered += len(proposals)
            asked = [_candidate(pool, name, parent) for name, parent in proposals]
            for candidate, decision in zip(asked, gate.ask(asked), strict=True):
                if decision.measure and gate.start(decision.id):
                    gate.tell(decision.id, search.measure(candidate.id))
                elif decision.reason is Reason.INVALID_SOURCE:
                    search.refused.add(candidate.id)
            on_measurements(len(search.measured))
        return considered, list(search.measured)


_candidates: dict[tuple[int, str, str | None], Candidate] = {}


def _candidate(pool: RecordedPool, name: str, parent: str | None = None) -> Candidate:
    """A candidate of a pool, made once: its identity takes milliseconds to compute."""
    found = _candidates.get((id(pool), name, parent))
    if found is None:
        parent_code = None if parent is None else pool.candidates[parent].code
        found = _candidates[id(pool), name, parent] = Candidate(name, pool.candidates[name].code, parent_code)
    return found
