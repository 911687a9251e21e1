"""The process that compiles or measures sources: a task and an index per line come in, a row of JSON goes out.

It loads its libraries and then waits for a line ``go``; to measure, with the task and the seed of its inputs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.generators.candidate import FATAL, Candidate, classify, first_line, load_task
from benchmarks.generators.checking import as_tuple, compare, poison
from benchmarks.generators.compiling import Compiler
from benchmarks.generators.nvrtc_cache import keep_nvrtc_binaries
from benchmarks.generators.timing import FLUSH_BYTES, time_calls
from benchmarks.generators.variant import Variant

INPUT_SETS = 2
PR_SET_PDEATHSIG = 1
WARM_CLOCKS_S = 0.5
MOST_RESERVED_BYTES = 60 << 30

Row = dict[str, Any]


class _Shape:
    """Inputs of one shape, a copy of them, and what a source has to make of them."""

    def __init__(self, task: ModuleType, shape: Any, seed: int) -> None:
        self.inputs = as_tuple(task.make_inputs(shape, "cuda", seed))
        self.expected = as_tuple(task.reference(*self.inputs))
        self._kept = [tensor.clone() for tensor in self.inputs]

    def restored(self) -> bool:
        """Whether an input had been changed; it is as it was then."""
        import torch

        changed = [
            (tensor, copy)
            for tensor, copy in zip(self.inputs, self._kept, strict=True)
            if not torch.equal(tensor, copy)
        ]
        for tensor, copy in changed:
            tensor.copy_(copy)
        return bool(changed)


class Meter:
    """Checks and times sources of one task, on a few sets of inputs in turn.

    Args:
        name: The task's.
        variants: Its sources.
        folder: Where sources are written to.
        seed: The inputs are drawn from it.
    """

    def __init__(self, name: str, variants: Sequence[Variant], folder: Path, seed: int) -> None:
        import torch

        self._task = task = load_task(name)
        self._folder = folder
        self._sets = [
            [_Shape(task, shape, seed + 100 * turn + number) for number, shape in enumerate(task.SHAPES)]
            for turn in range(INPUT_SETS)
        ]
        self._turn = 0
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        until = time.perf_counter() + WARM_CLOCKS_S
        while time.perf_counter() < until:  # let the clocks rise
            for _ in range(50):
                self._flush.zero_()
            torch.cuda.synchronize()
        # What the first source would otherwise wait for: libraries that load late.
        reference = next(variant for variant in variants if variant.key == task.SEED.key)
        row = self.measure(name, reference)
        if row["outcome"] != "ok":
            print(f"{name}: the seed is {row}", file=sys.stderr, flush=True)

    def measure(self, _: str, variant: Variant) -> Row:
        """Measures one source; any exception becomes an outcome."""
        _reset_torch()
        self._turn = (self._turn + 1) % INPUT_SETS
        phase = "import"
        row: Row = {"outcome": "ok", "shapes": []}
        try:
            candidate = Candidate(variant, self._folder)
            phase = "run"
            for shape in self._sets[self._turn]:
                behind = any(done["host_behind"] for done in row["shapes"])
                answer = self._measure_shape(candidate, shape, behind)
                if "wrong" in answer:
                    return {"outcome": "incorrect", "error": answer["wrong"]}
                row["shapes"].append(answer)
        except Exception as error:  # whatever a candidate raises is its result
            row = {"outcome": classify(error, phase, variant.language), "error": first_line(error)}
            row["fatal"] = any(mark in str(error) for mark in FATAL)
        except SystemExit as error:
            row = {"outcome": "runtime_error", "error": f"SystemExit: {error}"}
        finally:
            sys.modules.pop(f"candidate_{variant.id}", None)
        return row if row.get("fatal") else self._tidied(row)

    def _measure_shape(self, candidate: Candidate, shape: _Shape, behind: bool) -> Row:
        """Checks a candidate on one shape and times it; the answer holds `wrong`, or what `Timing` holds."""
        import torch

        poison(shape.expected, self._task)
        outputs = as_tuple(candidate.run(*shape.inputs))
        torch.cuda.synchronize()
        wrong = compare(self._task, outputs, shape.expected)
        del outputs
        if shape.restored():
            wrong = wrong or "an input was changed"
        if wrong:
            return {"wrong": wrong}
        timing, outputs = time_calls(
            lambda: as_tuple(candidate.run(*shape.inputs)),
            self._flush,
            hopeless=behind,
            before=lambda: poison(shape.expected, self._task),
        )
        wrong = compare(self._task, outputs, shape.expected)
        if shape.restored():
            wrong = wrong or "an input was changed"
        return {"wrong": "after the repeats: " + wrong} if wrong else asdict(timing)

    def _tidied(self, row: Row) -> Row:
        import torch

        try:
            torch.cuda.synchronize()
            if torch.cuda.memory_reserved() > MOST_RESERVED_BYTES:
                torch.cuda.empty_cache()
        except Exception as error:  # it shows only now
            return {"outcome": "runtime_error", "error": first_line(error), "fatal": True}
        return row


def _reset_torch() -> None:
    """Undoes the global settings that a candidate may have changed."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


class _Sources:
    """The sources of tasks, each generated once."""

    def __init__(self) -> None:
        self._known: dict[str, list[Variant]] = {}

    def of(self, task: str) -> list[Variant]:
        if task not in self._known:
            self._known[task] = load_task(task).make_pool().variants
        return self._known[task]


def _lines() -> Iterator[str]:
    return iter(sys.stdin.readline, "")


def main() -> None:
    """Answers until the input ends, or until an error after which this process measures nothing any more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["compile", "measure"])
    parser.add_argument("--language", default="triton", help="what is compiled")
    parser.add_argument("--device", required=True, help="name of the GPU")
    parser.add_argument("--cache", type=Path, required=True, help="folder for what NVRTC builds")
    options = parser.parse_args()
    # A kernel that never ends would keep the GPU busy if this process outlived the one that started it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Whatever a source prints goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(row: Row) -> None:
        print(json.dumps(row), file=answers, flush=True)

    import torch  # noqa: F401 - a spare process has its libraries loaded
    import triton  # noqa: F401

    keep_nvrtc_binaries(options.cache, options.device)
    folder = Path(tempfile.mkdtemp(prefix="candidates_"))
    sources = _Sources()
    answer({"loaded": True})
    go, *setup = next(_lines(), "").split() or [""]
    if go != "go":
        os._exit(0)
    if options.mode == "compile":
        work: Callable[[str, Variant], Row] = Compiler(folder, options.device, options.language).compile
    else:
        task, seed = setup
        work = Meter(task, sources.of(task), folder, int(seed)).measure
    gc.collect()
    gc.freeze()
    answer({"ready": True})
    for line in _lines():
        task, index = line.split()
        row = work(task, sources.of(task)[int(index)])
        answer(row)
        if row.get("fatal"):
            break
    shutil.rmtree(folder, ignore_errors=True)
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
