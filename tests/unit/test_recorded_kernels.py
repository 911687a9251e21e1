"""What is known of the recorded tasks ships as a table, which says what their sources say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recorded_kernels import FILE, profiled_task_names
from gpu_forecasters_plugin.forecast import Ending
from gpu_forecasters_plugin.forecasters.learned import recorded_kernels, shipped_file
from gpu_forecasters_plugin.forecasters.learned.recorded_kernels import (
    RecordedKernels,
    kernels_of,
    pack_recorded,
    unpack_recorded,
    warm_start_tasks,
)
from gpu_forecasters_plugin.forecasters.learned.tables import SourceTable
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.recorded.profiles import recorded_verdicts


def same(one: SourceTable, other: SourceTable) -> bool:
    columns = (
        (one.structure, other.structure),
        (one.profiles, other.profiles),
        (one.compiled, other.compiled),
    )
    near = all(np.allclose(a, b, rtol=1e-12, atol=0.0, equal_nan=True) for a, b in columns)
    return near and one.screened == other.screened


def shipped() -> dict[str, RecordedKernels]:
    return {task.name: task for task in unpack_recorded(FILE.read_bytes())}


def test_the_table_has_every_recorded_task_that_was_compiled() -> None:
    assert list(shipped()) == profiled_task_names()


@pytest.mark.parametrize("name", profiled_task_names())
def test_the_table_says_what_the_sources_say(name: str) -> None:
    """Otherwise it is older than tasks, profiles or features: python -m benchmarks.recorded_kernels."""
    pool, task = load_task(name), shipped()[name]
    fresh = kernels_of(pool, recorded_verdicts(name))
    assert (task.operation, task.reference_code) == (pool.operation, pool.reference.code)
    assert same(task.reference, fresh.reference) and same(task.tried, fresh.tried)
    assert task.endings == fresh.endings
    assert np.allclose(task.log2_speedups, fresh.log2_speedups, rtol=1e-12, equal_nan=True)


def test_those_that_ran_are_told_from_those_that_failed() -> None:
    for task in shipped().values():
        right = [ending is Ending.OK for ending in task.endings]
        assert 0 < sum(right) == len(task.ran) == len(task.targets) < len(task.tried)
        assert np.isfinite(task.targets).all() and np.isnan(task.log2_speedups[np.invert(right)]).all()
        assert (task.ran.structure == task.tried.structure[right]).all()


def test_an_operation_is_left_out_by_its_own_name_and_by_its_tasks() -> None:
    tasks = shipped()
    name, task = next(iter(tasks.items()))
    for unwanted in (name.upper(), f" {task.operation} "):
        found = [other.name for other in warm_start_tasks(exclude_operation=unwanted)]
        assert found == [other for other in tasks if other != name]


def test_a_table_of_other_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack_recorded(shipped().values())
    assert [task.name for task in unpack_recorded(data)] == list(shipped())
    monkeypatch.setitem(shipped_file._FEATURES, "structure", ["something", "else"])
    with pytest.raises(ValueError, match="holds other features"):
        unpack_recorded(data)


def test_an_installation_without_the_table_says_that_it_starts_from_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorded_kernels, "_FILE", "nowhere.npz")
    recorded_kernels._shipped.cache_clear()
    try:
        assert warm_start_tasks("anything") == []
    finally:
        recorded_kernels._shipped.cache_clear()
    assert "nowhere.npz is missing: nothing is known of other operations" in caplog.text
