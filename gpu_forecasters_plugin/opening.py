"""The start of a filtered run on whichever host: reference, identity, ledger and gate."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import Candidate, decode_source
from gpu_forecasters_plugin.config import MetricConfig, SurrogateConfig
from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE
from gpu_forecasters_plugin.recorded.pool import recorded_references
from gpu_forecasters_plugin.screen.pool_screen import open_screen

__all__ = ["evaluator_hash", "open_gate", "read_reference"]


def read_reference(path: Path) -> Candidate:
    """The initial program, which speed-ups are relative to.

    Raises:
        ConfigError: it cannot be read, or cannot be a kernel.
    """
    try:
        reference = Candidate("initial_program", decode_source(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"cannot read the initial program {path}: {error.strerror}") from None
    if reference.problem is not None:
        raise ConfigError(f"initial program {path}: {reference.problem}")
    return reference


def evaluator_hash(path: Path, arguments: dict[str, Any] | None, metric: MetricConfig) -> str:
    """Identity of what measures: the file, its arguments, and how its answers are read.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the evaluator {path}: {error.strerror}") from None
    text = json.dumps([arguments or {}, metric.model_dump()], sort_keys=True, default=str)
    return hashlib.sha256(data + text.encode()).hexdigest()[:32]


def _check_profiles(section: SurrogateConfig) -> None:
    """Refuse a forecaster that could never answer.

    Raises:
        ConfigError: it goes by static profiles alone, and nobody makes any.
    """
    kinds = [member.kind for member in section.forecaster.members()]
    if "roofline" in kinds and section.screen.policy == "off":
        raise ConfigError(
            "surrogate.forecaster: kind 'roofline' goes by what the compiler says: set surrogate.screen.policy to "
            "skip or defer"
        )


def open_gate(
    section: SurrogateConfig,
    reference: Candidate,
    *,
    task: str,
    evaluator: str,
    folder: Path,
    evaluator_file: Path | None = None,
    evaluator_args: dict[str, Any] | None = None,
) -> tuple[Gate, Ledger]:
    """The gate of the run in a folder, and its ledger; resumed if the ledger knows it.

    Args:
        section: the ``surrogate:`` section.
        reference: the initial program.
        task: name of the task where the section has none.
        evaluator: identity of what measures, from :func:`evaluator_hash`.
        folder: the run's folder.
        evaluator_file: the evaluator, where it is a file that defines ``evaluate(program_path)``: it can be run dry.
        evaluator_args: what else the host calls it with.

    Raises:
        LedgerError: the ledger cannot be opened, or belongs to another run.
        ForecasterError, ConfigError: the forecaster cannot be built, or could never answer.
    """
    device = detect_device(section.device)
    _check_profiles(section)
    task = section.task or task
    # A recorded task knows the times of its kernels by whatever name it is searched under.
    operation = recorded_references().get(reference.key, task)
    forecaster = build_forecaster(section.forecaster, seed=section.seed, operation=operation)
    identity = RunIdentity(
        task,
        reference.key,
        evaluator,
        device.name,
        device.driver,
        BINS.name,
        forecaster.name,
        forecaster.model,
        forecaster.prompt_hash,
        section.seed,
    )
    screen = open_screen(
        section.screen,
        reference,
        device=device.name,
        folder=folder,
        evaluator=evaluator_file,
        arguments=evaluator_args,
        disassemble=section.forecaster.sees_profiles,
    )
    ledger = Ledger(section.ledger or LEDGER_FILE, base=folder)
    run_name = "run" if section.ledger is None else f"{folder.resolve()}"
    gate = Gate(reference, forecaster, ledger, section, identity=identity, run_name=run_name, screen=screen)
    return gate, ledger
