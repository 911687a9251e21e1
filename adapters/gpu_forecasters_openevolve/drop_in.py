"""The drop-in evaluator: two lines in a file of the user's own, for ``openevolve-run`` and ``run_evolution``."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gpu_forecasters_openevolve.client import evaluation_functions
from gpu_forecasters_openevolve.closing import conclude
from gpu_forecasters_openevolve.command_line import output_of_command
from gpu_forecasters_openevolve.filtered_run import FilteredRun
from gpu_forecasters_openevolve.messages import ServiceAddress
from gpu_forecasters_openevolve.parentage import listen_for_parents
from gpu_forecasters_openevolve.settings import RunSettings
from gpu_forecasters_plugin.complaints import complain
from gpu_forecasters_plugin.errors import GpuForecastersError

__all__ = ["filtered", "open_run"]

_active: FilteredRun | None = None


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
        complain(error)


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
        SystemExit: instead of any of these, once it was said, where this process is ``openevolve-run``.
    """
    file = Path(namespace["__file__"]).resolve()
    base = file.parent

    def resolved(path: str | Path | None) -> Path | None:
        return None if path is None else base / path

    output = output_of_command(file)
    settings = RunSettings(
        base / program,
        base / evaluator,
        resolved(config),
        resolved(surrogate),
        output if out is None else base / out,
        measure_workers,
        evaluation_timeout_s,
        measurements,
    )
    address = ServiceAddress.published()
    if address is None or address.pid == os.getpid():
        is_first = _active is None
        try:
            run = open_run(settings)
        except (GpuForecastersError, OSError) as error:
            if output is None:
                raise  # into the script that has called OpenEvolve
            # openevolve-run would show it below a traceback of its own.
            sys.exit(complain(error))
        if is_first:
            # OpenEvolve does not say when it is done: the end of its process is the end of the run.
            atexit.register(_conclude_at_exit, run)
        address = run.service.address
    listen_for_parents()
    namespace.update(evaluation_functions(address))
