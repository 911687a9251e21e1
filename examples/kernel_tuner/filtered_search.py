"""A search strategy for Kernel Tuner that measures only what the filter picks."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_tuner.searchspace import Searchspace
from kernel_tuner.strategies.common import CostFunc
from kernel_tuner.strategies.wrapper import OptAlg

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger

Configuration = tuple[Any, ...]

POOL = 32


class FilteredSearch(OptAlg):
    """Proposes pools of random configurations, and pays for the few that the filter picks.

    Args:
        source_of: source text of a configuration: what a forecaster reads. Where parameters are ``#define`` lines,
            those lines in front of the kernel's source.
        start: the configuration that speed-ups are relative to.
        config: the ``surrogate:`` section; its budget ends the search.
        ledger: file that everything is written into.
    """

    def __init__(
        self,
        source_of: Callable[[Configuration], str],
        start: Configuration,
        config: SurrogateConfig,
        ledger: Path,
    ) -> None:
        super().__init__()
        self._source_of, self._start, self._config = source_of, start, config
        self._ledger = Ledger(ledger)
        self._random = random.Random(config.seed)
        self._reference_ms = 0.0
        self._times: dict[Configuration, float] = {}

    def __call__(self, func: CostFunc, searchspace: Searchspace) -> tuple[Configuration, float]:
        """Search until the budget is spent; the best configuration and its time."""
        config = self._config
        forecaster = build_forecaster(config.forecaster, seed=config.seed, operation=config.task or "")
        with Gate(self._candidate(self._start), forecaster, self._ledger, config) as gate:
            pool = [self._start]
            while pool and not gate.budget_spent():
                named = {str(configuration): configuration for configuration in pool}
                for decision in gate.ask([self._candidate(configuration) for configuration in pool]):
                    if decision.measure and gate.start(decision.id):
                        gate.tell(decision.id, self._measure(func, named[decision.candidate_id]))
                pool = self._propose(searchspace)
        return min(self._times.items(), key=lambda pair: pair[1])

    def _candidate(self, configuration: Configuration) -> Candidate:
        return Candidate(str(configuration), self._source_of(configuration))

    def _measure(self, func: CostFunc, configuration: Configuration) -> Measurement:
        """Let Kernel Tuner run one configuration, in simulation or on the GPU."""
        time_ms = func(configuration)
        result = func.get_results()[-1]
        if "__error__" in result:
            self._times[configuration] = float("inf")
            return Measurement(Outcome.RUNTIME_ERROR, error=str(result["__error__"]))
        self._times[configuration] = time_ms
        self._reference_ms = self._reference_ms or time_ms
        return Measurement(Outcome.OK, time_us=time_ms * 1e3, speedup=self._reference_ms / time_ms)

    def _propose(self, searchspace: Searchspace) -> list[Configuration]:
        """Configurations that were not measured, at random: a small space needs no cleverer proposals."""
        unmeasured = sorted(set(map(tuple, searchspace.list)) - self._times.keys(), key=str)
        return self._random.sample(unmeasured, min(POOL, len(unmeasured)))
