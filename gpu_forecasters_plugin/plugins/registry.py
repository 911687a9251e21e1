"""Everything that can be named in a configuration or a command, with the plugin that it comes from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from gpu_forecasters_plugin.errors import ConfigError, GpuForecastersError, PluginError
from gpu_forecasters_plugin.hookspecs import Factory
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.validation import all_problems

__all__ = ["Origin", "Registered", "Registry", "made_by", "one_line", "options_of"]

F = TypeVar("F", bound=Factory)
T = TypeVar("T")

_LONGEST_REASON = 300


def one_line(error: BaseException) -> str:
    """An exception in one line, for messages that go on after it."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


@dataclass(frozen=True)
class Origin:
    """Where a plugin comes from.

    Attributes:
        plugin: name of its entry point.
        distribution: the distribution that the entry point belongs to.
        version: the version of that distribution.
        shipped: it is part of this package.
    """

    plugin: str
    distribution: str
    version: str
    shipped: bool = False

    def __str__(self) -> str:
        package = f"{self.distribution} {self.version}"
        return package if self.shipped else f"plugin {self.plugin!r} ({package})"


@dataclass(frozen=True)
class Registered(Generic[F]):
    """A factory and its origin."""

    factory: F
    origin: Origin

    def __str__(self) -> str:
        return f"{self.factory.kind} {self.factory.name!r} of {self.origin}"


class Registry:
    """Factories by kind and name. Immutable once it is handed out; safe to share between threads."""

    def __init__(self) -> None:
        self._entries: dict[tuple[type[Factory], str], Registered[Any]] = {}

    def add(self, entry: Registered[Any]) -> Registered[Any] | None:
        """Take an entry.

        Returns:
            The entry that has the name already; the new one is left out then.
        """
        present = self._entries.setdefault((type(entry.factory), entry.factory.name), entry)
        return None if present is entry else present

    def entries(self) -> list[Registered[Any]]:
        """Everything, in the order of registration."""
        return list(self._entries.values())

    def names(self, factory: type[Factory]) -> tuple[str, ...]:
        """Names of one kind; the shipped ones come first."""
        return tuple(name for kind, name in self._entries if kind is factory)

    def find(
        self, factory: type[F], name: str, error: type[GpuForecastersError] = ConfigError
    ) -> Registered[F]:
        """The entry of that name.

        Args:
            factory: the kind.
            name: the name.
            error: what is raised where there is none; it names the nearest right one.
        """
        entry: Registered[F] | None = self._entries.get((factory, name))
        if entry is None:
            known = self.names(factory)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise error(f"no {factory.kind} {name!r}; {hint}")
        return entry


def made_by(
    entry: Registered[Any], make: Callable[[], T], wanted: type[T], complaint: str = "cannot be made"
) -> T:
    """What a factory makes; whatever its code raises is reported as the plugin's.

    Args:
        entry: whose code is called.
        make: the call. This package's own errors go through: they say enough.
        wanted: what it has to make.
        complaint: what to say of it where it does not.

    Raises:
        PluginError: names the plugin, its distribution and the reason.
    """
    try:
        made = make()
    except (GpuForecastersError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if entry.origin.shipped:
            raise
        raise PluginError(f"{entry} {complaint}: {one_line(error)}") from error
    if not isinstance(made, wanted):
        raise PluginError(f"{entry} {complaint}: got {type(made).__name__}, no {wanted.__name__}")
    return made


def options_of(entry: Registered[Any], document: Mapping[str, Any], where: str) -> BaseModel | None:
    """The checked settings of a factory that may take some.

    Args:
        entry: whose settings.
        document: as they were written.
        where: the path to them in the configuration, for messages.

    Returns:
        The factory's own model of them; ``None`` where it has none.

    Raises:
        ConfigError: a line for each wrong setting.
    """
    model = entry.factory.options
    if model is None:
        if document:
            raise ConfigError(f"{where}.{next(iter(document))}: {entry} takes no settings of its own")
        return None
    try:
        checked: BaseModel = model.model_validate(dict(document))
    except ValidationError as error:
        raise ConfigError(*all_problems(error, model, where)) from None
    return checked
