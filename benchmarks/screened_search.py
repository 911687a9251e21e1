"""What the screen is worth where half of the proposals are broken, as a language model's may be.

``python -m benchmarks.screened_search`` replays recorded tasks in this process with paired seeds at equal budget. Each
proposal is by chance, one to one, the recorded kernel or the same kernel with one of the mistakes of
:mod:`benchmarks.screening_sources`, which the GPU answers with a failure. Without a screen the filter finds that out by
measuring; with it the compiler is asked first, for real: ``--keep DIR`` keeps its verdicts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import machine, write_result
from benchmarks.screening import write_task_file
from benchmarks.screening_sources import KINDS, with_mistake
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.compare.search_ledger import search_ledger
from gpu_forecasters_plugin.config import BudgetConfig, ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome, Reason
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_task
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer
from gpu_forecasters_plugin.screen import Screener, ScreenJob, Verdict
from gpu_forecasters_plugin.screen.pool_screen import PoolScreen
from gpu_forecasters_plugin.screen.settings import ScreenConfig

TASKS = ("softmax", "fp8_quant")
_PARENTS, _PER_PARENT = 2, 4
_RANK_DECAY = 0.6
_BROKEN = 0.5
_FOREVER_S = 1e6
_BROKEN_MARK = "broken "


def broken_twins(pool: RecordedPool) -> dict[str, str]:
    """The text of every source of a task with a mistake, by its id; of kinds that are drawn by the id."""
    twins = {}
    for name, candidate in pool.candidates.items():
        chance = random.Random(f"twin {name}")
        kinds = list(KINDS)
        chance.shuffle(kinds)
        made = (with_mistake(candidate.code, kind, chance) for kind in kinds)
        twins[name] = next(code for code in made if code is not None and code != candidate.code)
    return twins


def screened(task: str, codes: Sequence[str], folder: Path, workers: int | None) -> dict[str, Verdict]:
    """The compiler's verdicts, by text."""
    job = ScreenJob("", "sm_90", task_file=str(write_task_file(folder, task)), seconds=60.0)
    screener = Screener(job, folder=folder / "verdicts", workers=workers)
    try:
        with WorkProgress(len(codes), "sources") as progress:
            found = screener.screen(codes, _FOREVER_S, seen=lambda done: progress.update(done, task))
    finally:
        screener.close()
    return dict(zip(codes, found, strict=True))


class _Known:
    """A screener whose verdicts are known."""

    problem: str | None = None

    def __init__(self, verdicts: Mapping[str, Verdict]) -> None:
        self._verdicts = verdicts

    def screen(self, codes: Sequence[str], deadline_s: float) -> list[Verdict]:
        return [self._verdicts[code] for code in codes]

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class Search:
    """How a search went.

    Attributes:
        task, arm, seed: which.
        proposals: candidates that were considered.
        on_broken: measurements spent on broken kernels.
        on_other_failures: measurements spent on recorded kernels that fail.
        best: speed-up of the best kernel over the reference.
        share: that over the best of the task.
    """

    task: str
    arm: str
    seed: int
    proposals: int
    on_broken: int
    on_other_failures: int
    best: float
    share: float


class _World:
    """A recorded task half of whose proposals are broken; the same for every arm with the same seed."""

    def __init__(self, pool: RecordedPool, twins: Mapping[str, str], seed: int) -> None:
        self._pool = pool
        self._twins = twins
        self._proposer = RecordedProposer(ProposalGraph.from_pool(pool), seed=seed)
        self._seed = seed
        self._step = 0
        self.speedups: dict[str, float] = {}
        self.seen: set[str] = {pool.reference_id}
        self.failures: Counter[str] = Counter()

    def propose(self, per_parent: int) -> list[Candidate]:
        """The next step's proposals, none of them a second time."""
        ranked = sorted(self.speedups, key=lambda name: (-self.speedups[name], name))
        chance = random.Random(f"{self._seed}/{self._step}")
        self._step += 1
        weights = [_RANK_DECAY**rank for rank in range(len(ranked))]
        parents = [ranked[0], chance.choices(ranked, weights)[0]]
        return [
            child
            for index in range(per_parent * _PARENTS)
            if (child := self._child(parents[index % _PARENTS])) is not None
        ]

    def _child(self, parent: str) -> Candidate | None:
        for _ in range(1000):
            name = self._proposer.next_child(parent)
            is_broken = random.Random(f"broken {self._seed} {name}").random() < _BROKEN
            shown = f"{_BROKEN_MARK}{name}" if is_broken else name
            if shown not in self.seen:
                self.seen.add(shown)
                code = self._twins[name] if is_broken else self._pool.candidates[name].code
                return Candidate(shown, code, self._pool.candidates[parent].code)
        return None

    def measure(self, name: str) -> Measurement:
        """What the GPU says."""
        if name.startswith(_BROKEN_MARK):
            self.failures["broken"] += 1
            return Measurement(Outcome.RUNTIME_ERROR, error="broken", gpu_seconds=1.0)
        recorded = self._pool.candidates[name]
        speedup = self._pool.speedup(name)
        if speedup is None:
            self.failures["recorded"] += 1
        else:
            self.speedups[name] = speedup
        return Measurement(recorded.outcome, recorded.time_us, speedup, 1.0, recorded.error)

    def ended(self, arm: str, proposals: int) -> Search:
        best = max(self.speedups.values())
        return Search(
            self._pool.task,
            arm,
            self._seed,
            proposals,
            self.failures["broken"],
            self.failures["recorded"],
            best,
            best / self._pool.best_speedup,
        )


