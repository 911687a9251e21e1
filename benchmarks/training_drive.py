"""All trainings of the comparison: ``python -m benchmarks.training_drive --model FOLDER --work FOLDER``.

Whatever has a result already is left alone, so that the same command goes on after any end. First the starts of both
seeds, side by side; then a few steps of GRPO alone on the GPU, timed and profiled, which says how many steps there is
time for; then what begins from the two starts, in a process each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.training import PROFILE, SEEDS, Numbers, Work, lane
from benchmarks.training_runs import add_work_options, work_of
from gpu_forecasters_plugin.files import write_atomically

_TESTS_S, _PROPER_S = 25.0, 20.0
"""Seconds that the tests of a written forecaster, and a training by ``proper`` with its test, take about."""
_GRPO_PER_LANE, _PROPER_PER_LANE = 3, 3
_SIDE_BY_SIDE = 1.6
"""How much longer a step takes while another training runs beside it."""


def drive(work: Work, only: Sequence[str] = ()) -> None:
    """Train everything that has no result yet, or those alone that are named."""
    work.folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    sampler = threading.Thread(target=_sample_gpu, args=(work.folder / "gpu.jsonl", stop), daemon=True)
    sampler.start()
    _side_by_side([[f"sft-{seed}"] for seed in SEEDS], work)
    _side_by_side([[PROFILE]], work)
    if not work.plan_file.exists():
        write_atomically(work.plan_file, json.dumps(_plan(work)))
    print(work.plan_file.read_text(), flush=True)
    lanes = [lane(seed) for seed in SEEDS]
    _side_by_side([[name for name in names if not only or name in only] for names in lanes], work)
    stop.set()


def _plan(work: Work) -> Numbers:
    """How many steps of GRPO there is time for; as many as usual where no step was timed."""
    fewest, usual, most = work.sizes.grpo_steps
    times = []
    if work.result(PROFILE).exists() and not math.isinf(work.until):
        times = json.loads(work.result(PROFILE).read_text())["training"]["step_times"]
    # The first step warms up, and the last one was profiled.
    gaps = [after - before for before, after in zip(times[:-2], times[1:-1], strict=True)]
    if not gaps:
        return {"steps": usual, "step_s": None}
    step_s = sum(gaps) / len(gaps)
    left = work.until - time.time() - _GRPO_PER_LANE * _TESTS_S - _PROPER_PER_LANE * _PROPER_S
    steps = int(left / (_GRPO_PER_LANE * _SIDE_BY_SIDE * step_s))
    return {"steps": max(fewest, min(most, steps)), "step_s": step_s, "left_s": left}


def _side_by_side(lanes: Sequence[Sequence[str]], work: Work) -> None:
    """Lanes at the same time, the trainings of each one after the other in one process."""
    threads = [threading.Thread(target=_run_lane, args=(names, work)) for names in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_lane(names: Sequence[str], work: Work) -> None:
    """A process that dies loses the training it was at, and the next process goes on behind it."""
    left = [name for name in names if not work.result(name).exists()]
    while left and time.time() < work.until:
        log = work.folder / "logs" / f"{left[0]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.training_runs", *left, "--size", work.size]
        command += ["--model", str(work.model), "--work", str(work.folder), "--until", str(work.until)]
        with log.open("a", encoding="utf-8") as stream:
            status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=_quiet()).returncode
        done = [name for name in left if work.result(name).exists()]
        failed = [name for name in left if (work.folder / "failed" / name).exists()]
        print(f"{time.time():.0f} {', '.join(done)} done; failed: {', '.join(failed) or 'none'}", flush=True)
        left = [name for name in left if name not in (*done, *failed)]
        if status == 0:
            return
        if not failed and left:  # it was killed at the first that is left
            print(f"{left[0]}: its process ended with {status}, see {log}", flush=True)
            left = left[1:]


def _quiet() -> dict[str, str]:
    """The environment of a training: a few threads, no hub."""
    return os.environ | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _sample_gpu(file: Path, stop: threading.Event) -> None:
    """Write down every second how busy the GPU is, as its driver says."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:  # of a library that is not there, or of its own
        print(f"no NVML: {error}", flush=True)
        return
    with file.open("a", encoding="utf-8") as stream:
        while not stop.wait(1.0):
            use, memory = pynvml.nvmlDeviceGetUtilizationRates(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
            line = {"t": time.time(), "gpu": use.gpu, "memory": use.memory, "used_gib": memory.used / 2**30}
            stream.write(json.dumps(line) + "\n")
            stream.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_work_options(parser)
    parser.add_argument("--only", nargs="*", default=(), help="of what begins from a start, these alone")
    options = parser.parse_args(arguments)
    drive(work_of(options), options.only)


if __name__ == "__main__":
    main()
