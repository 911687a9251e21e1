"""What a decision costs as pools, ledgers and the number of processes grow.

``OPENBLAS_NUM_THREADS=1 python -m benchmarks.scale`` (as the command ``gpu-forecasters`` runs; threads that wait for
each other count as processor time) measures three curves with the default configuration (the learned
forecaster, hedged):

* pools of 4 to 1,024 candidates, in a run with 64 measurements;
* ledgers of 1,000 to ``--decisions`` decisions, a quarter of them measured: resuming, then deciding on pools of 32;
* 1 to 32 processes that charge and report measurements in one ledger at the same time.

Sources are those of the recorded tasks, made distinct by a constant; times are drawn at random. Costs are of processor
time, so that other work on the machine does not count, but for that of many processes, which is by the clock. The
exponent beside a curve is the slope of log cost over log size between its two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, machine, write_result
from benchmarks.report_scale import POOL, write_ledger
from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity, Worker
from gpu_forecasters_plugin.pictures import png_bytes
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names

POOL_SIZES = tuple(4**k for k in range(1, 6))
LEDGER_SIZES = (1_000, 10_000, 100_000, 1_000_000)
PROCESSES = (1, 2, 4, 8, 16, 32)

_MEASURED_BEFORE = 64
_ROUNDS = 3
_WRITES = 40
"""Measurements that each process reports."""


@dataclass(frozen=True)
class Curve:
    """Seconds by size.

    Attributes:
        name: its key in the results.
        title: what costs, and for what.
        unit: what the sizes count.
        sizes: ascending.
        seconds: median cost at each size.
    """

    name: str
    title: str
    unit: str
    sizes: Sequence[int]
    seconds: Sequence[float]

    @property
    def exponent(self) -> float | None:
        """Slope of log cost over log size between the two largest sizes."""
        if len(self.sizes) < 2:
            return None
        (small, large), (cheap, dear) = self.sizes[-2:], self.seconds[-2:]
        return math.log(dear / cheap) / math.log(large / small)


def sources() -> Iterator[str]:
    """Distinct kernels without end."""
    codes = [c.code for name in recorded_task_names() for c in load_task(name).candidates.values()]
    random.Random(0).shuffle(codes)
    for number in itertools.count():
        yield f"{codes[number % len(codes)]}\n_NUMBER = {number}\n"


DEFAULT = SurrogateConfig(device="none")

MEASURE_ALL = SurrogateConfig(
    device="none", keep_fraction=1.0, forecaster=ForecasterConfig(kind="climatology")
)
"""Where the forecaster does not matter."""


class Run:
    """A run whose candidates cost nothing but the filter's own work."""

    def __init__(
        self,
        ledger: Path,
        identity: RunIdentity | None = None,
        config: SurrogateConfig = DEFAULT,
    ) -> None:
        self._sources = sources()
        self._chance = random.Random(1)
        self._numbers = itertools.count()
        forecaster = build_forecaster(config.forecaster, operation="scale")
        reference = self.candidates(1)[0]
        self._gate = Gate(reference, forecaster, Ledger(ledger, durable=False), config, identity=identity)
        if not self._gate.resumed:
            self.tell(self._gate.ask([reference]))

    def candidates(self, count: int) -> list[Candidate]:
        """New ones."""
        return [Candidate(f"new{next(self._numbers)}", next(self._sources)) for _ in range(count)]

    def ask(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """Decide on a pool."""
        return self._gate.ask(candidates)

    def tell(self, decisions: Sequence[Decision]) -> None:
        """Measure what was chosen: times at random."""
        for decision in decisions:
            if decision.measure and self._gate.start(decision.id):
                speedup = 2.0 ** self._chance.gauss(0.0, 1.0)
                self._gate.tell(decision.id, Measurement(Outcome.OK, 100.0 / speedup, speedup, 1.0))

    def close(self) -> None:
        """End the run."""
        self._gate.finish()


def _clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds that some work took, and what came of it."""
    begun = time.process_time()
    made = work()
    return time.process_time() - begun, made


def _rounds(run: Run, size: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds to identify the candidates of a pool, to decide on it, and to take its results in, round by round."""
    identify, decide, learn = [], [], []
    for _ in range(_ROUNDS):
        seconds, candidates = _clocked(partial(run.candidates, size))
        identify.append(seconds)
        seconds, decisions = _clocked(partial(run.ask, candidates))
        decide.append(seconds)
        learn.append(_clocked(partial(run.tell, decisions))[0])
    return identify, decide, learn


def pool_curves(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Cost of a pool by its size."""
    found: list[list[float]] = [[], [], []]
    for size in sizes:
        run = Run(folder / f"pool-{size}.sqlite3")
        run.tell(run.ask(run.candidates(_MEASURED_BEFORE * 4)))
        for costs, seconds in zip(found, _rounds(run, size), strict=True):
            costs.append(statistics.median(seconds))
        run.close()
    titles = ("identify a pool's candidates", "decide on a pool", "take a pool's results in")
    names = ("pool_identify", "pool_decide", "pool_tell")
    return [
        Curve(name, title, "candidates in the pool", sizes, seconds)
        for name, title, seconds in zip(names, titles, found, strict=True)
    ]


def ledger_curves(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Cost of resuming, and of a pool of 32, by the decisions in the ledger."""
    resume, decide, tell = [], [], []
    for size in sizes:
        path = folder / f"ledger-{size}.sqlite3"
        write_ledger(path, -(-size // POOL))
        identity = RunIdentity("generated", "k0", device="none", forecaster="generated")

        def resumed(path: Path = path, identity: RunIdentity = identity) -> Run:
            run = Run(path, identity)
            run.tell(run.ask(run.candidates(POOL)))
            return run

        seconds, run = _clocked(resumed)
        resume.append(seconds)
        _, decided, told = _rounds(run, POOL)
        decide.append(statistics.median(decided))
        tell.append(statistics.median(told))
        run.close()
        path.unlink()
    unit = "decisions in the ledger"
    return [
        Curve("ledger_resume", "resume, with the first pool of 32", unit, sizes, resume),
        Curve("ledger_decide", "decide on a pool of 32", unit, sizes, decide),
        Curve("ledger_tell", "take the results of a pool of 32 in", unit, sizes, tell),
    ]


def _report(path: str, decisions: Sequence[int], ready: Any, begin: Any, seconds: Any) -> None:
    """One of many processes: charge and report measurements, as fast as the ledger lets it."""
    ledger = Ledger(path)
    ledger.follow_run(1)
    ready.release()
    begin.wait()
    begun = time.perf_counter()
    for number in decisions:
        ledger.charge(number, Worker.current())
        ledger.record_result(number, Measurement(Outcome.OK, 50.0, 2.0, 1.0))
    seconds.put(time.perf_counter() - begun)


def process_curve(folder: Path, counts: Sequence[int]) -> Curve:
    """Cost of a measurement's two writes, all processes together, by how many there are."""
    costs = []
    context = get_context("spawn")
    for count in counts:
        path = folder / f"processes-{count}.sqlite3"
        run = Run(path, config=MEASURE_ALL)
        numbers = [decision.id for decision in run.ask(run.candidates(count * _WRITES))]
        run.close()
        ready, begin, seconds = context.Semaphore(0), context.Event(), context.Queue()
        shares = [numbers[first::count] for first in range(count)]
        workers = [
            context.Process(target=_report, args=(str(path), share, ready, begin, seconds), daemon=True)
            for share in shares
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            ready.acquire()
        begin.set()
        slowest = max(seconds.get() for _ in workers)
        for worker in workers:
            worker.join()
        costs.append(slowest / (count * _WRITES))
    return Curve("process_write", "charge and report a measurement", "processes at once", counts, costs)


def _text(curves: Sequence[Curve], largest: int) -> str:
    lines = [
        f"Default configuration. Median of {_ROUNDS} pools; ledgers of up to {largest:,} decisions. {machine()}",
        "",
        "The exponent is the slope of log cost over log size between the two largest sizes: 1 is linear; n log n is a "
        "little above 1 (1.16 from 256 to 1,024, 1.08 from 100,000 to 1,000,000).",
        "",
    ]
    for unit, group in itertools.groupby(curves, key=lambda curve: curve.unit):
        some = list(group)
        lines.append(f"| ms to | {' | '.join(f'{size:,}' for size in some[0].sizes)} {unit} | exponent |")
        lines.append("|---" * (len(some[0].sizes) + 2) + "|")
        for curve in some:
            cells = " | ".join(f"{1000 * seconds:,.1f}" for seconds in curve.seconds)
            exponent = "-" if curve.exponent is None else f"{curve.exponent:.2f}"
            lines.append(f"| {curve.title} | {cells} | {exponent} |")
        lines.append("")
    return "\n".join(lines)


def _picture(curves: Sequence[Curve]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    groups = [list(group) for _, group in itertools.groupby(curves, key=lambda curve: curve.unit)]
    for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        for curve in group:
            axes.loglog(curve.sizes, curve.seconds, "o-", label=curve.title)
        first = group[0]
        start = max(curve.seconds[0] for curve in group)
        linear = [start * size / first.sizes[0] for size in first.sizes]
        axes.loglog(first.sizes, linear, ":", color="#888888", label="linear")
        axes.set_xlabel(first.unit)
        axes.set_ylabel("seconds")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    return png_bytes(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write ``results/scale``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decisions", type=int, default=max(LEDGER_SIZES), help="the largest ledger")
    options = parser.parse_args(arguments)
    sizes = [size for size in LEDGER_SIZES if size <= options.decisions] or [options.decisions]
    with tempfile.TemporaryDirectory() as folder, WorkProgress(3, "parts") as progress:
        where = Path(folder)
        progress.update(0, "pools")
        curves = pool_curves(where, POOL_SIZES)
        progress.update(1, "ledgers")
        curves += ledger_curves(where, sizes)
        progress.update(2, "processes")
        curves.append(process_curve(where, PROCESSES))
        progress.update(3, "processes")
    numbers = {
        curve.name: {"sizes": list(curve.sizes), "seconds": list(curve.seconds), "exponent": curve.exponent}
        for curve in curves
    }
    write_result("scale", {"made": machine()} | numbers, _text(curves, max(sizes)))
    write_atomically(RESULTS / "scale.png", _picture(curves))


if __name__ == "__main__":
    main()
