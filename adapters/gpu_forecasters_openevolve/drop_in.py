"""The drop-in evaluator: two lines in a file of the user's own, for ``openevolve-run`` and ``run_evolution``."""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openevolve.config import Config, EvaluatorConfig, load_config

from gpu_forecasters_openevolve.client import evaluation_functions
from gpu_forecasters_openevolve.closing import conclude
from gpu_forecasters_openevolve.command_line import default_output, output_of_command
from gpu_forecasters_openevolve.evaluator_process import LoadRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorPool
from gpu_forecasters_openevolve.messages import ServiceAddress
from gpu_forecasters_openevolve.population import guard_population
from gpu_forecasters_openevolve.service import GateService
from gpu_forecasters_openevolve.sessions import ServiceLimits
from gpu_forecasters_openevolve.shutdown import watch_end
from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import Candidate, decode_source
from gpu_forecasters_plugin.config import MetricConfig, SurrogateConfig, load_surrogate_config
from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.errors import ConfigError, GpuForecastersError, HostError
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.ledger.engine import LEDGER_FILE
from gpu_forecasters_plugin.measuring import MetricReader, answers_in
from gpu_forecasters_plugin.printable import printable

__all__ = ["FilteredRun", "RunSettings", "filtered", "open_run"]

logger = logging.getLogger(__name__)

_active: FilteredRun | None = None


@dataclass(frozen=True)
class RunSettings:
    """Where a filtered run finds and leaves things.

    Attributes:
        program: the initial program, which is the reference that speed-ups are relative to.
        evaluator: the user's evaluator.
        config: OpenEvolve's configuration file; it may hold the ``surrogate:`` section.
        surrogate: file of the section, when it is not in ``config``.
        out: the run's folder.
        measure_workers: evaluations at once; ``None``: as many as the host has workers.
        evaluation_timeout_s: time for one evaluation; ``None``: the host's time-out.
        measurements: budget where the section names none.
    """

    program: Path
    evaluator: Path
    config: Path | None = None
    surrogate: Path | None = None
    out: Path | None = None
    measure_workers: int | None = None
    evaluation_timeout_s: float | None = None
    measurements: int | None = None

    def section(self) -> SurrogateConfig:
        """The checked ``surrogate:`` section."""
        if self.surrogate is not None:
            section = load_surrogate_config(self.surrogate, required=True)
        elif self.config is not None:
            section = load_surrogate_config(self.config)
        else:
            section = SurrogateConfig()
        if section.budget.measurements is None and self.measurements is not None:
            budget = section.budget.model_copy(update={"measurements": self.measurements})
            section = section.model_copy(update={"budget": budget})
        return section

    def host_config(self) -> Config:
        """OpenEvolve's own configuration.

        Raises:
            ConfigError: OpenEvolve cannot read it.
        """
        try:
            return load_config(None if self.config is None else str(self.config))
        except Exception as error:  # whatever its YAML reader, its type checks and its own checks raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"OpenEvolve cannot read config {self.config}: {reason}") from None

    def folder(self) -> Path:
        """The run's folder; OpenEvolve's default when none is named."""
        return self.out if self.out is not None else default_output(self.program)


