"""The measured kernels of the recorded tasks, as a table of features.

It ships with the package, so that no run has to read and analyse thousands of sources first: ``recorded_kernels.npz``
beside this module, which ``python -m benchmarks.recorded_kernels`` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecast import Ending
from gpu_forecasters_plugin.forecasters.learned.shipped_file import pack, read_shipped, unpack
from gpu_forecasters_plugin.forecasters.learned.tables import SourceTable, table_of, table_of_attempts
from gpu_forecasters_plugin.screen.verdict import Status, Verdict

if TYPE_CHECKING:
    from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["RecordedKernels", "kernels_of", "pack_recorded", "unpack_recorded", "warm_start_tasks"]

Array = NDArray[np.float64]

_FILE = "recorded_kernels.npz"
_ENDINGS = tuple(Ending)
_VERDICTS = (None, *(status.value for status in Status))
_ARRAYS = ("structure", "profiles", "compiled", "screened", "endings", "log2_speedups")


@dataclass(frozen=True, eq=False)
class RecordedKernels:
    """A :class:`~.known.KnownTask` that ships with the package.

    Attributes:
        name: of the recorded task.
        operation: what its kernels compute.
        reference_code: source that their speed-ups are relative to.
        reference: its features: one row.
        tried: features of all measured kernels, in the order of the pool file.
        endings: how each of them fared.
        log2_speedups: of each of them; ``nan`` unless it runs right.
    """

    name: str
    operation: str
    reference_code: str
    reference: SourceTable
    tried: SourceTable
    endings: tuple[Ending, ...]
    log2_speedups: Array

    @cached_property
    def _right(self) -> NDArray[np.bool_]:
        return np.array([ending is Ending.OK for ending in self.endings], dtype=np.bool_)

    @cached_property
    def ran(self) -> SourceTable:
        """Features of those that run right."""
        return self.tried.only(self._right)

    @cached_property
    def targets(self) -> Array:
        """log2 speed-ups of those that run right."""
        found: Array = self.log2_speedups[self._right]
        return found


def kernels_of(pool: RecordedPool, verdicts: Mapping[str, Verdict]) -> RecordedKernels:
    """The measured kernels of a recorded task, from its sources.

    Args:
        pool: the task.
        verdicts: what the compiler made of its sources, by id; may be empty.
    """
    # Late: profiles are completed by figures of devices, which belong to the package of forecasters.
    from gpu_forecasters_plugin.recorded.profiles import attempts_of

    attempts = list(attempts_of(pool, verdicts))
    reference = verdicts.get(pool.reference_id)
    speedups = [pool.speedup(attempt.candidate_key) for attempt in attempts]
    return RecordedKernels(
        pool.task,
        pool.operation,
        pool.reference.code,
        table_of([pool.reference.code], [None if reference is None else reference.profile]),
        table_of_attempts(attempts),
        tuple(attempt.ending for attempt in attempts),
        np.array([math.nan if speedup is None else math.log2(speedup) for speedup in speedups]),
    )


def pack_recorded(tasks: Iterable[RecordedKernels]) -> bytes:
    """The bytes of a file of recorded tasks."""
    names: dict[str, dict[str, str]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for task in tasks:
        names[task.name] = {"operation": task.operation, "reference_code": task.reference_code}
        tables = (task.reference, task.tried)
        columns: tuple[NDArray[Any], ...] = (
            np.vstack([table.structure for table in tables]),
            np.vstack([table.profiles for table in tables]),
            np.concatenate([table.compiled for table in tables]),
            np.array([_VERDICTS.index(v) for table in tables for v in table.screened], dtype=np.int8),
            np.array([_ENDINGS.index(ending) for ending in task.endings], dtype=np.int8),
            task.log2_speedups,
        )
        arrays |= {f"{task.name}/{array}": column for array, column in zip(_ARRAYS, columns, strict=True)}
    return pack({"tasks": names}, arrays)


def unpack_recorded(data: bytes) -> list[RecordedKernels]:
    """Inverse of :func:`pack_recorded`.

    Raises:
        ValueError: The features in it are not those that this version extracts.
    """
    head, arrays = unpack(data)
    return [_unpack(name, told, arrays) for name, told in head["tasks"].items()]


def _unpack(name: str, told: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> RecordedKernels:
    structure, profiles, compiled, screened, endings, speedups = (arrays[f"{name}/{a}"] for a in _ARRAYS)
    table = SourceTable(structure, profiles, compiled, tuple(_VERDICTS[number] for number in screened))
    first = np.arange(len(table)) == 0
    return RecordedKernels(
        name,
        told["operation"],
        told["reference_code"],
        table.only(first),
        table.only(~first),
        tuple(_ENDINGS[number] for number in endings),
        speedups,
    )


@lru_cache(maxsize=1)
def _shipped() -> tuple[RecordedKernels, ...]:
    data = read_shipped(_FILE, lost="other operations")
    return () if data is None else tuple(unpack_recorded(data))


def warm_start_tasks(exclude_operation: str) -> list[RecordedKernels]:
    """The recorded tasks of every other operation that ship with what a compiler made of them, by name.

    Args:
        exclude_operation: the operation that the run optimises, or the name of its task, so that nothing measured for
            it leaks in.
    """
    unwanted = exclude_operation.strip().lower()
    return [task for task in _shipped() if unwanted not in (task.operation.lower(), task.name.lower())]
