"""From a ``forecaster:`` setting to a forecaster."""

from __future__ import annotations

from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.climatology import ClimatologyForecaster
from gpu_forecasters_plugin.forecasters.language_model.local import VllmLocalForecaster
from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster
from gpu_forecasters_plugin.forecasters.learned import LearnedForecaster, warm_start_tasks
from gpu_forecasters_plugin.forecasters.mixture import MixtureForecaster
from gpu_forecasters_plugin.forecasters.random_ import RandomForecaster
from gpu_forecasters_plugin.forecasters.recalibrated import RecalibratedForecaster
from gpu_forecasters_plugin.forecasters.replay import ReplayForecaster

__all__ = ["build_forecaster", "hedged"]


def hedged(forecaster: Forecaster) -> Forecaster:
    """The forecaster pooled with climatology by their log score in the run; its name stays."""
    return MixtureForecaster([forecaster], name=f"hedged-{forecaster.name}")


def _single(config: ForecasterConfig, seed: int, operation: str) -> Forecaster:
    match config.kind:
        case "learned":
            # Only other operations: nothing may know a time that this search has not paid for.
            tasks = warm_start_tasks(exclude_operation=operation) if config.warm_start else []
            return LearnedForecaster(warm_start=tasks)
        case "climatology":
            return ClimatologyForecaster()
        case "random":
            return RandomForecaster(seed)
        case "replay":
            assert config.path is not None  # checked with the configuration
            return ReplayForecaster.from_file(config.path)
        case "openai_server":
            return OpenAIServerForecaster(config, seed=seed)
        case "vllm_local":
            return VllmLocalForecaster(config, seed=seed)
        case "recalibrated":
            assert config.forecaster is not None  # checked with the configuration
            return RecalibratedForecaster(_single(config.forecaster, seed, operation))
        case "mixture":
            experts = [_single(expert, seed, operation) for expert in config.experts]
            try:
                names = [expert.name for expert in experts]
                weights = dict(zip(names, config.weights, strict=True)) if config.weights else None
                return MixtureForecaster(experts, weights=weights)
            except ValueError as error:
                raise ConfigError(f"surrogate.forecaster: {error}") from None


def build_forecaster(config: ForecasterConfig, *, seed: int = 0, operation: str = "") -> Forecaster:
    """Build what a configuration names.

    Args:
        config: the checked setting.
        seed: the run's seed.
        operation: what the kernels of this run compute; recorded tasks of the same operation are left out of a
            warm start.

    Raises:
        ConfigError: experts of a mixture clash.
        ForecasterError: a file of recorded forecasts cannot be read.
        MissingExtraError: a language model needs a package that is not installed.
    """
    forecaster = _single(config, seed, operation)
    combined = config.kind in ("mixture", "climatology", "random")
    return hedged(forecaster) if config.hedge and not combined else forecaster
