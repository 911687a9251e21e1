from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import write_pool

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.workers import run_searches
from gpu_forecasters_plugin.errors import HostError

_SEARCH_THAT_WARNS = """
import logging
from types import SimpleNamespace
from gpu_forecasters_plugin.compare import workers
workers._pool = workers._host = SimpleNamespace(run=lambda *search: logging.getLogger("gate").warning("odd"))
for seed in (3, 4):
    workers._run(SimpleNamespace(name="surrogate"), seed, 1, None)
"""


def test_what_a_search_warns_of_names_its_arm_and_seed() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _SEARCH_THAT_WARNS], capture_output=True, text=True, check=True
    )
    assert said.stderr == "surrogate, seed 3: odd\nsurrogate, seed 4: odd\n"


# What a kill does that strikes a process while it takes its next search from the queue, whose lock it has then.
_DIE_AT_THE_QUEUE = """
import os, signal, sys
from multiprocessing.queues import Queue
frame = sys._getframe()
while not isinstance(frame.f_locals.get("self"), Queue):
    frame = frame.f_back
frame.f_locals["self"]._rlock.acquire(True, 10)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Fatal(Arm):
    """A search that ends the process that is to make it."""

    def __reduce__(self) -> Any:
        return exec, (_DIE_AT_THE_QUEUE,)


def test_a_process_that_is_killed_with_the_lock_of_the_queue_ends_the_others_too(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.jsonl")
    finished: list[ArmRun] = []
    # So many that nobody waits for one.
    searches = [(Fatal("fatal", None), 0), *((Arm("baseline", None), seed) for seed in range(100))]
    with pytest.raises(HostError, match="a process of the comparison was killed"):
        run_searches("inprocess", str(pool), searches, 10, tmp_path / "runs", finished.append)
    assert len(finished) < 100
