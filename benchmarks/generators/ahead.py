"""Compiling ahead of the measurements, by processes that need no GPU."""

from __future__ import annotations

import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.generators.candidate import BUILD_MARKS
from benchmarks.generators.processes import Worker

COMPILE_TIMEOUT_S = 240.0
COMPILED = ("cuda", "triton")

Key = tuple[str, int]


class Ahead:
    """Compiles sources in their order, side by side, on processors alone.

    Args:
        sources: Task, index in it and language of each; those that need no compiling are left out.
        workers: Processes.
        device: Name of the GPU that is compiled for.
        cache: Folder for what NVRTC builds.
        logs: Folder for what the processes print.

    Attributes:
        failures: What ended a thread before its time; it is printed at once.
    """

    def __init__(
        self, sources: Iterable[tuple[str, int, str]], workers: int, device: str, cache: Path, logs: Path
    ) -> None:
        self._options = ["compile", "--device", device, "--cache", str(cache)]
        self._logs = logs
        self._queues: dict[str, queue.SimpleQueue[Key]] = {kind: queue.SimpleQueue() for kind in COMPILED}
        self._language: dict[Key, str] = {}
        self._errors: dict[Key, str | None] = {}
        self._seconds: Counter[str] = Counter()
        self._news = threading.Condition()
        self._ended = 0
        self.failures: list[str] = []
        for task, index, language in sources:
            if language in self._queues:
                self._language[task, index] = language
                self._queues[language].put((task, index))
        self._workers = workers if self._language else 0
        for number in range(self._workers):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()

    def _work(self, number: int) -> None:
        # A third of the processes begins with the sources that import alone compiles.
        order = COMPILED if number % 3 == 0 else COMPILED[::-1]
        try:
            for language in order:
                self._drain(language, number)
        except Exception as error:  # what is not compiled ahead is compiled when it is measured
            self.failures.append(f"compiling process {number}: {type(error).__name__}: {error}")
            print(self.failures[-1], file=sys.stderr, flush=True)
        finally:
            with self._news:
                self._ended += 1
                self._news.notify_all()

    def _drain(self, language: str, number: int) -> None:
        log = self._logs / f"compile{number}.log"
        worker = Worker([*self._options, "--language", language], log, {"CUDA_VISIBLE_DEVICES": ""})
        try:
            while True:
                try:
                    task, index = self._queues[language].get_nowait()
                except queue.Empty:
                    return
                row = worker.ask(f"{task} {index}", COMPILE_TIMEOUT_S)
                with self._news:
                    self._errors[task, index] = row["error"]
                    self._seconds[language] += row.get("seconds", COMPILE_TIMEOUT_S)
                    self._news.notify_all()
        finally:
            worker.stop()

    def next_of(self, task: str, left: Sequence[int]) -> int:
        """The first of the indices that is compiled, or need not be; waits for one."""
        with self._news:
            while True:
                for index in left:
                    key = task, index
                    if key not in self._language or key in self._errors or self._ended == self._workers:
                        return index
                self._news.wait()

    def error(self, task: str, index: int) -> str | None:
        """Why a source did not compile here; another text where it was not tried."""
        return self._errors.get((task, index), "not compiled")

    def broken_build(self, task: str, index: int) -> str | None:
        """The error of a source whose compiler has refused it: it is not tried again."""
        error = self._errors.get((task, index))
        is_cuda = self._language.get((task, index)) == "cuda"
        return error if error and is_cuda and any(mark in error for mark in BUILD_MARKS) else None

    def summary(self) -> str:
        """How many sources were compiled in how long."""
        with self._news:
            counts = Counter(self._language[key] for key in self._errors)
            failed = Counter(self._language[key] for key, error in self._errors.items() if error)
            examples = Counter(error[:90] for error in self._errors.values() if error).most_common(5)
            means = {kind: round(self._seconds[kind] / counts[kind], 1) for kind in counts}
        return (
            f"compiled ahead {dict(counts)} of {len(self._language)}, seconds each {means}, "
            f"not through {dict(failed)}: {examples}"
        )
