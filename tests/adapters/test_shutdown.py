"""The end of OpenEvolve's run, whatever its workers are doing."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest

pytest.importorskip("openevolve")

from gpu_forecasters_openevolve.shutdown import RunWatch
from openevolve.process_parallel import ProcessParallelController

_half_way = multiprocessing.get_context("fork").Event()


def answer_by_half() -> str:
    """The result of this call is never written to its end."""
    write = Connection._send  # type: ignore[attr-defined]

    def half(connection: Connection, data: Any) -> None:
        write(connection, bytes(data)[: len(data) // 2])
        _half_way.set()
        time.sleep(600)

    Connection._send = half  # type: ignore[attr-defined]
    return "x" * 1000


def test_a_worker_that_is_ended_in_the_middle_of_its_result_holds_nobody_up() -> None:
    controller = object.__new__(ProcessParallelController)
    controller.shutdown_event = threading.Event()
    controller.executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    stopping: list[bool] = []
    watch = RunWatch(on_request=lambda: None, on_stopping=stopping.append)
    try:
        controller.executor.submit(answer_by_half)
        reader = controller.executor._executor_manager_thread
        assert _half_way.wait(60)
        controller.stop()
    finally:
        watch.close()
    reader.join(60)
    assert not reader.is_alive()
    assert stopping == [False]
