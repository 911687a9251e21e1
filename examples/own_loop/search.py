"""A hand-written search, filtered: of every pool of 16 kernels it measures the 4 that look best."""

import random
import sys

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import load_surrogate_config
from gpu_forecasters_plugin.decision import Measurement
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.recorded.pool import open_pool

task = open_pool("cross_entropy")  # recorded kernels: put your own proposals and your own GPU in its place
speedups: dict[str, float] = {}


def propose(name: str) -> Candidate:
    while name in speedups or random.random() < 0.3:
        name = random.choice(task.neighbours(name))
    return Candidate(name, task.candidates[name].code)


def measure(name: str) -> Measurement:
    return Measurement(task.candidates[name].outcome, task.candidates[name].time_us, task.speedup(name))


config = load_surrogate_config("surrogate.yaml")
pool = [reference := Candidate(task.reference_id, task.reference.code)]
forecaster = build_forecaster(config.forecaster, operation=task.operation)
with Gate(reference, forecaster, Ledger(sys.argv[1]), config) as gate:
    while not gate.budget_spent():
        for decision in gate.ask(pool):
            if decision.measure and gate.start(decision.id):
                gate.tell(decision.id, measure(decision.candidate_id))
            if answer := gate.answer(decision.candidate_key):  # also of an earlier search in this ledger
                speedups[decision.candidate_id] = answer.speedup or 0.0
        parents = random.choices(sorted(speedups, key=lambda name: -speedups[name])[:4], k=16)
        pool = list({candidate.id: candidate for candidate in map(propose, parents)}.values())
    print(f"best of {config.budget.measurements} measurements: {gate.best_speedup:.2f}x")
