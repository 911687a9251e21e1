"""Compiles, checks and times the sources of recorded tasks on the GPUs of this machine.

    python -m benchmarks.generators.measure --task rmsnorm softmax --out results

Each task's sources are measured twice, in two runs of different order, by a process that is replaced after a crash, an
illegal access or a time-out; tasks are taken in the order given, one at a time on each GPU. Sources are compiled ahead
of that by other processes, which do not touch a GPU. Rows are appended to ``OUT/rows.jsonl`` and are on the disk at
once; a source whose row is there, or in a file of ``--rows``, is not measured again. ``--plan`` prints what is left to
do, and how long that is expected to take, and needs no GPU. The exit code is 1 if something kept a process or a GPU
from its work: what it was is printed, and the same command measures what is missing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.generators import tasks
from benchmarks.generators.ahead import COMPILED, Ahead
from benchmarks.generators.candidate import load_task
from benchmarks.generators.plan import plan
from benchmarks.generators.processes import Row, Worker
from benchmarks.generators.rows import RowFile, outcomes
from benchmarks.generators.timing import METHOD
from benchmarks.generators.variant import LANGUAGES, Variant, check_distinct
from gpu_forecasters_plugin.errors import FolderInUseError, OutputError
from gpu_forecasters_plugin.files import prepare_folder
from gpu_forecasters_plugin.folder_lock import hold_folder
from gpu_forecasters_plugin.recorded.shipped import short_device

ROW_FILE = "rows.jsonl"
RUNS = (1, 2)
TIMEOUT_S = 10.0
PATIENT_TIMEOUT_S = 40.0


@dataclass
class Job:
    """One task's sources and what is known of them.

    Attributes:
        name: The task.
        variants: Its sources.
        wanted: Indices of those to measure.
        seed: Index of the one that speed-ups will be relative to; it is measured first.
        rows: By run, the rows of those that were measured.
    """

    name: str
    variants: list[Variant]
    wanted: list[int]
    seed: int
    rows: dict[int, dict[str, Row]]

    def todo(self, run: int) -> list[int]:
        """What a run has still to measure, in its order."""
        done = self.rows[run]
        left = [index for index in self.wanted if self.variants[index].id not in done]
        random.Random(f"{self.name} {run}").shuffle(left)
        return sorted(left, key=lambda index: index != self.seed)

    def sources_to_do(self) -> Iterator[tuple[str, int, str]]:
        """Task, index and language of what some run has still to measure, in the order of the first that does."""
        for index in dict.fromkeys(index for run in RUNS for index in self.todo(run)):
            yield self.name, index, self.variants[index].language


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


def gpu_state(gpu: int) -> dict[str, str]:
    """What nvidia-smi says of a device: name, driver and clocks (nothing is changed); empty without it."""
    fields = (
        "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
    )
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {}
    return dict(zip(fields.split(","), (part.strip() for part in text.split(",")), strict=True))


def gpu_count() -> int:
    """How many GPUs nvidia-smi lists."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return len(listed.stdout.strip().splitlines())


def compiler_versions() -> dict[str, str]:
    """The versions of what compiles and runs the kernels."""
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}


def choose(variants: Sequence[Variant], sample: int | None, languages: Sequence[str] | None) -> list[int]:
    """Indices of the sources in these languages, or a sample that takes turns between families and mistakes."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, variant in enumerate(variants):
        if not languages or variant.language in languages:
            choices = variant.choices
            family = choices.get("algorithm") or choices.get("family")
            groups.setdefault((variant.broken, variant.language, family), []).append(index)
    size = sum(map(len, groups.values()))
    picked: list[int] = []
    generator = random.Random(0)
    for members in groups.values():
        generator.shuffle(members)
    while len(picked) < min(size if sample is None else sample, size):
        picked += [members.pop() for members in groups.values() if members]
    return sorted(picked[:sample])


def job_of(
    name: str, sample: int | None, languages: Sequence[str] | None, rows: dict[int, dict[str, Row]]
) -> Job:
    """A task's sources, with what was measured of them before."""
    task = load_task(name)
    variants = task.make_pool().variants
    check_distinct(variants)
    seed = next(index for index, variant in enumerate(variants) if variant.key == task.SEED.key)
    wanted = sorted({seed, *choose(variants, sample, languages)})
    return Job(name, variants, wanted, seed, rows)


def at_least_one(text: str) -> int:
    """A count on the command line."""
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{count} is less than 1")
    return count


def task_names() -> list[str]:
    """The tasks that have a generator; parts of one do not count."""
    files = Path(tasks.__path__[0]).glob("*.py")
    return sorted(path.stem for path in files if "\nTASK = " in path.read_text())


def argument_parser() -> argparse.ArgumentParser:
    """What the command line may hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--task",
        nargs="+",
        required=True,
        choices=task_names(),
        metavar="NAME",
        help="in the order of their importance",
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--logs", type=Path, help="folder for what the processes print; default: OUT/logs")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="files of earlier sessions")
    parser.add_argument("--device", help="the GPU's name; by default what nvidia-smi says")
    parser.add_argument("--gpus", type=at_least_one, help="how many; by default as many as nvidia-smi lists")
    parser.add_argument("--sample", type=at_least_one, help="measure only so many, of all families")
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, help="only sources in these")
    parser.add_argument(
        "--workers", type=at_least_one, help="processes that compile; default: all cores but two per GPU"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no source after so long")
    parser.add_argument("--task-seconds", type=float, default=1e9, help="likewise of one task")
    parser.add_argument("--plan", action="store_true", help="print an estimate and end")
    return parser


def open_folders(out: Path, logs: Path, device: str) -> RowFile:
    """Makes sure that rows and logs can be written, and that no other session writes there.

    Raises:
        OSError: One cannot be written.
        OutputError: Likewise.
        FolderInUseError: Another session holds `out`.
    """
    hold_folder(out)
    prepare_folder(logs, ())
    (out / ROW_FILE).open("a").close()
    return RowFile(out / ROW_FILE, device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the arguments and does what they ask for."""
    parser = argument_parser()
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    gpus = options.gpus or gpu_count() or 1
    device = options.device or gpu_state(0).get("name")
    if not device:
        parser.error("there is no GPU here that nvidia-smi knows; --device says which one is meant")
    logs = options.logs or options.out / "logs"
    path = options.out / ROW_FILE
    try:
        file = None if options.plan else open_folders(options.out, logs, short_device(device))
        earlier = [path] if path.exists() else []
        known = outcomes([*options.rows, *earlier], short_device(device))
    except (OSError, OutputError, FolderInUseError) as error:
        parser.error(str(error))
    jobs = [
        job_of(name, options.sample, options.languages, {run: known[name, run] for run in RUNS})
        for name in dict.fromkeys(options.task)
    ]
    workers = options.workers or max(1, (os.cpu_count() or 2) - 2 * gpus)
    if file is None:
        print(plan(jobs, RUNS, workers, gpus))
        return
    try:
        versions = compiler_versions()
    except ImportError as error:
        parser.error(f"PyTorch and Triton are needed to measure: {error}")
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ.setdefault("MAX_JOBS", "1")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvrtc_of_recorded_tasks"
    ahead = Ahead([key for job in jobs for key in job.sources_to_do()], workers, device, cache, logs)
    session = Session(logs, device, cache, ahead, file, deadline, options.task_seconds, versions)
    for job in jobs:
        session.jobs.put(job)
    threads = [threading.Thread(target=session.measure_on, args=(gpu,)) for gpu in range(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if session.failures or ahead.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
