"""``gpu-forecasters openevolve``: OpenEvolve's own command with the filter in front of the user's evaluator.

The host's files stay as they are. A copy of the configuration, with more proposal workers, and a two-line evaluator are
written into the run's folder, and OpenEvolve's own command line runs on them.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from openevolve import cli as host_cli
from openevolve.config import Config

from gpu_forecasters_openevolve.closing import conclude
from gpu_forecasters_openevolve.command_line import default_output, host_arguments, parse_host_arguments
from gpu_forecasters_openevolve.drop_in import open_run
from gpu_forecasters_openevolve.settings import RunSettings
from gpu_forecasters_plugin.budget_progress import budget_progress
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.folder_lock import hold_folder

__all__ = ["run_filtered"]

_EVALUATOR = """# Written by gpu-forecasters: the surrogate filter in front of {evaluator}
from gpu_forecasters_openevolve import filtered

filtered(globals(), {arguments})
"""


@dataclass(frozen=True)
class _Plan:
    """What is handed to OpenEvolve."""

    settings: RunSettings
    out: Path
    checkpoint: Path | None
    iterations: int


def _existing(path: str | None, what: str) -> Path | None:
    if path is None:
        return None
    found = Path(path)
    if not found.exists():
        raise ConfigError(f"{what} {path} does not exist")
    return found.resolve()


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end: a run may die in the middle, and the host writes this file last."""
    try:
        json.loads((checkpoint / "metadata.json").read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _latest_checkpoint(out: Path) -> Path | None:
    found = (out / "checkpoints").glob("checkpoint_*")
    folders = [p for p in found if p.name.rpartition("_")[2].isdigit() and _is_whole(p)]
    return max(folders, key=lambda p: int(p.name.rpartition("_")[2]), default=None)


def _plan(arguments: Namespace, surrogate: str | None) -> _Plan:
    program = _existing(arguments.initial_program, "initial program")
    evaluator = _existing(arguments.evaluation_file, "evaluator")
    assert program is not None and evaluator is not None
    config = _existing(arguments.config, "config")
    out = Path(arguments.output).resolve() if arguments.output else default_output(program)
    theirs = RunSettings(program, evaluator, config, _existing(surrogate, "surrogate file"), out)
    host_config = theirs.host_config()
    if host_config.evaluator.parallel_evaluations < 1 or host_config.evaluator.timeout <= 0:
        raise ConfigError("evaluator.parallel_evaluations must be at least 1, and evaluator.timeout above 0")
    iterations = arguments.iterations if arguments.iterations is not None else host_config.max_iterations
    # As many measurements as the host would have made: its iterations and the initial program.
    section = replace(theirs, measurements=iterations + 1).section()
    measure_workers = host_config.evaluator.parallel_evaluations
    host = _host_document(config, host_config, section, arguments.evaluator_args)
    ours = replace(
        theirs,
        config=out / "gpu_forecasters" / "config.yaml",
        surrogate=out / "gpu_forecasters" / "surrogate.yaml",
        measure_workers=measure_workers,
        evaluation_timeout_s=float(host_config.evaluator.timeout),
    )
    # Before anything is written: the files there may be another run's.
    hold_folder(out)
    checkpoint = _existing(arguments.checkpoint, "checkpoint") or _latest_checkpoint(out)
    _write_files(ours, host, section)
    return _Plan(ours, out, checkpoint, host["max_iterations"])


def _host_document(
    config: Path | None, loaded: Config, section: SurrogateConfig, evaluator_args: str | None
) -> dict[str, Any]:
    """The user's configuration of the host, with room for more proposals."""
    document: dict[str, Any] = {}
    if config is not None:
        document = yaml.safe_load(config.read_text("utf-8-sig")) or {}
    document.pop("surrogate", None)
    measure_workers = loaded.evaluator.parallel_evaluations
    workers = _proposal_workers(section, measure_workers)
    # Waiting for a pool and for a free measuring place is not the evaluator's time.
    rounds = math.ceil(workers / measure_workers) + 2
    evaluator = dict(document.get("evaluator") or {})
    evaluator["parallel_evaluations"] = workers
    evaluator["timeout"] = math.ceil(loaded.evaluator.timeout * rounds + section.pool.max_wait_s * 10)
    if evaluator_args is not None:
        try:
            evaluator["evaluator_args"] = host_cli.parse_evaluator_args(evaluator_args)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    document["evaluator"] = evaluator
    # The host resolves these against the folder of its configuration, which is another one now.
    if loaded.prompt.template_dir:
        document["prompt"] = {**(document.get("prompt") or {}), "template_dir": loaded.prompt.template_dir}
    if loaded.database.island_initial_programs:
        programs = list(loaded.database.island_initial_programs)
        document["database"] = {**(document.get("database") or {}), "island_initial_programs": programs}
    assert section.budget.measurements is not None  # the host's iterations, where the section names none
    document["max_iterations"] = section.budget.measurements * section.max_proposals
    return document


def _proposal_workers(section: SurrogateConfig, measure_workers: int) -> int:
    """Enough proposals in flight that the kept fraction of a pool keeps the measuring places busy."""
    return measure_workers if section.keep_fraction == 1.0 else measure_workers * section.oversample


def _write_files(settings: RunSettings, host: dict[str, Any], section: SurrogateConfig) -> None:
    assert settings.config is not None and settings.surrogate is not None
    folder = settings.config.parent
    folder.mkdir(parents=True, exist_ok=True)
    # Copies of what the user configured, a key or a database password perhaps among it.
    folder.chmod(0o700)
    write_atomically(settings.config, yaml.safe_dump(host, sort_keys=False))
    document = {"surrogate": section.model_dump(mode="json")}
    write_atomically(settings.surrogate, yaml.safe_dump(document, sort_keys=False))
    arguments = {
        "program": str(settings.program),
        "evaluator": str(settings.evaluator),
        "config": str(settings.config),
        "surrogate": str(settings.surrogate),
        "out": str(settings.out),
        "measure_workers": settings.measure_workers,
        "evaluation_timeout_s": settings.evaluation_timeout_s,
    }
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    write_atomically(folder / "evaluator.py", _EVALUATOR.format(evaluator=settings.evaluator, arguments=text))


def _host_arguments(plan: _Plan, arguments: Namespace) -> list[str]:
    """OpenEvolve's own arguments on the files of the plan."""
    values = [str(plan.settings.program), str(plan.out / "gpu_forecasters" / "evaluator.py")]
    values += ["--config", str(plan.settings.config), "--output", str(plan.out)]
    values += ["--iterations", str(plan.iterations)]
    if plan.checkpoint is not None:
        values += ["--checkpoint", str(plan.checkpoint)]
    replaced = {"initial_program", "evaluation_file", "config", "output", "iterations", "checkpoint"}
    for name, value in vars(arguments).items():
        if name not in replaced | {"evaluator_args"} and value is not None:
            values += [f"--{name.replace('_', '-')}", str(value)]
    return values


def run_filtered(arguments: Sequence[str], surrogate: str | None) -> int:
    """Run OpenEvolve with the filter.

    Args:
        arguments: what ``openevolve-run`` takes.
        surrogate: file of the ``surrogate:`` section, when it is not in the host's configuration.

    Returns:
        Exit code: 0 done, 1 failed, 130 or 143 interrupted by Ctrl-C or SIGTERM with measurements left.

    Raises:
        ConfigError, HostError, LedgerError, FolderInUseError: before anything was measured.
    """
    parsed = parse_host_arguments(arguments)
    plan = _plan(parsed, surrogate)
    if plan.checkpoint is not None:
        print(f"resuming from {plan.checkpoint}", file=sys.stderr)
    run = open_run(plan.settings)
    try:
        if run.gate.budget_spent():
            return conclude(run, 0)  # the reference alone was all that the budget allowed
        with host_arguments(_host_arguments(plan, parsed)), budget_progress(run.gate, run.ledger):
            code = asyncio.run(host_cli.main_async())
    finally:
        run.close()
    return conclude(run, code)
