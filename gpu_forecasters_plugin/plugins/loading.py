"""Finds what is installed, checks it, and says what is wrong with it.

A plugin that is broken stops whoever needs the registry, with its name, its distribution and the reason: a search that
goes on without what its user installed is not the search that was asked for. ``GPU_FORECASTERS_DISABLE_PLUGINS``, a
comma-separated list of names of plugins or distributions, goes on without them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.errors import PluginError
from gpu_forecasters_plugin.hookspecs import ENTRY_POINT_GROUP, HOOKS, SPEC_VERSION, Specification
from gpu_forecasters_plugin.plugins.registry import Origin, Registered, Registry, one_line

__all__ = ["DISABLE_VARIABLE", "Discovery", "PluginProblem", "discover", "registry"]

DISABLE_VARIABLE = "GPU_FORECASTERS_DISABLE_PLUGINS"

_DISTRIBUTION = "gpu-forecasters-plugin"
_SHIPPED = "gpu_forecasters_plugin.plugins.shipped"


@dataclass(frozen=True)
class PluginProblem:
    """Why a plugin cannot be used."""

    origin: Origin
    reason: str

    def __str__(self) -> str:
        return f"{self.origin} {self.reason}"


@dataclass
class Discovery:
    """What was found.

    Attributes:
        registry: what the sound plugins add.
        plugins: every plugin that was loaded, this package itself first.
        problems: what is wrong.
        disabled: plugins that were left alone because the environment says so.
    """

    registry: Registry = field(default_factory=Registry)
    plugins: list[Origin] = field(default_factory=list)
    problems: list[PluginProblem] = field(default_factory=list)
    disabled: list[Origin] = field(default_factory=list)


class _Broken(Exception):
    """A plugin cannot be used; the message says why."""


def _installed() -> Iterator[tuple[EntryPoint, Origin]]:
    """Entry points and their origins, in an order that does not depend on the file system's."""
    found = []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        distribution = entry.dist
        name, version = (distribution.name, distribution.version) if distribution else ("unknown", "unknown")
        found.append((entry, Origin(entry.name, name, version)))
    return iter(sorted(found, key=lambda pair: (pair[1].plugin, pair[1].distribution)))


def _disabled_names() -> set[str]:
    return {name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip()}


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything when it is imported: exit, or panic in Rust
        raise _Broken(f"cannot be imported: {one_line(error)}") from error


def _check_version(plugin: Any) -> None:
    version = getattr(plugin, "SPEC_VERSION", None)
    if version is None:
        raise _Broken(
            f"does not say which specification it is written for: it needs SPEC_VERSION = {SPEC_VERSION}"
        )
    if version != SPEC_VERSION:
        raise _Broken(
            f"is written for version {version!r} of the plugin specification, and {_DISTRIBUTION} {__version__} has "
            f"version {SPEC_VERSION}: install releases that match"
        )


def _register(manager: pluggy.PluginManager, plugin: Any, name: str) -> None:
    """Hand a plugin to pluggy, which checks the signatures of its hooks."""
    _check_version(plugin)
    taken = manager.get_plugin(name)
    if taken is not None:
        raise _Broken(f"has the name of another plugin, {name!r}")
    try:
        manager.register(plugin, name=name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise _Broken(f"does not fit the specification: {one_line(error)}") from error
    callers = manager.get_hookcallers(plugin) or []
    unknown = [caller.name for caller in callers if not caller.has_spec()]
    if unknown or not callers:
        manager.unregister(name=name)
        what = f"implements {unknown[0]!r}, which is no hook" if unknown else "implements no hook"
        raise _Broken(f"{what}; there are: {', '.join(HOOKS)}")


def _contributions(manager: pluggy.PluginManager, name: str) -> Iterator[Any]:
    """All that a plugin's hooks return."""
    for hook, wanted in HOOKS.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            if implementation.plugin_name != name:
                continue
            try:
                # One by one, so that a failure has a name.
                returned = list(implementation.function())
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise _Broken(f"raises in {hook}: {one_line(error)}") from error
            for factory in returned:
                if type(factory) is not wanted:
                    raise _Broken(f"returns {type(factory).__name__} from {hook}, not a {wanted.__name__}")
                yield factory


def _add(discovery: Discovery, manager: pluggy.PluginManager, plugin: Any, origin: Origin) -> None:
    _register(manager, plugin, origin.plugin)
    factories = list(_contributions(manager, origin.plugin))
    discovery.plugins.append(origin)
    for factory in factories:
        entry = Registered(factory, origin)
        present = discovery.registry.add(entry)
        if present is not None:
            reason = (
                f"registers the {factory.kind} {factory.name!r}, a name that {present.origin} has already"
            )
            discovery.problems.append(PluginProblem(origin, reason))


def discover() -> Discovery:
    """Load every plugin, this package's own first.

    Nothing is raised for a plugin that is broken: it is among the problems.
    """
    discovery = Discovery()
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(Specification)
    shipped = Origin("shipped", _DISTRIBUTION, __version__, shipped=True)
    _add(discovery, manager, import_module(_SHIPPED), shipped)
    unwanted = _disabled_names()
    for entry, origin in _installed():
        if {origin.plugin, origin.distribution} & unwanted:
            discovery.disabled.append(origin)
            continue
        try:
            with redirect_stdout(sys.stderr):  # what it prints is no part of a command's answer
                _add(discovery, manager, _load(entry), origin)
        except _Broken as broken:
            discovery.problems.append(PluginProblem(origin, str(broken)))
    return discovery


@lru_cache(maxsize=1)
def registry() -> Registry:
    """Everything that can be named; the plugins are loaded once per process.

    Raises:
        PluginError: a plugin is broken, or clashes with another.
    """
    discovery = discover()
    if not discovery.problems:
        return discovery.registry
    first, *others = discovery.problems
    more = f" (and {len(others)} more problems: gpu-forecasters plugins)" if others else ""
    raise PluginError(f"{first}{more}; {DISABLE_VARIABLE}={first.origin.plugin} goes on without it")
