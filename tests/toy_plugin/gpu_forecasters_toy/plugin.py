"""What the plugin adds: described here, imported where it is built."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from gpu_forecasters_plugin.compare.records import CompareHost
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.hookspecs import (
    ForecasterFactory,
    ForecasterSetup,
    HostFactory,
    ObserverFactory,
    ObserverSetup,
    PolicyFactory,
    PolicySetup,
    RankingRuleFactory,
    RecordedTaskFactory,
    hookimpl,
)
from gpu_forecasters_plugin.observers import Observer
from gpu_forecasters_plugin.policies import RankingRule, SelectionPolicy
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool
from gpu_forecasters_plugin.section import Fraction, Section

SPEC_VERSION = 1


class ToyForecasterOptions(Section):
    """How sure the forecaster is of the bin that it predicts."""

    mass: Fraction = 0.8


class ToyPolicyOptions(Section):
    """Largest number of a pool's members that are measured."""

    most: int = 2


class ToyObserverOptions(Section):
    """Where events are counted."""

    path: str


def _forecaster(setup: ForecasterSetup) -> Forecaster:
    from gpu_forecasters_toy.parts import WarpForecaster

    return WarpForecaster(setup.options.mass)


def _pessimist(config: SurrogateConfig) -> RankingRule:
    from gpu_forecasters_toy.parts import Pessimist

    return Pessimist(1.0 - config.quantile)


def _first_few(setup: PolicySetup) -> SelectionPolicy:
    from gpu_forecasters_toy.parts import FirstFew

    return FirstFew(setup.options.most)


def _host() -> CompareHost:
    from gpu_forecasters_toy.host import RandomWalkHost

    return RandomWalkHost()


def _pool() -> RecordedPool:
    return load_pool(str(files("gpu_forecasters_toy") / "sum.jsonl"))


def _observer(setup: ObserverSetup) -> Observer:
    from gpu_forecasters_toy.parts import EventCounter

    return EventCounter(setup.options.path)


@hookimpl
def gpu_forecasters_forecasters() -> Iterable[ForecasterFactory]:
    return [
        ForecasterFactory(
            "toy-warps", _forecaster, summary="more warps are faster", options=ToyForecasterOptions
        )
    ]


@hookimpl
def gpu_forecasters_ranking_rules() -> Iterable[RankingRuleFactory]:
    return [RankingRuleFactory("toy-pessimist", _pessimist, summary="a low quantile")]


@hookimpl
def gpu_forecasters_policies() -> Iterable[PolicyFactory]:
    return [PolicyFactory("toy-first-few", _first_few, summary="the best few", options=ToyPolicyOptions)]


@hookimpl
def gpu_forecasters_hosts() -> Iterable[HostFactory]:
    return [HostFactory("toy-walk", _host, side_by_side=True, summary="a random walk")]


@hookimpl
def gpu_forecasters_recorded_tasks() -> Iterable[RecordedTaskFactory]:
    return [RecordedTaskFactory("toy-sum", _pool, summary="made-up times")]


@hookimpl
def gpu_forecasters_observers() -> Iterable[ObserverFactory]:
    return [
        ObserverFactory(
            "toy-counter", _observer, summary="counts events", options=ToyObserverOptions, paths=("path",)
        )
    ]
