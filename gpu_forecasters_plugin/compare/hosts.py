"""The host that a comparison names, whoever has registered it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun, CompareHost
from gpu_forecasters_plugin.hookspecs import HostFactory
from gpu_forecasters_plugin.plugins import made_by, registry
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["RegisteredHost", "host_factory"]


def host_factory(name: str) -> HostFactory:
    """What is registered under that name.

    Raises:
        ConfigError: there is no such host.
    """
    return registry().find(HostFactory, name).factory


class RegisteredHost:
    """The host of that name; what it raises is reported as its plugin's.

    Raises:
        ConfigError: there is no such host.
        PluginError: it cannot be made.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._entry = registry().find(HostFactory, name)
        self._host: CompareHost = made_by(self._entry, self._entry.factory.build, object)  # type: ignore[assignment]

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None] = lambda done: None,
    ) -> ArmRun:
        """One search, as :class:`CompareHost` says."""

        def search() -> ArmRun:
            return self._host.run(pool, arm, seed, budget, folder, on_measurements)

        return made_by(self._entry, search, ArmRun, "cannot search")
