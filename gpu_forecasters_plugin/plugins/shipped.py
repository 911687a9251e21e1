"""What ships with this package, registered as the contributions of any other plugin are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from gpu_forecasters_plugin.forecasters.shipped import FORECASTERS
from gpu_forecasters_plugin.hookspecs import (
    ForecasterFactory,
    HostFactory,
    ObserverFactory,
    PolicyFactory,
    RankingRuleFactory,
    RecordedTaskFactory,
    hookimpl,
)
from gpu_forecasters_plugin.observers.shipped import OBSERVERS
from gpu_forecasters_plugin.policies.shipped import POLICIES, RANKING_RULES
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.recorded.shipped import device_of, recorded_names

if TYPE_CHECKING:
    from gpu_forecasters_plugin.compare.records import CompareHost

__all__ = [
    "SPEC_VERSION",
    "gpu_forecasters_forecasters",
    "gpu_forecasters_hosts",
    "gpu_forecasters_observers",
    "gpu_forecasters_policies",
    "gpu_forecasters_ranking_rules",
    "gpu_forecasters_recorded_tasks",
]

SPEC_VERSION = 1


def _inprocess_host() -> CompareHost:
    from gpu_forecasters_plugin.compare.inprocess import InProcessHost

    return InProcessHost()


def _puct_host() -> CompareHost:
    from gpu_forecasters_plugin.compare.puct import PuctHost

    return PuctHost()


def _openevolve_host() -> CompareHost:
    from gpu_forecasters_openevolve.compare_host import OpenEvolveHost

    return OpenEvolveHost()


def _shinka_host() -> CompareHost:
    from gpu_forecasters_shinka.compare_host import ShinkaHost

    return ShinkaHost()


@hookimpl
def gpu_forecasters_forecasters() -> Iterable[ForecasterFactory]:
    """The forecasters of :mod:`gpu_forecasters_plugin.forecasters`."""
    return FORECASTERS


@hookimpl
def gpu_forecasters_ranking_rules() -> Iterable[RankingRuleFactory]:
    """The ranking rules of :mod:`gpu_forecasters_plugin.policies`."""
    return RANKING_RULES


@hookimpl
def gpu_forecasters_policies() -> Iterable[PolicyFactory]:
    """The selection policies of :mod:`gpu_forecasters_plugin.policies`."""
    return POLICIES


@hookimpl
def gpu_forecasters_hosts() -> Iterable[HostFactory]:
    """This process, and the hosts that have an adapter."""
    return [
        HostFactory(
            "inprocess",
            _inprocess_host,
            side_by_side=True,
            priced=True,
            summary="a small search in this process",
        ),
        HostFactory(
            "puct", _puct_host, side_by_side=True, priced=True, summary="max-reward PUCT over an archive"
        ),
        HostFactory("openevolve", _openevolve_host, summary="OpenEvolve's own command"),
        HostFactory("shinka", _shinka_host, summary="ShinkaEvolve's own runner"),
    ]


@hookimpl
def gpu_forecasters_recorded_tasks() -> Iterable[RecordedTaskFactory]:
    """The recorded tasks that come as data files, once for each device that they were measured on."""
    return [
        RecordedTaskFactory(name, partial(load_task, name), summary=f"measured on {device_of(name)}")
        for name in recorded_names()
    ]


@hookimpl
def gpu_forecasters_observers() -> Iterable[ObserverFactory]:
    """The observers of :mod:`gpu_forecasters_plugin.observers`."""
    return OBSERVERS
