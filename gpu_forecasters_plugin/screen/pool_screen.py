"""The screen in front of a gate: which candidates of a pool cannot run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.screen.architectures import architecture, architecture_of_device
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.screener import Screener
from gpu_forecasters_plugin.screen.settings import ScreenConfig
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["FOLDER", "PoolScreen", "Screen", "open_screen"]

logger = logging.getLogger(__name__)

FOLDER = "screen"
"""Folder of verdicts within a run's folder."""


class Screen(Protocol):
    """Who tells a gate what the compiler says of candidates. Thread-safe."""

    def verdicts(self, candidates: Sequence[Candidate]) -> dict[str, Verdict]:
        """Verdicts by candidate key, in bounded time, the reference's among them as far as it is known."""

    def close(self) -> None:
        """End what it has begun."""


class PoolScreen:
    """Gives each candidate of a pool its verdict. Thread-safe."""

    def __init__(self, screener: Screener, config: ScreenConfig, reference_key: str | None = None) -> None:
        """Make a screen.

        Args:
            screener: asks the compiler; belongs to this screen from now on.
            config: the ``screen:`` section.
            reference_key: key of the screener's reference.
        """
        self._screener = screener
        self._reference_key = reference_key
        self._deadline_s = config.deadline_s
        self._told = False

    def verdicts(self, candidates: Sequence[Candidate]) -> dict[str, Verdict]:
        """Verdicts by candidate key, within the deadline; sources that cannot be kernels at all have none.

        The reference's is among them, asked for or not, as far as it is known.
        """
        asked = {candidate.key: candidate.code for candidate in candidates if candidate.problem is None}
        found = self._screener.screen(list(asked.values()), self._deadline_s)
        if self._screener.problem is not None and not self._told:
            self._told = True
            logger.warning("screening decides nothing in this run: %s", self._screener.problem)
        return self._of_reference() | dict(zip(asked, found, strict=True))

    def _of_reference(self) -> dict[str, Verdict]:
        if self._reference_key is None:
            return {}
        verdict = self._screener.reference_verdict(0.0)
        return {} if verdict is None or verdict.is_late else {self._reference_key: verdict}

    def close(self) -> None:
        """End its processes."""
        self._screener.close()


def open_screen(
    config: ScreenConfig,
    reference: Candidate,
    *,
    device: str,
    folder: Path,
    evaluator: Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    disassemble: bool = False,
) -> PoolScreen | None:
    """The screen of a run; ``None`` where the configuration has it off.

    Args:
        config: the ``screen:`` section.
        reference: the kernel that must come out valid before any other is called invalid.
        device: name of the GPU that measures.
        folder: the run's folder.
        evaluator: the host's evaluator, if it is a file that defines ``evaluate(program_path)``.
        arguments: what else the host calls it with.
        disassemble: whether profiles hold instruction mixes, for forecasters that look at profiles.

    Raises:
        ConfigError: the architecture is not known, or nothing says how candidates are called.
    """
    if config.policy == "off":
        return None
    if config.task_file is None and evaluator is None:
        raise ConfigError("surrogate.screen: this host's evaluator cannot be run dry; set screen.task_file")
    if config.task_file is not None and not Path(config.task_file).is_file():
        raise ConfigError(f"surrogate.screen.task_file: there is no file {config.task_file}")
    arch = architecture_of_device(device) if config.arch == "auto" else architecture(config.arch)
    if arch is None:
        raise ConfigError(
            f"surrogate.screen.arch: the architecture of {device!r} is not known; write it: sm_90"
        )
    job = ScreenJob(
        "",
        arch.name,
        evaluator=None if config.task_file is not None else str(evaluator),
        task_file=config.task_file,
        device=device,
        disassemble=disassemble,
        arguments=arguments,
        seconds=config.timeout_s,
        memory_mib=config.memory_mib,
    )
    screener = Screener(job, reference=reference.code, folder=folder / FOLDER, workers=config.workers)
    return PoolScreen(screener, config, reference.key)
