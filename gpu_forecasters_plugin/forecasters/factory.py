"""From a ``forecaster:`` setting to a forecaster, whoever has registered its kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.forecasters.frozen import FrozenForecaster
from gpu_forecasters_plugin.forecasters.mixture import MixtureForecaster
from gpu_forecasters_plugin.forecasters.naming import distinctions
from gpu_forecasters_plugin.hookspecs import ForecasterFactory, ForecasterSetup
from gpu_forecasters_plugin.plugins import Registered, made_by, options_of, registry

if TYPE_CHECKING:
    from gpu_forecasters_plugin.forecasters.learned import WarmStartTask

__all__ = ["build_forecaster", "hedged"]


def hedged(forecaster: Forecaster) -> Forecaster:
    """The forecaster pooled with climatology by their log score in the run; its name stays."""
    return MixtureForecaster([forecaster], name=f"hedged-{forecaster.name}")


@dataclass(frozen=True)
class _Builder:
    """Builds a forecaster and all that it is made of.

    Attributes:
        seed: the run's seed.
        operation: what the kernels of this run compute.
        distinctions: what tells experts of one kind apart.
        training: measured kernels of other tasks that may be learned from.
    """

    seed: int
    operation: str
    distinctions: dict[int, str]
    training: Sequence[WarmStartTask] = ()

    def build(self, config: ForecasterConfig) -> Forecaster:
        """The forecaster of one setting."""
        entry = registry().find(ForecasterFactory, config.kind)
        options = options_of(entry, config.options, "surrogate.forecaster.options")
        setup = ForecasterSetup(config, options, self.seed, self.operation, self.build, self.training)
        forecaster = made_by(entry, lambda: entry.factory.build(setup), Forecaster)  # type: ignore[type-abstract]
        if not entry.origin.shipped:
            _identify(forecaster, entry, config.options)
        forecaster.name += self.distinctions.get(id(config), "")
        return forecaster if config.learn else FrozenForecaster(forecaster)


def _identify(forecaster: Forecaster, entry: Registered[ForecasterFactory], options: dict[str, Any]) -> None:
    """Make a plugin's release, and the settings that it does not cover itself, part of a run's identity."""
    release = f"{entry.origin.distribution} {entry.origin.version}"
    forecaster.model = "+".join(filter(None, (forecaster.model, release)))
    if not forecaster.prompt_hash and options:
        document = json.dumps(options, sort_keys=True)
        forecaster.prompt_hash = hashlib.sha256(document.encode()).hexdigest()[:32]


def build_forecaster(
    config: ForecasterConfig, *, seed: int = 0, operation: str = "", training: Sequence[WarmStartTask] = ()
) -> Forecaster:
    """Build what a configuration names.

    Args:
        config: the checked setting.
        seed: the run's seed.
        operation: what the kernels of this run compute; recorded tasks of the same operation are left out of a
            warm start.
        training: measured kernels of other tasks, for forecasters that learn across tasks; they take the place of
            recorded tasks with the same reference.

    Raises:
        ConfigError: experts of a mixture are the same, an endpoint's settings cannot be used, or options are wrong.
        ForecasterError: a file of recorded forecasts cannot be read.
        MissingExtraError: a language model needs a package that is not installed.
        PluginError: a plugin is broken.
    """
    forecaster = _Builder(seed, operation, distinctions(config), training).build(config)
    may_be_hedged = registry().find(ForecasterFactory, config.kind).factory.hedged
    return hedged(forecaster) if config.hedge and may_be_hedged else forecaster
