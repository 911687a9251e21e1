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
from gpu_forecasters_plugin.decision import Measurement, Reason
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
    """Proposals and measurements of one search; selection is the caller's.

    Attributes:
        measured: speed-up by id, in the order of measuring; ``None`` for failures.
        refused: ids that are no kernels.
        seconds: GPU-seconds of the measurements.
    """

    def __init__(self, pool: RecordedPool, arm: Arm, graph: ProposalGraph, seed: int) -> None:
        self._pool = pool
        self._arm = arm
        self._graph = graph
        self._random = random.Random(f"inprocess/{seed}")
        self.measured: dict[str, float | None] = {}
        self.refused: set[str] = set()
        self.seconds = 0.0

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
        seconds = self._arm.price(self._pool, name)
        self.seconds += seconds
        return Measurement(candidate.outcome, candidate.time_us, speedup, seconds, candidate.error)


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
        search = _Search(pool, arm, ProposalGraph.from_pool(pool), seed)
        config = arm.seeded(seed, budget, pool)
        forecasting = 0.0
        if config is None:
            considered = self._without_filter(search, pool, arm, budget, on_measurements)
        else:
            considered, forecasting = self._with_filter(search, pool, config, budget, folder, on_measurements)
        curve = best_so_far(list(search.measured.values()))
        return ArmRun(arm.name, seed, curve, considered, search.seconds, forecasting)

    @staticmethod
    def _without_filter(
        search: _Search, pool: RecordedPool, arm: Arm, budget: int, on_measurements: Callable[[int], None]
    ) -> int:
        """How many candidates were considered."""
        limit = math.inf if arm.gpu_seconds is None else arm.gpu_seconds
        proposals = [pool.reference_id]
        considered = 0
        while proposals:
            for name in proposals:
                if search.seconds >= limit:
                    return considered
                considered += 1
                search.measure(name)
            on_measurements(len(search.measured))
            step = min(PARENTS * MEASURED_PER_PARENT, budget - len(search.measured))
            proposals = [name for name, _ in search.propose(step)]
        return considered

    @staticmethod
    def _with_filter(
        search: _Search,
        pool: RecordedPool,
        config: SurrogateConfig,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None],
    ) -> tuple[int, float]:
        """How many candidates were considered, and the GPU-seconds of their forecasts."""
        folder.mkdir(parents=True, exist_ok=True)
        reference = _candidate(pool, pool.reference_id)
        forecaster = build_forecaster(config.forecaster, seed=config.seed, operation=pool.operation)
        ledger = Ledger(folder / "ledger.sqlite3")
        with Gate(reference, forecaster, ledger, config) as gate:
            (first,) = gate.ask([reference])
            gate.tell(first.id, search.measure(pool.reference_id))
            on_measurements(1)
            considered = 1
            size = PARENTS * MEASURED_PER_PARENT * config.oversample
            while not gate.budget_spent():
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
        return considered, ledger.budget_use(forecasts=True).forecast_gpu_seconds or 0.0


_candidates: dict[tuple[int, str, str | None], Candidate] = {}


def _candidate(pool: RecordedPool, name: str, parent: str | None = None) -> Candidate:
    """A candidate of a pool, made once: its identity takes milliseconds to compute."""
    found = _candidates.get((id(pool), name, parent))
    if found is None:
        parent_code = None if parent is None else pool.candidates[parent].code
        found = _candidates[id(pool), name, parent] = Candidate(name, pool.candidates[name].code, parent_code)
    return found