def without_filter(world: _World, pool: RecordedPool, budget: int) -> Search:
    """Measure whatever is proposed."""
    world.measure(pool.reference_id)
    used = 1
    while used < budget and (children := world.propose(_PER_PARENT)):
        for child in children[: budget - used]:
            world.measure(child.id)
            used += 1
    return world.ended("no filter", used)


def with_filter(
    world: _World,
    pool: RecordedPool,
    section: SurrogateConfig,
    arm: str,
    verdicts: Mapping[str, Verdict],
    folder: Path,
) -> Search:
    """The filter, with the screen that its section asks for."""
    reference = Candidate("reference", pool.reference.code)
    screen = None
    if section.screen.policy != "off":
        screen = PoolScreen(_Known(verdicts), section.screen)  # type: ignore[arg-type]
    forecaster = build_forecaster(section.forecaster, seed=section.seed, operation=pool.operation)
    proposals = 1
    with search_ledger(folder) as ledger, Gate(reference, forecaster, ledger, section, screen=screen) as gate:
        (first,) = gate.ask([reference], measure_all=True)
        gate.tell(first.id, world.measure(pool.reference_id))
        while not gate.budget_spent() and (children := world.propose(_PER_PARENT * section.oversample)):
            proposals += len(children)
            for child, decision in zip(children, gate.ask(children), strict=True):
                if decision.measure and gate.start(decision.id):
                    gate.tell(decision.id, world.measure(child.id))
                elif decision.reason is not Reason.INVALID_SOURCE:
                    world.seen.discard(child.id)  # not measured: it may be proposed again
    return world.ended(arm, proposals)


def arms(seed: int, budget: int, pool: RecordedPool) -> dict[str, SurrogateConfig]:
    """The filter's settings by arm."""
    shared = SurrogateConfig(
        seed=seed,
        budget=BudgetConfig(measurements=budget),
        task=pool.operation,
        device=pool.device,
        max_proposals=400,
    )
    blind = {"forecaster": ForecasterConfig(kind="random")}
    screen = {"screen": ScreenConfig(policy="skip", arch="sm_90")}
    return {
        "random, no screen": shared.model_copy(update=blind),
        "random, screen": shared.model_copy(update=blind | screen),
        "learned, no screen": shared,
        "learned, screen": shared.model_copy(update=screen),
    }


def searches(task: str, seeds: int, budget: int, keep: Path, workers: int | None) -> list[Search]:
    """Every arm with every seed on one task."""
    pool = load_task(task)
    twins = broken_twins(pool)
    originals = [candidate.code for candidate in pool.candidates.values()]
    verdicts = screened(task, [*twins.values(), *originals], keep, workers)
    found = []
    names = ["no filter", *arms(0, budget, pool)]
    with WorkProgress(seeds * len(names), "searches") as progress, tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            found.append(without_filter(_World(pool, twins, seed), pool, budget))
            for arm, section in arms(seed, budget, pool).items():
                world = _World(pool, twins, seed)
                found.append(with_filter(world, pool, section, arm, verdicts, Path(folder, arm)))
                progress.update(len(found), task)
    return found


def table(found: Sequence[Search]) -> str:
    """Means over seeds, by task and arm."""
    lines = [
        "| task | arm | proposals | measurements on broken kernels | on recorded failures | best speed-up "
        "| share of the task's best | seeds worse than without the screen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, arm in dict.fromkeys((search.task, search.arm) for search in found):
        mine = [search for search in found if (search.task, search.arm) == (task, arm)]
        means = {
            name: statistics.mean(getattr(search, name) for search in mine)
            for name in ("proposals", "on_broken", "on_other_failures", "best", "share")
        }
        lines.append(
            f"| {task} | {arm} | {means['proposals']:.0f} | {means['on_broken']:.1f} "
            f"| {means['on_other_failures']:.1f} | {means['best']:.3f} | {means['share']:.3f} | {_worse(mine, found)} |"
        )
    return "\n".join(lines) + "\n"


def _worse(mine: Sequence[Search], found: Sequence[Search]) -> str:
    """In how many seeds the same filter without the screen found a faster kernel."""
    if not mine[0].arm.endswith(", screen"):
        return "-"
    other = mine[0].arm.replace(", screen", ", no screen")
    best = {s.seed: s.best for s in found if (s.task, s.arm) == (mine[0].task, other)}
    return f"{sum(search.best < best[search.seed] for search in mine)} of {len(mine)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--keep", type=Path, default=Path("build/screened_search"), help="folder of verdicts")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args(arguments)
    options.keep.mkdir(parents=True, exist_ok=True)
    found = [
        search
        for task in options.tasks
        for search in searches(task, options.seeds, options.budget, options.keep, options.workers)
    ]
    text = (
        f"{machine()}\n\nHalf of the proposals are broken; {options.seeds} paired seeds, {options.budget} measurements "
        f"per search. Verdicts are the compiler's own.\n\n{table(found)}"
    )
    write_result("screened_search", [asdict(search) for search in found], text)


if __name__ == "__main__":
    main()
