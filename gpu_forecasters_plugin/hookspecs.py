"""What a plugin may add, and how it says so.

A plugin is an installed distribution with an entry point in the group ``gpu_forecasters``. What the entry point names,
mostly a module, states the version of this specification that it is written for, and implements any of the hooks::

    SPEC_VERSION = 1

    @hookimpl
    def gpu_forecasters_forecasters():
        return [ForecasterFactory("acme", build_acme, summary="asks the Acme cost model")]

Hooks are called at the start of every command, so they only describe: what is heavy is imported where something is
built. Names are unique among all plugins, the shipped ones included, which register through these hooks too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pluggy
from pydantic import BaseModel

if TYPE_CHECKING:
    from gpu_forecasters_plugin.compare.records import CompareHost
    from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig
    from gpu_forecasters_plugin.forecasters import Forecaster, WarmStartTask
    from gpu_forecasters_plugin.observers import Observer
    from gpu_forecasters_plugin.policies import RankingRule, SelectionPolicy
    from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = [
    "ENTRY_POINT_GROUP",
    "HOOKS",
    "SPEC_VERSION",
    "Factory",
    "ForecasterFactory",
    "ForecasterSetup",
    "HostFactory",
    "ObserverFactory",
    "ObserverSetup",
    "PolicyFactory",
    "PolicySetup",
    "RankingRuleFactory",
    "RecordedTaskFactory",
    "Specification",
    "hookimpl",
]

ENTRY_POINT_GROUP = "gpu_forecasters"

SPEC_VERSION = 1
"""Version of this specification: it rises when a plugin that follows the old one would break."""

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class _Described:
    """What every factory has beside its name.

    Attributes:
        summary: one line for ``gpu-forecasters plugins``.
    """

    summary: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.summary, str):
            raise ValueError(f"a summary is a line of text: {self.summary!r}")


@dataclass(frozen=True)
class Factory(_Described):
    """Something that a configuration or a command can name.

    Attributes:
        name: what it is called there: lower-case letters, digits, ``_`` and ``-``, at most 64.
    """

    kind: ClassVar[str] = "factory"

    name: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self._plain_name())):
            raise ValueError(
                f"a name is 1 to 64 lower-case letters, digits, _ and -, and begins with a letter: {self.name!r}"
            )
        for maker in ("build", "load"):
            if not callable(getattr(self, maker, callable)):
                raise ValueError(f"{maker} of {self.name!r} cannot be called: {getattr(self, maker)!r}")
        super().__post_init__()

    def _plain_name(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class _WithOptions(_Described):
    """What a factory has whose product takes settings of its own.

    Attributes:
        options: the pydantic model of these settings; a :class:`~gpu_forecasters_plugin.section.Section` refuses
            unknown keys with the nearest right one. ``None``: there are none, and none are accepted.
        paths: which of them are paths, relative to the configuration's folder.
    """

    options: type[BaseModel] | None = None
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.options is None:
            known: Iterable[str] = ()
        elif isinstance(self.options, type) and issubclass(self.options, BaseModel):
            known = self.options.model_fields
        else:
            raise ValueError(f"options is a pydantic model or None: {self.options!r}")
        if isinstance(self.paths, str) or not set(self.paths) <= set(known):
            raise ValueError(
                f"paths names settings of options ({', '.join(known) or 'none'}): {self.paths!r}"
            )
        super().__post_init__()


@dataclass(frozen=True)
class ForecasterSetup:
    """What a forecaster is built from.

    Attributes:
        config: its ``forecaster:`` setting.
        options: its own settings, as the factory's model; ``None`` without one.
        seed: the run's seed.
        operation: what the kernels compute; nothing measured for it elsewhere may be known to the forecaster.
        build: builds another ``forecaster:`` setting, for forecasters made of others.
        training: measured kernels of other tasks that may be learned from, beside the recorded ones.
    """

    config: ForecasterConfig
    options: Any
    seed: int
    operation: str
    build: Callable[[ForecasterConfig], Forecaster]
    training: Sequence[WarmStartTask] = ()


@dataclass(frozen=True)
class ForecasterFactory(Factory, _WithOptions):
    """A kind of ``forecaster:``.

    A run is known by its forecaster: a resume whose ``name``, ``model`` or ``prompt_hash`` differ is refused. The
    plugin's distribution and version are added to ``model``, and where the forecaster gives no ``prompt_hash`` its
    options stand in. A forecaster that gives one covers with it every option that changes an answer.

    Attributes:
        build: makes one; imports what is heavy, and raises what a user is to read.
        hedged: whether ``hedge`` combines it with climatology; not for what is a mixture already, or chance.
    """

    kind: ClassVar[str] = "forecaster"

    build: Callable[[ForecasterSetup], Forecaster]
    hedged: bool = True


@dataclass(frozen=True)
class RankingRuleFactory(Factory):
    """A value of ``ranking``; its settings are those of the ``surrogate:`` section."""

    kind: ClassVar[str] = "ranking rule"

    build: Callable[[SurrogateConfig], RankingRule]


@dataclass(frozen=True)
class PolicySetup:
    """What a selection policy is built from.

    Attributes:
        config: the whole ``surrogate:`` section, keep fraction, audit share and deferral among it.
        options: the policy's own settings, as the factory's model; ``None`` without one.
    """

    config: SurrogateConfig
    options: Any


@dataclass(frozen=True)
class PolicyFactory(Factory, _WithOptions):
    """A kind of ``policy:``."""

    kind: ClassVar[str] = "policy"

    build: Callable[[PolicySetup], SelectionPolicy]


@dataclass(frozen=True)
class HostFactory(Factory):
    """A host of ``gpu-forecasters compare``.

    Attributes:
        build: makes one; imports the host's framework.
        side_by_side: its searches may run at once, each in a process of its own that builds the host anew.
        priced: its measurements cost what :meth:`~gpu_forecasters_plugin.compare.arms.Arm.price` says, not what a
            clock does, and it keeps the arm's limit of GPU-seconds.
    """

    kind: ClassVar[str] = "host"

    build: Callable[[], CompareHost]
    side_by_side: bool = False
    priced: bool = False


@dataclass(frozen=True)
class RecordedTaskFactory(Factory):
    """A name that ``--task`` takes: ``task``, or ``task@device`` for a further device that it was measured on."""

    kind: ClassVar[str] = "recorded task"

    load: Callable[[], RecordedPool]

    def _plain_name(self) -> str:
        return self.name.replace("@", "-", 1)


@dataclass(frozen=True)
class ObserverSetup:
    """What an observer is built from.

    Attributes:
        options: its own settings, as the factory's model; ``None`` without one.
    """

    options: Any


@dataclass(frozen=True)
class ObserverFactory(Factory, _WithOptions):
    """A kind of entry under ``observers:``."""

    kind: ClassVar[str] = "observer"

    build: Callable[[ObserverSetup], Observer]


class Specification:
    """The hooks, all of them optional; each returns factories."""

    @hookspec
    def gpu_forecasters_forecasters(self) -> Iterable[ForecasterFactory]:
        """Kinds of ``forecaster:``."""
        raise NotImplementedError

    @hookspec
    def gpu_forecasters_ranking_rules(self) -> Iterable[RankingRuleFactory]:
        """Values of ``ranking``."""
        raise NotImplementedError

    @hookspec
    def gpu_forecasters_policies(self) -> Iterable[PolicyFactory]:
        """Kinds of ``policy:``."""
        raise NotImplementedError

    @hookspec
    def gpu_forecasters_hosts(self) -> Iterable[HostFactory]:
        """Hosts of a comparison."""
        raise NotImplementedError

    @hookspec
    def gpu_forecasters_recorded_tasks(self) -> Iterable[RecordedTaskFactory]:
        """Recorded tasks."""
        raise NotImplementedError

    @hookspec
    def gpu_forecasters_observers(self) -> Iterable[ObserverFactory]:
        """Kinds of ``observers:``."""
        raise NotImplementedError


HOOKS: dict[str, type[Factory]] = {
    "gpu_forecasters_forecasters": ForecasterFactory,
    "gpu_forecasters_ranking_rules": RankingRuleFactory,
    "gpu_forecasters_policies": PolicyFactory,
    "gpu_forecasters_hosts": HostFactory,
    "gpu_forecasters_recorded_tasks": RecordedTaskFactory,
    "gpu_forecasters_observers": ObserverFactory,
}
"""What each hook returns."""
