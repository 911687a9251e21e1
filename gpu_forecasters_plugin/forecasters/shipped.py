"""The kinds of ``forecaster:`` that ship with this package."""

from __future__ import annotations

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.hookspecs import ForecasterFactory, ForecasterSetup

__all__ = ["FORECASTERS"]


def _learned(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.learned import (
        LearnedForecaster,
        shipped_rewrites,
        warm_start_tasks,
    )

    # Only other operations: nothing may know a time that this search has not paid for.
    tasks = warm_start_tasks(exclude_operation=setup.operation) if setup.config.warm_start else []
    training = setup.training if setup.config.warm_start else ()
    given = {task.reference_code for task in training}
    others = [task for task in tasks if task.reference_code not in given]
    return LearnedForecaster(
        warm_start=[*others, *training],
        rewrites=shipped_rewrites() if setup.config.warm_start else None,
        use_profiles=setup.config.static_profile,
    )


def _roofline(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.roofline import RooflineForecaster

    return RooflineForecaster()


def _climatology(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.climatology import ClimatologyForecaster

    return ClimatologyForecaster()


def _random(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.random_ import RandomForecaster

    return RandomForecaster(setup.seed)


def _replay(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.replay import ReplayForecaster

    assert setup.config.path is not None  # checked with the configuration
    return ReplayForecaster.from_file(setup.config.path, draw=setup.seed)


def _openai_server(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster

    return OpenAIServerForecaster(setup.config, seed=setup.seed)


def _vllm_local(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.language_model.local import VllmLocalForecaster

    return VllmLocalForecaster(setup.config, seed=setup.seed)


def _transformers_local(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.language_model.transformers_local import (
        TransformersLocalForecaster,
    )

    return TransformersLocalForecaster(setup.config, seed=setup.seed)


def _recalibrated(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.recalibrated import RecalibratedForecaster

    assert setup.config.forecaster is not None  # checked with the configuration
    return RecalibratedForecaster(setup.build(setup.config.forecaster))


def _mixture(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_plugin.forecasters.mixture import MixtureForecaster

    experts = [setup.build(expert) for expert in setup.config.experts]
    names = [expert.name for expert in experts]
    given = setup.config.weights
    try:
        weights = dict(zip(names, given, strict=True)) if given else None
        return MixtureForecaster(experts, weights=weights)
    except ValueError as error:
        raise ConfigError(f"surrogate.forecaster: {error}") from None


FORECASTERS = (
    ForecasterFactory("learned", _learned, summary="learns from the run's measurements and recorded tasks"),
    ForecasterFactory("roofline", _roofline, summary="the compiler's estimate, calibrated on the run"),
    ForecasterFactory("mixture", _mixture, False, summary="several experts, weighed by their log score"),
    ForecasterFactory("recalibrated", _recalibrated, summary="mends another's probabilities by their record"),
    ForecasterFactory("climatology", _climatology, False, summary="the run's own bin frequencies"),
    ForecasterFactory("random", _random, False, summary="chance"),
    ForecasterFactory("replay", _replay, summary="recorded forecasts from a file"),
    ForecasterFactory(
        "openai_server", _openai_server, summary="a language model behind an OpenAI-compatible API"
    ),
    ForecasterFactory("vllm_local", _vllm_local, summary="a language model in this process"),
    ForecasterFactory(
        "transformers_local",
        _transformers_local,
        summary="the same by transformers, for a CPU or without vLLM",
    ),
)
