"""A recorded task as a parameter space, and as the cache file that Kernel Tuner's simulation mode replays.

A recorded kernel is described by what its source says: language, warps, stages and its largest block; ``variant``
numbers those that agree in all of these.
"""

import json
import re
from collections import Counter
from pathlib import Path

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.recorded.pool import RecordedPool

NAMES = ("language", "num_warps", "num_stages", "block", "variant")
ERRORS = {Outcome.COMPILE_ERROR: "CompilationFailedConfig", Outcome.RUNTIME_ERROR: "RuntimeFailedConfig"}

Configuration = tuple[str | int, ...]


def _largest(pattern: str, code: str) -> int:
    return max((int(number) for number in re.findall(pattern, code)), default=0)


def configurations(task: RecordedPool) -> dict[Configuration, str]:
    """Id of the recorded kernel by its parameters, in the order of NAMES."""
    seen: Counter[Configuration] = Counter()
    found: dict[Configuration, str] = {}
    for name, kernel in task.candidates.items():
        described = (
            kernel.language,
            _largest(r"num_warps\s*=\s*(\d+)", kernel.code),
            _largest(r"num_stages\s*=\s*(\d+)", kernel.code),
            _largest(r"\b(?:BLOCK\w*|TILE|CHUNK|COLS)\s*=\s*(\d+)", kernel.code),
        )
        found[*described, seen[described]] = name
        seen[described] += 1
    return found


def tune_parameters(task: RecordedPool) -> dict[str, list[str | int]]:
    """Every value of every parameter."""
    columns = zip(*configurations(task), strict=True)
    return {name: sorted(set(values)) for name, values in zip(NAMES, columns, strict=True)}


def write_cache(task: RecordedPool, path: Path) -> None:
    """Write what was measured as Kernel Tuner would have cached it; times are in milliseconds there."""
    rows = {}
    for configuration, name in configurations(task).items():
        kernel = task.candidates[name]
        time = ERRORS.get(kernel.outcome, "InvalidConfig") if kernel.time_us is None else kernel.time_us / 1e3
        key = ",".join(str(value) for value in configuration)
        rows[key] = dict(zip(NAMES, configuration, strict=True)) | {"time": time}
    cache = {
        "device_name": task.device,
        "kernel_name": task.task,
        "problem_size": [1],
        "tune_params_keys": list(NAMES),
        "tune_params": tune_parameters(task),
        "objective": "time",
        "cache": rows,
    }
    path.write_text(json.dumps(cache))