def _read_reference(path: Path) -> Candidate:
    try:
        reference = Candidate("initial_program", decode_source(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"cannot read the initial program {path}: {error.strerror}") from None
    if reference.problem is not None:
        raise ConfigError(f"initial program {path}: {reference.problem}")
    return reference


def _evaluator_hash(path: Path, evaluator_args: dict[str, Any] | None, metric: MetricConfig) -> str:
    """Identity of what measures: the file, its arguments, and how its answers are read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the evaluator {path}: {error.strerror}") from None
    arguments = json.dumps([evaluator_args or {}, metric.model_dump()], sort_keys=True, default=str)
    return hashlib.sha256(data + arguments.encode()).hexdigest()[:32]


def _called_functions(defined: tuple[str, ...], host: EvaluatorConfig) -> tuple[str, ...]:
    """The evaluator's functions that the host calls for a candidate that gets through, in order."""
    if not host.cascade_evaluation or "evaluate_stage1" not in defined:
        return ("evaluate",)
    if "evaluate_stage2" not in defined:
        return ("evaluate_stage1",)
    third = "evaluate_stage3" in defined and len(host.cascade_thresholds) > 1
    return ("evaluate_stage1", "evaluate_stage2", "evaluate_stage3")[: 3 if third else 2]


class FilteredRun:
    """The gate service of a run, in the host's main process."""

    def __init__(self, settings: RunSettings) -> None:
        """Open ledger and evaluator, and measure the reference unless the ledger has it.

        Raises:
            ConfigError: a setting is wrong, or a file cannot be read.
            HostError: the evaluator cannot be loaded, or the initial program does not measure ``ok``.
            LedgerError: the ledger cannot be opened, or belongs to another run.
            FolderInUseError: another process runs in the same folder.
        """
        self.settings = settings
        hold_folder(settings.folder())
        section, host = settings.section(), settings.host_config()
        reference = _read_reference(settings.program)
        evaluator_hash = _evaluator_hash(settings.evaluator, host.evaluator.evaluator_args, section.metric)
        device = detect_device(section.device)
        task = section.task or printable(settings.program.resolve().parent.name)
        forecaster = build_forecaster(section.forecaster, seed=section.seed, operation=task)
        identity = RunIdentity(
            task,
            reference.key,
            evaluator_hash,
            device.name,
            device.driver,
            BINS.name,
            forecaster.name,
            forecaster.model,
            forecaster.prompt_hash,
            section.seed,
        )
        self.ledger = Ledger(section.ledger or LEDGER_FILE, base=settings.folder())
        run_name = "run" if section.ledger is None else f"{settings.folder().resolve()}"
        self.gate = Gate(reference, forecaster, self.ledger, section, identity=identity, run_name=run_name)
        workers = host.evaluator.parallel_evaluations
        load = LoadRequest(str(settings.evaluator.resolve()), self.ledger.target, self.ledger.run_id)
        self.evaluators = EvaluatorPool(load, settings.measure_workers or workers)
        self._called = _called_functions(self.evaluators.info.functions, host.evaluator)
        limits = ServiceLimits(
            # With everything kept there is nothing to wait for.
            pool_size=1 if section.keep_fraction == 1.0 else workers,
            workers=workers,
            evaluation_timeout_s=settings.evaluation_timeout_s or host.evaluator.timeout,
            host_timeout_s=host.evaluator.timeout,
            max_wait_s=section.pool.max_wait_s,
            last_function=self._called[-1],
        )
        self.service = GateService(
            self.gate, self.evaluators, limits, on_spent=self._end_host, on_failure=lambda _: self._end_host()
        )
        self._restore_population: Callable[[], None] = lambda: None
        self._end_watch: Callable[[], None] = lambda: None
        self._ends_host = False
        self.interrupted = False
        self.gate.close_interrupted()
        if workers == 1 and section.keep_fraction < 1.0:
            logger.warning(
                "evaluator.parallel_evaluations is 1: pools of one candidate are all measured, so nothing is "
                "saved; set it to %d, or start the run with: gpu-forecasters openevolve",
                section.oversample,
            )

    def start(self) -> None:
        """Serve workers, and measure the reference first.

        Raises:
            ConfigError: the evaluator does not take the configured ``evaluator_args``.
            HostError: the reference did not measure ``ok``.
        """
        address = self.service.address
        functions = evaluation_functions(address)
        self._check_arguments(functions["evaluate"])
        address.publish()
        self.service.start()
        self._restore_population = guard_population(self.service.program_processed)
        self._end_watch = watch_end(on_request=self._asked_to_end, on_stopping=self.service.host_stops)
        atexit.register(self.close)
        if self.gate.budget_spent():
            raise ConfigError(
                f"the budget of this run is spent already ({self.ledger.budget_use().measurements} measurements, "
                f"ledger {self.ledger.url}): raise surrogate.budget, or use a new output folder"
            )
        if self.gate.reference_measurement() is None:
            self._measure_reference(functions)
        measured = self.gate.reference_measurement()
        if measured is None:
            raise HostError(
                "the initial program is the reference and must measure ok, but did not: "
                f"{self.gate.reference_problem()}"
            )
        metrics = {
            k: v for answer in answers_in(measured.payload).values() for k, v in answer.metrics.items()
        }
        name = MetricReader(self.gate.config.metric).metric_read(metrics)
        print(
            f"surrogate filter: speed is read from {name}; the reference has {measured.value:.6g}",
            file=sys.stderr,
        )

    def _measure_reference(self, functions: dict[str, Any]) -> None:
        path = str(self.settings.program.resolve())
        arguments = self.settings.host_config().evaluator.evaluator_args or {}
        for name in self._called:
            functions[name](path, **(arguments if name == "evaluate" else {}))

    def _check_arguments(self, evaluate: Callable[..., Any]) -> None:
        """What the host checks as well, but only after the reference was measured."""
        arguments = self.settings.host_config().evaluator.evaluator_args
        if not arguments:
            return
        signature = inspect.signature(evaluate)
        try:
            signature.bind(object(), **arguments)
        except TypeError as error:
            raise ConfigError(
                f"evaluator_args {sorted(arguments)} do not fit evaluate{signature} of "
                f"{self.settings.evaluator}: {error}"
            ) from None

    def _end_host(self) -> None:
        self._ends_host = True
        # What Ctrl-C does: OpenEvolve then stops in good order and saves its best program. Before it has its
        # handler, there is no run to end yet.
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)

    def _asked_to_end(self) -> None:
        self.interrupted = self.interrupted or not self._ends_host

    def close(self, *, at_once: bool = False) -> None:
        """Stop serving; a measurement that runs is given its time to end, unless it is to be ``at_once``."""
        atexit.unregister(self.close)
        self._restore_population()
        self._end_watch()
        self.service.close(at_once=at_once)
        release_folder(self.settings.folder())


