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
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators.ahead import Ahead
from benchmarks.generators.gpus import gpu_count, gpu_state
from benchmarks.generators.jobs import RUNS, job_of, task_names
from benchmarks.generators.plan import plan
from benchmarks.generators.rows import RowFile, outcomes
from benchmarks.generators.session import Session
from benchmarks.generators.variant import LANGUAGES
from gpu_forecasters_plugin.errors import FolderInUseError, OutputError
from gpu_forecasters_plugin.files import prepare_folder
from gpu_forecasters_plugin.folder_lock import hold_folder
from gpu_forecasters_plugin.recorded.shipped import short_device

ROW_FILE = "rows.jsonl"


def compiler_versions() -> dict[str, str]:
    """The versions of what compiles and runs the kernels."""
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}


def at_least_one(text: str) -> int:
    """A count on the command line."""
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{count} is less than 1")
    return count


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
