"""``gpu-forecasters shinka``: ShinkaEvolve's own commands with the filter in front of the user's evaluation."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from shinka import launch_hydra
from shinka.cli import launch as shinka_launch
from shinka.cli import run as shinka_run
from shinka.core import ShinkaEvolveRunner
from shinka.core.async_runner import RichTeeConsole

from gpu_forecasters_plugin.budget_progress import budget_progress
from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config, parse_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError, GpuForecastersError
from gpu_forecasters_plugin.folder_lock import hold_folder
from gpu_forecasters_shinka.command_line import host_parser, is_run_command, parse_run_command
from gpu_forecasters_shinka.filtering import FilteredRun

__all__ = ["run_filtered"]

_LOG = "evolution_run.log"


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _runner_class(
    section: Callable[[], SurrogateConfig], sizes: dict[str, int | None], task: str | None, ended: list[int]
) -> type[ShinkaEvolveRunner]:
    """A runner whose run is filtered; the host's commands make one, and run it.

    Args:
        section: the ``surrogate:`` section.
        sizes: ``measure_jobs`` and ``proposal_jobs``.
        task: name of the task.
        ended: gets the exit code.
    """

    class _Runner(ShinkaEvolveRunner):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            hold_folder(Path(settings["evo_config"].results_dir))
            quiet = not settings.get("verbose", True)
            try:
                with redirect_stdout(io.StringIO()) if quiet else ExitStack():  # a banner
                    super().__init__(*arguments, **settings)
            except ValueError as error:  # no such model, or no key for it
                raise ConfigError(" ".join(str(error).split())) from None
            self._log = _log_to(Path(self.results_dir) / _LOG) if quiet else None
            if quiet:  # its tables go to the log alone
                self.console = RichTeeConsole(Console(quiet=True), Path(self.results_dir) / _LOG)

        def run(self) -> None:
            run = FilteredRun(self, section(), task=task, **sizes)
            try:
                with budget_progress(run.gate, run.ledger) if self._log is not None else ExitStack():
                    super().run()
            finally:
                if run.exit_code is not None:
                    ended.append(run.exit_code)

    return _Runner


def _log_to(path: Path) -> logging.Handler:
    """Have the host's log in its usual file, and not on the terminal."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    log = logging.getLogger("shinka")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return handler


def run_filtered(
    arguments: Sequence[str],
    *,
    out: str | None = None,
    surrogate: str | None = None,
    measure_jobs: int | None = None,
    proposal_jobs: int | None = None,
) -> int:
    """Run ShinkaEvolve with the filter.

    Args:
        arguments: what ``shinka_run`` or ``shinka_launch`` takes.
        out: the run's folder.
        surrogate: file of the ``surrogate:`` section, when it is not in the host's configuration.
        measure_jobs: evaluations at once; ``None``: the host's ``max_evaluation_jobs``.
        proposal_jobs: proposals at once; ``None``: the host's ``max_proposal_jobs``, oversampled.

    Returns:
        Exit code: 0 done, 1 failed, 2 overrides that cannot be understood.

    Raises:
        ConfigError, HostError, LedgerError, FolderInUseError: before anything was measured.
    """
    if not arguments:  # shinka_launch would start a task of its own examples
        raise ConfigError(
            "nothing to run: give --task-dir and what shinka_run takes, or overrides of shinka_launch"
        )
    ended: list[int] = []
    sizes = {"measure_jobs": measure_jobs, "proposal_jobs": proposal_jobs}
    if is_run_command(arguments):
        return _shinka_run(arguments, out, surrogate, sizes, ended)
    return _shinka_launch(arguments, out, surrogate, sizes, ended)


def _shinka_run(
    arguments: Sequence[str],
    out: str | None,
    surrogate: str | None,
    sizes: dict[str, int | None],
    ended: list[int],
) -> int:
    folder = [] if out is None else ["--results_dir", out]
    command = parse_run_command([*arguments, *folder], surrogate)
    runner_class = _runner_class(lambda: command.section, sizes, command.task, ended)
    with ExitStack() as stack:
        stack.enter_context(_replaced(shinka_run, "ShinkaEvolveRunner", runner_class))
        stack.enter_context(_replaced(shinka_run, "_build_parser", host_parser))
        return _result(lambda: shinka_run.main(list(command.arguments)), ended)


def _shinka_launch(
    arguments: Sequence[str],
    out: str | None,
    surrogate: str | None,
    sizes: dict[str, int | None],
    ended: list[int],
) -> int:
    found = [] if surrogate is None else [load_surrogate_config(surrogate, required=True)]
    refused: list[GpuForecastersError] = []
    understood: list[Any] = []
    run_with_cfg = launch_hydra.run_with_cfg

    def run_with_section(config: Any) -> None:
        from omegaconf import OmegaConf

        understood.append(config)
        if not found:
            given = config.get("surrogate")
            plain = None if given is None else OmegaConf.to_container(given, resolve=True)
            found.append(parse_surrogate_config(plain))
        try:
            run_with_cfg(config)
        except GpuForecastersError as error:
            refused.append(error)  # hydra would make a traceback of it

    runner_class = _runner_class(lambda: found[0], sizes, None, ended)
    folder = [] if out is None else [f"output_dir={out}"]
    with ExitStack() as stack:
        stack.enter_context(_replaced(launch_hydra, "ShinkaEvolveRunner", runner_class))
        stack.enter_context(_replaced(launch_hydra, "run_with_cfg", run_with_section))
        stack.enter_context(_replaced(sys, "argv", ["shinka_launch"]))
        try:
            code = _result(lambda: shinka_launch.main([*arguments, *folder]), ended)
        except SystemExit as end:
            if understood or not end.code:
                raise
            return 2  # hydra has said what is wrong with the overrides
    if refused and code == 0:
        raise refused[0]
    return code


def _result(command: Callable[[], Any], ended: list[int]) -> int:
    """The exit code of a command of the host's."""
    try:
        command()
    except Exception:
        if ended and ended[-1] != 0:
            return ended[-1]  # it has been said
        raise
    return ended[-1] if ended else 0
