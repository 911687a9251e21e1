"""The filter around a ``ShinkaEvolveRunner``: two lines in the user's own script."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from pathlib import Path

from shinka.core import ShinkaEvolveRunner

from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config
from gpu_forecasters_plugin.ending import RunEnd
from gpu_forecasters_plugin.errors import ConfigError, HostError
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.measuring import MetricReader
from gpu_forecasters_plugin.opening import evaluator_hash, open_gate, read_reference
from gpu_forecasters_plugin.pooling import PooledGate
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_shinka.capacity import Capacity
from gpu_forecasters_shinka.closing import conclude
from gpu_forecasters_shinka.cluster import ClusterJobs
from gpu_forecasters_shinka.host import HostRun
from gpu_forecasters_shinka.measurer import Measurer
from gpu_forecasters_shinka.processes import end_orphans
from gpu_forecasters_shinka.results import answer_of, results_in
from gpu_forecasters_shinka.scheduler import FilteredScheduler
from gpu_forecasters_shinka.supported import check_host
from gpu_forecasters_shinka.unfinished import check_database, set_aside_unfinished

__all__ = ["FilteredRun", "filtered"]

_UNLIMITED = 1_000_000
"""Generations that the host counts for a run that only its cost ends."""


def _with_budget(section: SurrogateConfig, generations: int) -> SurrogateConfig:
    """The section with as many measurements as the host would have made, where it names none."""
    if section.budget.measurements is not None or generations >= _UNLIMITED:
        return section
    budget = section.budget.model_copy(update={"measurements": generations})
    return section.model_copy(update={"budget": budget})


class FilteredRun:
    """A runner's run behind the filter.

    Attributes:
        runner: the user's.
        folder: the run's folder, the runner's ``results_dir``.
        gate, ledger: who decides, and where it is written.
        jobs: evaluations on a cluster.
        generations: proposals after which the run ends in any case.
        over: set when the budget is spent and stored, or nothing new is proposed any more.
        interrupted: whether something from outside has ended it.
        exit_code: what :func:`conclude` made of it, once it has ended.
    """

    def __init__(
        self,
        runner: ShinkaEvolveRunner,
        section: SurrogateConfig,
        *,
        measure_jobs: int | None = None,
        proposal_jobs: int | None = None,
        task: str | None = None,
    ) -> None:
        """Open ledger and gate, and stand between the runner and its scheduler.

        Raises:
            ConfigError: a setting is wrong, or a file cannot be read.
            HostError: this ShinkaEvolve lacks what the filter needs, or its database is broken.
            LedgerError: the ledger cannot be opened, or belongs to another run.
            FolderInUseError: another process runs in the same folder.
        """
        check_host(runner)
        if isinstance(runner.scheduler, FilteredScheduler):
            raise ConfigError("this runner has the filter already: filtered() is called once for each runner")
        self.runner = runner
        self.folder = Path(runner.results_dir)
        hold_folder(self.folder)
        check_database(self.folder)
        program = runner.evo_config.init_program_path
        if not program:
            raise ConfigError(
                "evo.init_program_path is not set: the initial program is the reference, give one"
            )
        section = _with_budget(section, runner.evo_config.num_generations)
        reference = read_reference(Path(program))
        evaluator = self._evaluator_hash(section)
        if task is None:
            parent = Path(program).resolve().parent
            task = (self.folder.resolve() if parent == self.folder.resolve() else parent).name
        self.gate, self.ledger = open_gate(
            section, reference, task=printable(task), evaluator=evaluator, folder=self.folder
        )
        self.jobs = ClusterJobs(self.folder)
        self.gate.close_interrupted(spared={job.decision_id for job in self.jobs.left()})
        self.interrupted = self._begun = False
        self.exit_code: int | None = None
        self.capacity = Capacity.of(runner, section, measure_jobs, proposal_jobs)
        self.capacity.apply(runner)
        self._put_between(section)
        self._reference_code = Path(program).read_bytes()

    def _evaluator_hash(self, section: SurrogateConfig) -> str:
        config = self.runner.job_config
        path = Path(config.eval_program_path or "")
        image = getattr(config, "image", None)
        arguments = {k: v for k, v in {"arguments": config.extra_cmd_args, "image": image}.items() if v}
        if image is not None and not path.is_file():  # it is in the image
            text = json.dumps(
                [str(path), arguments, section.metric.model_dump()], sort_keys=True, default=str
            )
            return hashlib.sha256(text.encode()).hexdigest()[:32]
        return evaluator_hash(path, arguments, section.metric)

    def _put_between(self, section: SurrogateConfig) -> None:
        runner, sizes = self.runner, self.capacity
        measurer = Measurer(self.gate, runner.scheduler, self.jobs, sizes.measure_jobs)
        self.pool = PooledGate(
            self.gate,
            size=sizes.pool_size,
            workers=max(sizes.pool_size, sizes.measure_jobs),
            max_wait_s=sizes.max_wait_s,
            may_release=lambda: measurer.has_room,
        )
        self.over = threading.Event()
        self.end = RunEnd(self.gate, sizes.pool_size, self.over.set)
        self.host = HostRun(self)
        self.scheduler = FilteredScheduler(
            runner.scheduler,
            self.gate,
            self.pool,
            measurer,
            self.end,
            on_skipped=self.host.skipped,
            on_measured=self.host.measured,
        )
        runner.scheduler = self.scheduler
        measurements = section.budget.measurements
        # The host counts proposals, the initial program among them.
        self.generations = _UNLIMITED if measurements is None else 1 + measurements * section.max_proposals
        runner.evo_config.num_generations = self.generations
        self._run_host = runner.run_async
        runner.run_async = self.run_async

    @property
    def exhausted(self) -> bool:
        """Whether the run ends because every proposal repeats a source that is known."""
        return self.end.exhausted

    @property
    def failure(self) -> BaseException | None:
        """Why the run cannot go on."""
        return self.scheduler.failure

    # -- the run --------------------------------------------------------------------------------------------

    async def run_async(self) -> None:
        """What the runner's own ``run_async`` does, behind the filter; ends with a summary.

        Raises:
            ConfigError: the budget is spent already.
            HostError: the initial program did not measure ``ok``.
            Exception: what the run could not go on for, after its summary.
        """
        try:
            await asyncio.to_thread(self._begin)
            self._begun = True
            if not self.gate.budget_spent():  # the reference alone may have been all that the budget allows
                set_aside_unfinished(self.folder)
                async with self.host.watched():
                    await self._run_host()
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.interrupted = True
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(self.close))
            if self._begun:
                self.exit_code = conclude(self)
        if self.failure is not None:
            raise self.failure

    def _begin(self) -> None:
        """Measure the reference first, unless the ledger has it."""
        if self.runner.scheduler.job_type == "local":  # a cluster may run its jobs on this machine
            end_orphans(self.folder)
        self.scheduler.collect_left(self.jobs)
        if self.gate.budget_spent():
            raise ConfigError(
                f"the budget of this run is spent already ({self.ledger.budget_use().measurements} measurements, "
                f"ledger {self.ledger.url}): raise surrogate.budget, or use a new output folder"
            )
        if not self.reference_measured:
            folder = self.folder / "gen_0"
            (folder / "results").mkdir(parents=True, exist_ok=True)
            program = folder / f"main.{self.runner.lang_ext}"
            program.write_bytes(self._reference_code)
            self.scheduler.run(str(program), str(folder / "results"))
        measured = self.gate.reference_measurement()
        if measured is None:
            raise HostError(
                "the initial program is the reference and must measure ok, but did not: "
                f"{self.failure or self.gate.reference_problem()}"
            )
        metrics = answer_of(results_in(measured)).metrics
        name = MetricReader(self.gate.config.metric).metric_read(metrics)
        print(
            f"surrogate filter: speed is read from {name}; the reference has {measured.value:.6g}",
            file=sys.stderr,
        )

    @property
    def reference_measured(self) -> bool:
        """Whether the reference has a measurement that is ``ok``."""
        return self.gate.reference_measurement() is not None

    def close(self) -> None:
        """Stop; what is being measured is ended."""
        self.scheduler.close()
        release_folder(self.folder)


def filtered(
    runner: ShinkaEvolveRunner,
    surrogate: str | Path | SurrogateConfig | None = None,
    *,
    measure_jobs: int | None = None,
    proposal_jobs: int | None = None,
    task: str | None = None,
) -> FilteredRun:
    """Put the surrogate filter in front of a runner's evaluations.

    A script that makes a runner and runs it needs these two lines between::

        from gpu_forecasters_shinka import filtered
        filtered(runner, "surrogate.yaml")

    Args:
        runner: not started yet. Its ``num_generations`` is the number of measurements, unless the section has a
            budget; it makes as many proposals as that takes.
        surrogate: file with the ``surrogate:`` section, or the section itself; all defaults when left out.
        measure_jobs: evaluations at once; the runner's ``max_evaluation_jobs`` when left out.
        proposal_jobs: proposals that are made at once; the runner's ``max_proposal_jobs`` times
            ``surrogate.oversample``, and no more than a pool takes, when left out.
        task: name of the task; the folder of the initial program when left out.

    Returns:
        The run, whose ``gate`` and ``ledger`` can be looked at.

    Raises:
        ConfigError: a setting is wrong, or a file cannot be read.
        HostError: this ShinkaEvolve lacks what the filter needs.
        LedgerError: the ledger cannot be opened, or belongs to another run.
        FolderInUseError: another process runs in the same folder.
    """
    if surrogate is None:
        section = SurrogateConfig()
    elif isinstance(surrogate, SurrogateConfig):
        section = surrogate
    else:
        section = load_surrogate_config(surrogate, required=True)
    return FilteredRun(runner, section, measure_jobs=measure_jobs, proposal_jobs=proposal_jobs, task=task)
