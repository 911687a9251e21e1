"""Where a filtered run finds and leaves things, and what OpenEvolve's configuration says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openevolve.config import Config, load_config

from gpu_forecasters_openevolve.command_line import default_output
from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config, with_option
from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["RunSettings"]


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
            budget = dict(section.budget) | {"measurements": self.measurements}
            section = with_option(section, "measurements", budget=budget)
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
