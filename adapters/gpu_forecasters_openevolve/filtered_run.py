"""A filtered run, in the host's main process: its gate, its evaluators and the service between them."""

from __future__ import annotations

import atexit
import inspect
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

from openevolve.config import EvaluatorConfig

from gpu_forecasters_openevolve.client import evaluation_functions
from gpu_forecasters_openevolve.evaluator_process import LoadRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorPool
from gpu_forecasters_openevolve.population import guard_population
from gpu_forecasters_openevolve.service import GateService
from gpu_forecasters_openevolve.sessions import ServiceLimits
from gpu_forecasters_openevolve.settings import RunSettings
from gpu_forecasters_openevolve.shutdown import RunWatch
from gpu_forecasters_plugin.errors import ConfigError, HostError
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.measuring import MetricReader, answers_in
from gpu_forecasters_plugin.opening import evaluator_hash, open_gate, read_reference
from gpu_forecasters_plugin.printable import printable

__all__ = ["FilteredRun"]

logger = logging.getLogger(__name__)


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
        reference = read_reference(settings.program)
        evaluator = evaluator_hash(settings.evaluator, host.evaluator.evaluator_args, section.metric)
        task = printable(settings.program.resolve().parent.name)
        self.gate, self.ledger = open_gate(
            section,
            reference,
            task=task,
            evaluator=evaluator,
            folder=settings.folder(),
            evaluator_file=settings.evaluator.resolve(),
            evaluator_args=host.evaluator.evaluator_args,
        )
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
        self._watch: RunWatch | None = None
        self._ends_host = False
        self.interrupted: int | None = None
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
        self._watch = RunWatch(on_request=self._asked_to_end, on_stopping=self.service.host_stops)
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
                f"{self.gate.reference_problem() or 'it was not measured; the lines above say why'}"
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
        if self._watch is not None:
            self._watch.end_run()

    def _asked_to_end(self, by: int | None) -> None:
        if self.interrupted is None and not self._ends_host:
            self.interrupted = by or signal.SIGINT
        # Now, maybe in a signal's handler: the host's own thread may be waiting for a gate that waits for a forecast.
        self.gate.close()

    def close(self, *, at_once: bool = False) -> None:
        """Stop serving; a measurement that runs is given its time to end, unless it is to be ``at_once``."""
        atexit.unregister(self.close)
        self._restore_population()
        if self._watch is not None:
            self._watch.close()
        self.service.close(at_once=at_once)
        self.gate.finish()
        release_folder(self.settings.folder())
