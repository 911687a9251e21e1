"""A host of comparisons: a walk over the recorded task, pool by pool."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.decision import Measurement
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.recorded.pool import RecordedPool


class RandomWalkHost:
    """Proposes everything once, in random order."""

    name = "toy-walk"

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None] = lambda done: None,
    ) -> ArmRun:
        names = [name for name in pool.candidates if name != pool.reference_id]
        random.Random(seed).shuffle(names)
        config = arm.seeded(seed, budget, pool)
        if config is None:
            measured = [pool.speedup(name) for name in (pool.reference_id, *names)][:budget]
            return ArmRun(arm.name, seed, best_so_far(measured), budget, 0.0)
        folder.mkdir(parents=True, exist_ok=True)
        reference = Candidate(pool.reference_id, pool.reference.code)
        forecaster = build_forecaster(config.forecaster, seed=seed, operation=pool.operation)
        measured = []
        with Gate(reference, forecaster, Ledger(folder / "ledger.sqlite3"), config) as gate:
            proposals = [pool.reference_id]
            while proposals and not gate.budget_spent():
                candidates = [Candidate(name, pool.candidates[name].code) for name in proposals]
                for decision in gate.ask(candidates):
                    if decision.measure and gate.start(decision.id):
                        found = pool.candidates[decision.candidate_id]
                        speedup = pool.speedup(found.id)
                        gate.tell(decision.id, Measurement(found.outcome, found.time_us, speedup))
                        measured.append(speedup)
                proposals, names = names[:8], names[8:]
        return ArmRun(arm.name, seed, best_so_far(measured), len(pool.candidates), 0.0)
