"""Which of the sources of :mod:`benchmarks.screening_sources` really fail: runs them on the GPU of this machine.

``python -m benchmarks.screening_truth`` needs torch and triton and nothing else. Each source runs in a process of its
own, forked from one that has torch loaded, on every shape of its task, its results compared with the task's own
reference; so do the references of their tasks, which show that the machine measures at all. What was
measured is in ``benchmarks/results/screening_truth.json`` after every source, and is not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generators.candidate import load_task as load_generator
from benchmarks.generators.checking import compare
from benchmarks.screening_sources import PARENT_TASKS, BrokenSource, broken_sources
from gpu_forecasters_plugin.recorded.pool import load_task

__all__ = ["TRUTH", "measure", "read_truth", "summary", "truth_of"]

TRUTH = Path(__file__).with_name("results") / "screening_truth.json"
_CONTROL = "reference"
_LONGEST_ERROR = 200


def _digest(source: BrokenSource) -> str:
    return hashlib.sha256(source.code.encode()).hexdigest()[:16]


def read_truth(path: Path = TRUTH) -> dict[str, dict[str, str]]:
    """``outcome`` and ``error`` by the digest of a source's text; empty before anything was measured."""
    if not path.exists():
        return {}
    rows: dict[str, dict[str, str]] = json.loads(path.read_text())["rows"]
    return rows


def truth_of(source: BrokenSource, known: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """What a GPU made of a source; ``None`` if none was asked."""
    return known.get(_digest(source))


def _controls() -> list[BrokenSource]:
    return [
        BrokenSource(f"{_CONTROL} {task}", task, _CONTROL, load_task(task).reference.code)
        for task in PARENT_TASKS
    ]


# -- one source, in a process of its own --------------------------------------------------------------------------


def _outputs(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _run(path: Path, task_name: str) -> str | None:
    """Run a source on every shape of its task; what is wrong with its results, if anything.

    Raises:
        Exception: whatever the source raises.
    """
    import torch

    task = load_generator(task_name)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec and spec.loader
    candidate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(candidate)
    for shape in task.SHAPES:
        inputs = task.make_inputs(shape, "cuda", 0)
        outputs = _outputs(candidate.run(*inputs))
        torch.cuda.synchronize()
        wrong = compare(task, outputs, _outputs(task.reference(*inputs)))
        if wrong is not None:
            return wrong
    return None


def _in_child(path: Path, task: str, answer: Path) -> None:
    """Run a source, write how it ended, and end this process."""
    # Here, and not in the process that forks: CUDA, once begun, does not survive a fork.
    import torch

    row = {"outcome": "ok", "error": ""}
    device = "none"
    try:
        device = torch.cuda.get_device_name()
        wrong = _run(path, task)
        if wrong is not None:
            row = {"outcome": "incorrect", "error": wrong}
    except BaseException as error:  # whatever a broken source raises is the answer
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        row = {"outcome": "runtime_error", "error": f"{type(error).__name__}: {said[-1] if said else ''}"}
    answer.write_text(json.dumps(row | {"error": row["error"][:_LONGEST_ERROR], "device": device}))
    os._exit(0)


@dataclass(frozen=True)
class _Running:
    source: BrokenSource
    answer: Path
    ends_at: float


def _start(source: BrokenSource, folder: Path, seconds: float) -> tuple[int, _Running]:
    path = folder / f"{_digest(source)}.py"
    path.write_text(source.code)
    answer = path.with_suffix(".json")
    number = os.fork()
    if number == 0:
        try:
            _in_child(path, source.task, answer)
        finally:
            os._exit(1)
    return number, _Running(source, answer, time.monotonic() + seconds)


def _ended(running: dict[int, _Running]) -> list[tuple[BrokenSource, dict[str, str]]]:
    """Those that are done or have had their time, which are taken out."""
    done = []
    for number, one in list(running.items()):
        late = time.monotonic() > one.ends_at
        if late:
            os.kill(number, signal.SIGKILL)
        ended, status = os.waitpid(number, 0 if late else os.WNOHANG)
        if not ended:
            continue
        del running[number]
        if one.answer.exists():
            row = json.loads(one.answer.read_text())
        elif late:
            row = {"outcome": "timeout", "error": "no result in time"}
        else:
            row = {"outcome": "runtime_error", "error": f"its process ended with status {status}"}
        done.append((one.source, row))
    return done


# -- all of them --------------------------------------------------------------------------------------------------


def measure(out: Path, *, seconds: float, each_seconds: float, workers: int) -> None:
    """Run all that is not in the file yet, for at most ``seconds``, and write what came of it."""
    import torch
    import triton

    if torch.cuda.device_count() == 0:
        raise SystemExit("there is no GPU here: run this on a machine that has one")
    known = read_truth(out)
    left = [source for source in _controls() + broken_sources() if truth_of(source, known) is None]
    left.reverse()
    ends_at = time.monotonic() + seconds
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    running: dict[int, _Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
        while (left and time.monotonic() < ends_at - each_seconds) or running:
            while left and len(running) < workers and time.monotonic() < ends_at - each_seconds:
                number, one = _start(left.pop(), Path(folder), each_seconds)
                running[number] = one
            for source, row in _ended(running):
                known[_digest(source)] = {"id": source.id, "task": source.task, **row}
                print(f"{source.id:34} {source.task:14} {row['outcome']:14} {row['error'][:90]}", flush=True)
                out.write_text(json.dumps({**versions, "rows": known}, indent=1) + "\n")
            time.sleep(0.05)


def summary(out: Path) -> str:
    """How many of each kind ended how."""
    known = read_truth(out)
    sources = _controls() + broken_sources()
    lines = [f"{'kind':32} {'fail':>5} {'incorrect':>10} {'ok':>5} {'not run':>8}"]
    for kind in dict.fromkeys(source.kind for source in sources):
        rows = [truth_of(source, known) for source in sources if source.kind == kind]
        counts = Counter("not run" if row is None else row["outcome"] for row in rows)
        failed = counts["runtime_error"] + counts["timeout"]
        lines.append(f"{kind:32} {failed:5} {counts['incorrect']:10} {counts['ok']:5} {counts['not run']:8}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=TRUTH, help="where the answers are kept")
    parser.add_argument("--seconds", type=float, default=150.0, help="for all of it")
    parser.add_argument("--each-seconds", type=float, default=30.0, help="for one source")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    measure(options.out, seconds=options.seconds, each_seconds=options.each_seconds, workers=options.workers)
    print(summary(options.out))


if __name__ == "__main__":
    main()
