"""The settings that a configuration passes on to what plugins register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.hookspecs import ForecasterFactory, ObserverFactory, PolicyFactory
from gpu_forecasters_plugin.hub import is_hub_name
from gpu_forecasters_plugin.plugins.loading import registry
from gpu_forecasters_plugin.plugins.registry import options_of

if TYPE_CHECKING:
    from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig

__all__ = ["check_options", "located"]


def _forecasters(config: ForecasterConfig, where: str) -> Iterator[tuple[ForecasterConfig, str]]:
    """A ``forecaster:`` setting and all that are nested in it, each with its path."""
    yield config, where
    for index, expert in enumerate(config.experts):
        yield from _forecasters(expert, f"{where}.experts.{index}")
    if config.forecaster is not None:
        yield from _forecasters(config.forecaster, f"{where}.forecaster")


def check_options(config: SurrogateConfig) -> None:
    """Refuse settings that what they are meant for does not take.

    Raises:
        ConfigError: a line for each wrong setting.
        PluginError: a plugin is broken.
    """
    for forecaster, where in _forecasters(config.forecaster, "surrogate.forecaster"):
        entry = registry().find(ForecasterFactory, forecaster.kind)
        options_of(entry, forecaster.options, f"{where}.options")
    policy = registry().find(PolicyFactory, config.policy.kind)
    options_of(policy, config.policy.options, "surrogate.policy.options")
    for index, observer in enumerate(config.observers):
        options_of(
            registry().find(ObserverFactory, observer.kind), observer.options, f"surrogate.observers.{index}"
        )


def located(config: SurrogateConfig, folder: Path) -> SurrogateConfig:
    """The configuration with its relative paths relative to a folder: a run does not work where its file lies."""
    observers = [
        observer.model_copy(
            update=_placed(
                observer.options, registry().find(ObserverFactory, observer.kind).factory.paths, folder
            )
        )
        for observer in config.observers
    ]
    forecaster = _located_forecaster(config.forecaster, folder)
    screen = config.screen.model_copy(
        update=_placed({"task_file": config.screen.task_file}, ("task_file",), folder)
    )
    return config.model_copy(update={"forecaster": forecaster, "observers": observers, "screen": screen})


def _placed(options: Mapping[str, Any], names: tuple[str, ...], folder: Path) -> dict[str, Any]:
    return {
        name: str(folder / value) if name in names and isinstance(value, str) else value
        for name, value in options.items()
    }


def _located_forecaster(forecaster: ForecasterConfig, folder: Path) -> ForecasterConfig:
    own = {name: path for name in ("path", "lora") if (path := getattr(forecaster, name)) is not None}
    if forecaster.lora is not None and is_hub_name(forecaster.lora, folder):
        del own["lora"]
    paths = registry().find(ForecasterFactory, forecaster.kind).factory.paths
    update: dict[str, Any] = _placed(own, tuple(own), folder)
    update["options"] = _placed(forecaster.options, paths, folder)
    update["experts"] = [_located_forecaster(expert, folder) for expert in forecaster.experts]
    inner = forecaster.forecaster
    update["forecaster"] = None if inner is None else _located_forecaster(inner, folder)
    return forecaster.model_copy(update=update)