def open_run(settings: RunSettings) -> FilteredRun:
    """The run of this process; opened, and its reference measured, the first time."""
    global _active
    if _active is None:
        run = FilteredRun(settings)
        try:
            run.start()
        except BaseException:
            run.close(at_once=True)  # Ctrl-C among it: nobody waits for the reference any more
            raise
        _active = run
    return _active


def _conclude_at_exit(run: FilteredRun) -> None:
    run.close()
    try:
        conclude(run)
    except (GpuForecastersError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)


def filtered(
    namespace: MutableMapping[str, Any],
    *,
    program: str | Path,
    evaluator: str | Path,
    config: str | Path | None = None,
    surrogate: str | Path | None = None,
    out: str | Path | None = None,
    measure_workers: int | None = None,
    evaluation_timeout_s: float | None = None,
    measurements: int | None = None,
) -> None:
    """Put the surrogate filter in front of an evaluator.

    A file that OpenEvolve takes as evaluator holds nothing but::

        from gpu_forecasters_openevolve import filtered
        filtered(globals(), program="initial_program.py", evaluator="evaluator.py", config="config.yaml")

    It defines ``evaluate``, and the cascade's stages where the user's evaluator has them.

    Args:
        namespace: the ``globals()`` of that file; relative paths are relative to its folder.
        program: the initial program: the reference that speed-ups are relative to.
        evaluator: the user's own evaluator, left as it is.
        config: OpenEvolve's configuration file; its ``surrogate:`` section configures the filter.
        surrogate: file of that section, when it is elsewhere.
        out: the run's folder, where the ledger goes. When left out: where ``openevolve-run`` puts its output, or,
            under ``run_evolution``, which does not say, OpenEvolve's default.
        measure_workers: evaluations at once; as many as OpenEvolve has workers when left out.
        evaluation_timeout_s: time for one evaluation, in seconds; OpenEvolve's when left out.
        measurements: budget where the section names none.

    Raises:
        ConfigError: a setting is wrong, or a file cannot be read.
        HostError: the evaluator cannot be loaded, or the initial program does not measure ``ok``.
        LedgerError: the ledger cannot be opened, or belongs to another run.
    """
    file = Path(namespace["__file__"]).resolve()
    base = file.parent

    def resolved(path: str | Path | None) -> Path | None:
        return None if path is None else base / path

    settings = RunSettings(
        base / program,
        base / evaluator,
        resolved(config),
        resolved(surrogate),
        output_of_command(file) if out is None else base / out,
        measure_workers,
        evaluation_timeout_s,
        measurements,
    )
    address = ServiceAddress.published()
    if address is None or address.pid == os.getpid():
        is_first = _active is None
        run = open_run(settings)
        if is_first:
            # OpenEvolve does not say when it is done: the end of its process is the end of the run.
            atexit.register(_conclude_at_exit, run)
        address = run.service.address
    namespace.update(evaluation_functions(address))
