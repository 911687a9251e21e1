"""What the compiler said of the recorded tasks, as it ships."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
from static_profiles import H100, launch, profile

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.forecast import Ending
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.recorded.profiles import (
    RecordedScreen,
    attempts_of,
    pack_verdicts,
    recorded_verdicts,
    unpack_verdicts,
)
from gpu_forecasters_plugin.recorded.shipped import profiles_file, recorded_names
from gpu_forecasters_plugin.screen.profile import LibraryCall
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, invalid, undecided

COMPILED_TASKS = [name for name in recorded_names() if profiles_file(name).is_file()]
COMPILED = {"arch": "sm_90", "device": H100, "triton": "3.9.0"}


def test_verdicts_come_back_as_they_were_packed() -> None:
    unseen = launch(grid=None, threads=None, count=0, instructions=None, options={"num_warps": 4})
    verdicts = {
        "good": Verdict(
            Status.VALID, profile=profile(launch(), unseen, library=(LibraryCall("aten.exp", 2, 64, 0),))
        ),
        "bad": invalid(Fault.COMPILE, ""),
        "open": undecided("", profile=profile(launch(spill_bytes=8), complete=False)),
    }
    data = pack_verdicts(verdicts, COMPILED)
    assert unpack_verdicts(data, "file") == verdicts
    assert pack_verdicts(dict(reversed(verdicts.items())), COMPILED) == data


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1"),
        ('{"compiled": {}}\n', "line 1"),
        ('{"compiled": {"device": "x"}}\n{"id": "a", "status": "fine"}\n', "line 2"),
        ('{"compiled": {"device": "x"}}\n{"id": "a", "status": "valid", "profile": {"arch": 1}}\n', "line 2"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(text: str, where: str) -> None:
    with pytest.raises(PoolFileError, match=where):
        unpack_verdicts(gzip.compress(text.encode()), "file")


@pytest.mark.parametrize("task", COMPILED_TASKS)
def test_every_recorded_source_has_a_verdict_and_most_that_ran_an_estimate(task: str) -> None:
    pool, verdicts = load_task(task), recorded_verdicts(task)
    assert verdicts.keys() == pool.candidates.keys()
    reference = verdicts[pool.reference_id].profile
    assert reference is not None and reference.estimated_us
    ran = [attempt for attempt in attempts_of(pool, verdicts) if attempt.ending is Ending.OK]
    assert len(ran) > 100
    assert sum(a.profile is not None for a in ran) >= 0.85 * len(ran)
    assert sum(a.screened == "invalid" for a in ran) <= 0.005 * len(ran)


def test_a_recorded_screen_knows_the_tasks_sources_and_leaves_others_undecided() -> None:
    pool = load_task("fp8_quant")
    screen = RecordedScreen(pool)
    known, strange = Candidate("a", pool.reference.code + "\n# a comment"), Candidate("b", "x = 1")
    found = screen.verdicts([known, strange])
    assert found[known.key].status is Status.VALID and found[pool.reference.key] == found[known.key]
    assert found[strange.key].status is Status.UNDECIDED


def test_a_task_of_another_name_has_no_verdicts() -> None:
    assert recorded_verdicts("no such task") == {}
    renamed = replace(load_task("fp8_quant"), task="mine")
    assert next(iter(attempts_of(renamed, {}))).screened is None
