"""Tune a recorded task with Kernel Tuner, with and without the filter, at the same number of measurements."""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import kernel_tuner
import numpy
from constraint import FunctionConstraint
from filtered_search import Configuration, FilteredSearch
from kernel_tuner.strategies.wrapper import OptAlgWrapper
from recorded_space import configurations, tune_parameters, write_cache

from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.recorded.pool import RecordedPool, open_pool


def tune(task: RecordedPool, cache: Path, strategy: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """What Kernel Tuner measured, in simulation: nothing is compiled, times are those of the recorded task."""
    known = configurations(task)
    results, _ = kernel_tuner.tune_kernel(
        task.task,
        "",
        problem_size=(1,),
        arguments=[],
        tune_params=tune_parameters(task),
        restrictions=[FunctionConstraint(lambda *values: values in known)],
        strategy=strategy,
        strategy_options=options,
        cache=str(cache),
        simulation_mode=True,
        quiet=True,
    )
    return [result for result in results if "__error__" not in result]


def compare(task: RecordedPool, budget: int, seed: int, folder: Path) -> dict[str, float]:
    """Best speed-up over the reference, by strategy."""
    write_cache(task, folder / "cache.json")
    known = configurations(task)
    start = next(configuration for configuration, name in known.items() if name == task.reference_id)

    def source_of(configuration: Configuration) -> str:
        return task.candidates[known[configuration]].code

    section = {"budget": {"measurements": budget}, "seed": seed, "task": task.operation[:400]}
    filtered = FilteredSearch(source_of, start, parse_surrogate_config(section), folder / "ledger.sqlite3")
    strategies: dict[str, tuple[Any, dict[str, Any]]] = {
        "random_sample": ("random_sample", {"max_fevals": budget}),
        "genetic_algorithm": ("genetic_algorithm", {"max_fevals": budget}),
        "filtered": (OptAlgWrapper(filtered), {}),
    }
    best = {}
    for name, (strategy, options) in strategies.items():
        random.seed(seed)
        numpy.random.seed(seed)
        results = tune(task, folder / "cache.json", strategy, options)
        best[name] = (task.reference.time_us or 0.0) / (1e3 * min(result["time"] for result in results))
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="rmsnorm", help="a recorded task or a pool file")
    parser.add_argument("budget", nargs="?", type=int, default=32, help="measurements of each search")
    parser.add_argument("seed", nargs="?", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = compare(open_pool(options.task), options.budget, options.seed, Path(scratch))
    print(f"best speed-up after {options.budget} measurements of {options.task}")
    for strategy, speedup in found.items():
        print(f"{strategy:>18}: {speedup:.2f}x")
