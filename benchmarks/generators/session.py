"""Measuring the sources of tasks, one task at a time on each GPU."""

from __future__ import annotations

import datetime
import hashlib
import queue
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.generators.ahead import COMPILED, Ahead
from benchmarks.generators.gpus import gpu_state
from benchmarks.generators.jobs import RUNS, Job
from benchmarks.generators.processes import Row, Worker
from benchmarks.generators.rows import RowFile
from benchmarks.generators.timing import METHOD

TIMEOUT_S = 10.0
PATIENT_TIMEOUT_S = 40.0


@dataclass
class Session:
    """What the measuring threads share."""

    logs: Path
    device: str
    cache: Path
    ahead: Ahead
    file: RowFile
    deadline: float
    task_seconds: float
    versions: dict[str, str]
    jobs: queue.SimpleQueue[Job] = field(default_factory=queue.SimpleQueue)
    failures: list[str] = field(default_factory=list)

    def measure_on(self, gpu: int) -> None:
        """Takes jobs until none is left or the time is up; an error ends it as well and is among the failures."""
        worker = Worker(
            ["measure", "--device", self.device, "--cache", str(self.cache)],
            self.logs / f"measure{gpu}.log",
            {"CUDA_VISIBLE_DEVICES": str(gpu)},
            spare=True,
        )
        try:
            while time.monotonic() < self.deadline:
                try:
                    job = self.jobs.get_nowait()
                except queue.Empty:
                    return
                self._measure_job(job, gpu, worker)
        except Exception as error:  # the other GPUs go on
            self._fail(f"GPU {gpu}: {type(error).__name__}: {error}")
        finally:
            worker.stop()

    def _measure_job(self, job: Job, gpu: int, worker: Worker) -> None:
        begun = time.monotonic()
        for run in RUNS:
            # What the first run did not come to waits for the next session: a source counts when measured twice.
            share = self.task_seconds * (run / len(RUNS))
            try:
                self._measure(job, run, gpu, worker, min(self.deadline, begun + share))
            except RuntimeError as error:  # the other tasks may fare better
                self._fail(f"{job.name} run {run}: {error}")

    def _fail(self, text: str) -> None:
        self.failures.append(text)
        print(text, file=sys.stderr, flush=True)

    def _measure(self, job: Job, run: int, gpu: int, worker: Worker, deadline: float) -> None:
        left = [index for index in job.todo(run) if run == 1 or job.variants[index].id in job.rows[1]]
        if not left or time.monotonic() >= deadline:
            return
        seed = int(hashlib.sha256(f"{job.name} {run}".encode()).hexdigest()[:6], 16)
        worker.renew(f"{job.name} {seed}")
        starts = worker.starts
        begun = time.monotonic()
        counts: Counter[str] = Counter()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        meta = {"date": today, "method": METHOD, "gpu": gpu_state(gpu)} | self.versions
        self.file.add(job.name, run, {"meta": meta})
        half = len(left) // 2
        while left and time.monotonic() < deadline:
            index = self.ahead.next_of(job.name, left)
            left.remove(index)
            row = self._row(job, run, index, worker)
            counts[row["outcome"]] += 1
            job.rows[run][job.variants[index].id] = row
            self.file.add(job.name, run, row)
            if len(left) == half:
                self.file.add(job.name, run, {"meta": {"half_way": gpu_state(gpu)}})
        print(
            f"{job.name} run {run} on GPU {gpu}: {dict(counts)} in {time.monotonic() - begun:.0f} s, "
            f"{worker.starts - starts} processes, {len(left)} left; {self.ahead.summary()}",
            flush=True,
        )

    def _row(self, job: Job, run: int, index: int, worker: Worker) -> Row:
        variant = job.variants[index]
        begun = time.monotonic()
        first = job.rows[1].get(variant.id, {}) if run > 1 else {}
        refused = self.ahead.broken_build(job.name, index)
        if first.get("ended"):
            # A failure counts if one run has it, and this one costs a process.
            answer = {"outcome": first["outcome"], "error": first.get("error", ""), "not_repeated": True}
        elif refused:
            answer = {"outcome": "compile_error", "error": refused}
        else:
            ready = variant.language in COMPILED and self.ahead.error(job.name, index) is None
            tunes = "autotune" in variant.code
            answer = worker.ask(
                f"{job.name} {index}", TIMEOUT_S if ready and not tunes else PATIENT_TIMEOUT_S
            )
        return {"id": variant.id, **answer, "seconds": round(time.monotonic() - begun, 2)}
