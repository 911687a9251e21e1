"""Compiles, checks and times the sources of recorded tasks on a GPU.

    python -m benchmarks.generators.measure --task rmsnorm softmax --out results --runs 1 2

First every source is compiled by several processes side by side (the caches of Triton and of the extension builder
keep the products), then one after the other is checked and timed in a child process that is replaced after a crash,
an illegal access or a time-out. Results are appended to ``OUT/TASK.runN.jsonl`` row by row; rows that are there
already are not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import hashlib
import importlib
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.generators.variant import Variant, check_distinct

REPEATS = 30
REPEATS_SLOW = 20
SLOW_MS = 50.0
WARM_UP = 5
BATCH = 10
MIN_LEAD_MS = 1.0
MAX_LEAD_MS = 24.0
LEAD_SECONDS = 0.5
CYCLES_PER_MS = 1_800_000
FLUSH_BYTES = 256 << 20
CANDIDATE_TIMEOUT_S = 20.0
COMPILE_TIMEOUT_S = 180.0
METHOD = (
    f"CUDA events around each call; {FLUSH_BYTES >> 20} MiB written before each call, so that L2 is cold; calls in "
    f"batches of {BATCH} behind an idle period, so that the host runs ahead of the GPU; a batch in which the GPU "
    f"caught up with the host is taken again behind a longer period, for {LEAD_SECONDS} s a series at most, after "
    f"which it counts (a kernel that itself waits for the GPU is never ahead); median of {REPEATS} calls after a "
    f"warm-up, {REPEATS_SLOW}, each batch taken once, where a call takes over {SLOW_MS:.0f} ms"
)
# An error after which the process's CUDA context cannot be trusted any more.
FATAL = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "an illegal",
    "launch timed out",
    "invalid program counter",
    "hardware stack",
    "cudaErrorLaunchFailure",
    "invalid address space",
)
BUILD_MARKS = (
    "Error building extension",
    "nvrtc",
    "NVRTC",
    "CompileException",
    "nvcc",
    "ninja",
    "No such file: nvcc",
)


def load_task(name: str) -> ModuleType:
    """Imports the generator of a task."""
    return importlib.import_module(f"benchmarks.generators.{name}")


# ---------------------------------------------------------------------------------------------- the child process


class _Candidate:
    """A source, imported from a file of its own (Triton reads the text of its kernels from there)."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        name = f"candidate_{variant.id}"
        path = folder / f"{name}.py"
        path.write_text(variant.code)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module
        spec.loader.exec_module(self.module)
        self.run = self.module.run


def _first_line(error: BaseException) -> str:
    """A short, single-line description of an error."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    # Triton's messages begin with the position and end with the reason.
    line = (
        (telling[0] if telling else lines[-1] if "CompilationError" in type(error).__name__ else lines[0])
        if lines
        else ""
    )
    if "CompilationError" in type(error).__name__ and lines:
        line = lines[-1]
    for secret in (tempfile.gettempdir(), str(Path.cwd()), str(Path.home())):
        line = line.replace(secret, "")
    return f"{type(error).__name__}: {line}"[:240]


def _classify(error: BaseException, phase: str, language: str) -> str:
    """Whether an error means that the source does not compile or that it fails when it runs."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if phase == "import" or names & {
        "CompilationError",
        "PTXASError",
        "CompileTimeAssertionFailure",
        "SyntaxError",
    }:
        return "compile_error"
    if language == "cuda" and any(mark in str(error) for mark in BUILD_MARKS):
        return "compile_error"
    return "runtime_error"


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


def _as_tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _tolerances(task: ModuleType, count: int) -> list[dict[str, float]]:
    """The tolerance of each output: one dictionary for all, or one per output in order."""
    table = task.TOLERANCE
    if all(isinstance(value, dict) for value in table.values()):
        return list(table.values())
    return [dict(table)] * count


def compare(task: ModuleType, outputs: tuple[Any, ...], expected: tuple[Any, ...]) -> str | None:
    """Returns None if the outputs are right, otherwise what is wrong with them."""
    import torch

    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    types = getattr(task, "OUTPUT_DTYPES", [None] * len(expected))
    for number, (out, want, bound, kind) in enumerate(
        zip(outputs, expected, _tolerances(task, len(expected)), types, strict=True)
    ):
        if not isinstance(out, torch.Tensor):
            return f"output {number} is a {type(out).__name__}"
        if out.device != want.device:
            return f"output {number} is on {out.device}"
        if out.shape != want.shape:
            return f"output {number} has shape {tuple(out.shape)} instead of {tuple(want.shape)}"
        if kind is not None and out.dtype != getattr(torch, kind):
            return f"output {number} has type {out.dtype} instead of {kind}"
        got, ref = out.float(), want.float()
        if not bool(torch.isfinite(got).all()):
            return f"output {number} has values that are not finite"
        error = (got - ref).abs_()
        if "relative_norm" in bound:
            ratio = (error.norm() / ref.norm()).item()
            if not ratio <= bound["relative_norm"]:
                return f"output {number}: relative error {ratio:.3g} above {bound['relative_norm']:g}"
        if "rtol" in bound:
            allowed = ref.abs().mul_(bound["rtol"]).add_(bound["atol"])
            wrong = int((error > allowed).sum())
            if wrong:
                return f"output {number}: {wrong} of {got.numel()} elements outside the tolerance"
    return None


def _poison(expected: tuple[Any, ...], task: ModuleType) -> None:
    """Fills the memory that the next outputs will probably get with NaN."""
    import torch

    types = getattr(task, "OUTPUT_DTYPES", [None] * len(expected))
    blocks = []
    for want, kind in zip(expected, types, strict=True):
        dtype = getattr(torch, kind) if kind else torch.float32
        if dtype.is_floating_point:
            blocks += [
                torch.full(want.shape, float("nan"), device=want.device, dtype=dtype) for _ in range(2)
            ]
    del blocks


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Calls that were queued together: their times on the GPU, the last outputs, and how the host fared."""

    times_ms: list[float]
    outputs: tuple[Any, ...]
    host_ms: float
    ahead: bool


def _timed_batch(call: Callable[[], tuple[Any, ...]], count: int, flush: Any, lead_ms: float) -> _Batch:
    """Queues `count` calls behind an idle period of `lead_ms` and times each on the GPU.

    The batch is `ahead` if the last call was queued before the idle period ended: no time between two events can then
    be time in which the GPU waited for the host.
    """
    import torch

    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
    ]
    begun = torch.cuda.Event()
    outputs: tuple[Any, ...] = ()
    start_of_host = time.perf_counter()
    torch.cuda._sleep(int(lead_ms * CYCLES_PER_MS))
    begun.record()
    for start, end in events:
        flush.zero_()
        start.record()
        outputs = call()
        end.record()
    ahead = not begun.query()
    host_ms = 1000 * (time.perf_counter() - start_of_host)
    torch.cuda.synchronize()
    return _Batch([start.elapsed_time(end) for start, end in events], outputs, host_ms, ahead)


def _timed_series(
    call: Callable[[], tuple[Any, ...]], repeats: int, flush: Any, lead_ms: float, lead_seconds: float
) -> tuple[list[float], tuple[Any, ...], bool]:
    """Times `repeats` calls in batches; one in which the host fell behind is taken again for up to `lead_seconds`.

    Returns the times in milliseconds, the last outputs, and whether the host fell behind in a batch that counts.
    """
    times: list[float] = []
    outputs: tuple[Any, ...] = ()
    behind = False
    patience_ends = time.perf_counter() + lead_seconds
    while len(times) < repeats:
        batch = _timed_batch(call, BATCH, flush, min(lead_ms, MAX_LEAD_MS))
        outputs = batch.outputs
        if not batch.ahead and time.perf_counter() < patience_ends:
            lead_ms *= 2
            continue
        behind |= not batch.ahead
        times += batch.times_ms
    return times, outputs, behind


def _measure_shape(
    task: ModuleType, candidate: _Candidate, inputs: tuple[Any, ...], expected: tuple[Any, ...], flush: Any
) -> dict[str, Any]:
    """Checks a candidate on one shape and times it; the answer holds `wrong`, or `median_us` and `spread`."""
    import torch

    kept = [tensor.clone() for tensor in inputs]
    _poison(expected, task)
    outputs = _as_tuple(candidate.run(*inputs))
    torch.cuda.synchronize()
    wrong = compare(task, outputs, expected)
    del outputs
    if wrong:
        return {"wrong": wrong}
    for tensor, copy in zip(inputs, kept, strict=True):
        if not torch.equal(tensor, copy):
            return {"wrong": "an input was changed"}
    del kept

    def call() -> tuple[Any, ...]:
        return _as_tuple(candidate.run(*inputs))

    first = _timed_batch(call, 2, flush, 0.0)
    slow = min(first.times_ms) > SLOW_MS
    warm = first if slow else _timed_batch(call, WARM_UP, flush, 0.0)
    lead_ms = max(MIN_LEAD_MS, 2 * BATCH * warm.host_ms / len(warm.times_ms))
    gc.disable()
    try:
        _poison(expected, task)
        times, outputs, behind = _timed_series(
            call,
            REPEATS_SLOW if slow else REPEATS,
            flush,
            lead_ms,
            0.0 if slow else LEAD_SECONDS,
        )
    finally:
        gc.enable()
    wrong = compare(task, outputs, expected)
    if wrong:
        return {"wrong": "after the repeats: " + wrong}
    median = statistics.median(times)
    spread = 1.4826 * statistics.median(abs(value - median) for value in times) / median
    return {
        "median_us": 1000 * median,
        "spread": spread,
        "repeats": len(times),
        "fastest_us": 1000 * min(times),
        "host_behind": behind,
    }


def _measure(task: ModuleType, variant: Variant, folder: Path, run: int, flush: Any) -> dict[str, Any]:
    """Measures one candidate; any exception becomes an outcome."""
    import torch

    _reset_torch()
    seed = int(hashlib.sha256(f"{variant.id} {run}".encode()).hexdigest()[:8], 16)
    data = []
    for number, shape in enumerate(task.SHAPES):
        inputs = _as_tuple(task.make_inputs(shape, "cuda", seed + number))
        data.append((inputs, _as_tuple(task.reference(*inputs))))
    torch.cuda.synchronize()
    phase = "import"
    row: dict[str, Any] = {"outcome": "ok", "shapes": []}
    try:
        candidate = _Candidate(variant, folder)
        phase = "run"
        for inputs, expected in data:
            answer = _measure_shape(task, candidate, inputs, expected, flush)
            if "wrong" in answer:
                return {"outcome": "incorrect", "error": answer["wrong"]}
            row["shapes"].append(answer)
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its result
        text = str(error)
        row = {"outcome": _classify(error, phase, variant.language), "error": _first_line(error)}
        row["fatal"] = any(mark in text for mark in FATAL)
        if os.environ.get("MEASURE_TRACEBACKS"):
            row["traceback"] = traceback.format_exc()[-3000:]
    except SystemExit as error:
        row = {"outcome": "runtime_error", "error": f"SystemExit: {error}"}
    finally:
        data.clear()
        sys.modules.pop(f"candidate_{variant.id}", None)
    return row


def _compile_only() -> None:
    """Turns every Triton launch of this process into a compilation without a launch."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return original(self, *args, grid=grid, warmup=True, **kwargs)

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        try:
            self.fn.run(*args, **dict(meta, **config.all_kwargs()))
        except Exception:  # noqa: BLE001 - the configuration loses
            return [float("inf")] * 3
        return [1.0] * 3

    JITFunction.run = run
    Autotuner._bench = bench


def _compile(task: ModuleType, variant: Variant, folder: Path) -> dict[str, Any]:
    """Compiles one candidate for all shapes; errors show again when it is measured."""
    import torch

    begun = time.perf_counter()
    error = None
    try:
        candidate = _Candidate(variant, folder)
        if variant.language == "triton":
            for shape in task.SHAPES:
                inputs = _as_tuple(task.make_inputs(shape, "cuda", 1))
                candidate.run(*inputs)
                del inputs
    except BaseException as problem:  # noqa: BLE001
        error = _first_line(problem)
    torch.cuda.empty_cache()
    return {"seconds": round(time.perf_counter() - begun, 2), "error": error}


def child_main(mode: str, name: str, run: int) -> None:
    """The child's loop: an index per line comes in, a row of JSON goes out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    task = load_task(name)
    variants = task.generate()
    folder = Path(tempfile.mkdtemp(prefix="candidates_"))
    torch.zeros(1, device="cuda")
    flush = None
    if mode == "compile":
        _compile_only()
    else:
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:  # let the clocks rise
            for _ in range(50):
                flush.zero_()
            torch.cuda.synchronize()
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        variant = variants[int(line)]
        if mode == "compile":
            row = _compile(task, variant, folder)
        else:
            row = _measure(task, variant, folder, run, flush)
            if not row.get("fatal"):
                try:
                    torch.cuda.synchronize()
                    if torch.cuda.memory_reserved() > 24 << 30:
                        torch.cuda.empty_cache()
                except Exception as error:  # noqa: BLE001
                    row = {"outcome": "runtime_error", "error": _first_line(error), "fatal": True}
        print(json.dumps(row), file=answers, flush=True)
        if row.get("fatal"):
            break
    shutil.rmtree(folder, ignore_errors=True)
    answers.flush()
    os._exit(0)


# --------------------------------------------------------------------------------------------------- the parent


class Child:
    """A child process that takes indices and answers with rows; it is started anew when it has died."""

    def __init__(self, mode: str, task: str, run: int, log: Path) -> None:
        """Prepares a child for one task; `mode` is ``compile`` or ``measure``."""
        self.command = [
            sys.executable,
            "-m",
            "benchmarks.generators.measure",
            "--child",
            mode,
            "--task",
            task,
            "--runs",
            str(run),
        ]
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.buffer = b""
        self.starts = 0

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        for attempt in range(3):
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            self.buffer = b""
            self.starts += 1
            if self._answer(180) is not None:
                return
            self.stop()
            time.sleep(1 + attempt)
        raise RuntimeError(f"the child process does not start; see {self.log}")

    def _answer(self, timeout: float) -> dict[str, Any] | None:
        """The next row; None if the process has ended or the time is up (`alive` tells which)."""
        assert self.process and self.process.stdout
        deadline = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                self.process.wait()
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def ask(self, index: int, timeout: float) -> dict[str, Any]:
        """Sends one index and returns its row."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process and self.process.stdin
        self.process.stdin.write(f"{index}\n".encode())
        self.process.stdin.flush()
        row = self._answer(timeout)
        if row is None:
            code = self.process.poll()
            self.stop()
            if code is None:
                return {"outcome": "timeout", "error": f"no result within {timeout:g} s"}
            return {"outcome": "runtime_error", "error": f"the process ended with code {code}"}
        if row.pop("fatal", False):
            self.stop()
        return row

    def stop(self) -> None:
        """Ends the process and what it started."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None


def compile_all(name: str, variants: list[Variant], chosen: list[int], workers: int, out: Path) -> None:
    """Compiles the chosen sources side by side."""
    order = {"cuda": 0, "triton": 1}
    todo = sorted(
        (i for i in chosen if variants[i].language in order), key=lambda i: order[variants[i].language]
    )
    position = iter(todo)
    lock = threading.Lock()
    errors: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}

    def work(number: int) -> None:
        child = Child("compile", name, 0, out / f"{name}.compile{number}.log")
        while True:
            with lock:
                index = next(position, None)
            if index is None:
                break
            row = child.ask(index, COMPILE_TIMEOUT_S)
            with lock:
                if row.get("error") and variants[index].language == "cuda" and "outcome" not in row:
                    failed[variants[index].id] = str(row["error"])
                seconds.setdefault(variants[index].language, []).append(row.get("seconds", COMPILE_TIMEOUT_S))
                errors[str(row.get("error"))[:60] if row.get("error") else "compiled"] += 1
        child.stop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(min(workers, len(todo)))]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = out / f"{name}.failed.json"
    if known.exists():
        failed = json.loads(known.read_text()) | failed
    known.write_text(json.dumps(failed))
    means = {language: round(statistics.mean(values), 1) for language, values in seconds.items()}
    print(
        f"{name}: {len(todo)} compiled in {time.monotonic() - begun:.0f} s; mean seconds {means}", flush=True
    )
    print("  ", errors.most_common(4), flush=True)


def gpu_state() -> dict[str, str]:
    """What nvidia-smi says of the device: name, driver and clocks (nothing is changed)."""
    fields = (
        "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
    )
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {}
    return dict(zip(fields.split(","), (part.strip() for part in text.split(",")), strict=True))


def versions() -> dict[str, str]:
    """The versions of what compiles and runs the kernels."""
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which of a task's sources are compiled and measured."""

    sample: int | None
    languages: Sequence[str] | None

    def indices(self, variants: list[Variant]) -> list[int]:
        """The chosen sources, or a sample of them that takes turns between the families and the mistakes."""
        wanted = [
            index
            for index, variant in enumerate(variants)
            if not self.languages or variant.language in self.languages
        ]
        return wanted if self.sample is None else _sample(variants, wanted, self.sample)


def _sample(variants: list[Variant], wanted: list[int], size: int) -> list[int]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index in wanted:
        variant = variants[index]
        choices = variant.choices
        family = choices.get("algorithm") or choices.get("family")
        groups.setdefault((variant.broken, variant.language, family), []).append(index)
    picked: list[int] = []
    generator = random.Random(0)
    for members in groups.values():
        generator.shuffle(members)
    while len(picked) < min(size, len(wanted)):
        for members in groups.values():
            if members and len(picked) < size:
                picked.append(members.pop())
    return sorted(picked)


def finished(path: Path) -> set[str]:
    """The ids of the candidates that a file holds already."""
    if not path.exists():
        return set()
    return {row["id"] for row in map(json.loads, path.read_text().splitlines()) if "id" in row}


def measure(name: str, run: int, out: Path, choice: Choice, deadline: float) -> None:
    """Measures a task's sources one after the other, each once."""
    variants = load_task(name).generate()
    path = out / f"{name}.run{run}.jsonl"
    done = finished(path)
    todo = [index for index in choice.indices(variants) if variants[index].id not in done]
    random.Random(f"{name} {run}").shuffle(todo)
    if not todo:
        return
    known = out / f"{name}.failed.json"
    failed = json.loads(known.read_text()) if known.exists() else {}
    child = Child("measure", name, run, out / f"{name}.run{run}.log")
    outcomes: Counter[str] = Counter()
    begun = time.monotonic()
    with path.open("a") as rows:
        meta = {
            "task": name,
            "run": run,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "method": METHOD,
        }
        print(json.dumps({"meta": meta | versions() | {"gpu": gpu_state()}}), file=rows, flush=True)
        for count, index in enumerate(todo):
            if time.monotonic() > deadline:
                print(f"{name} run {run}: out of time, {len(todo) - count} left", flush=True)
                break
            start = time.monotonic()
            if variants[index].id in failed:  # a build that has failed is not tried again
                answer = {"outcome": "compile_error", "error": failed[variants[index].id]}
            else:
                answer = child.ask(index, CANDIDATE_TIMEOUT_S)
            row = {"id": variants[index].id, **answer}
            row["seconds"] = round(time.monotonic() - start, 2)
            outcomes[row["outcome"]] += 1
            print(json.dumps(row), file=rows, flush=True)
            if count == len(todo) // 2:
                print(json.dumps({"meta": {"half_way": gpu_state()}}), file=rows, flush=True)
    child.stop()
    print(
        f"{name} run {run}: {dict(outcomes)} in {time.monotonic() - begun:.0f} s, {child.starts} processes",
        flush=True,
    )


def main() -> None:
    """Parses the arguments and does what they ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--runs", nargs="*", type=int, default=[1], help="none: compile only")
    parser.add_argument("--sample", type=int, help="measure only so many, of all families")
    parser.add_argument("--languages", nargs="+", help="only sources in these: triton, cuda, pytorch")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no candidate after so long")
    parser.add_argument(
        "--no-compile", action="store_true", help="skip the compilation ahead of the measurements"
    )
    parser.add_argument("--child", choices=["compile", "measure"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ.setdefault("MAX_JOBS", "2")
    if options.child:
        child_main(options.child, options.task[0], options.runs[0])
        return
    deadline = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    choice = Choice(options.sample, options.languages)
    compilations = []
    for name in options.task:
        variants = load_task(name).generate()
        check_distinct(variants)
        done = [finished(options.out / f"{name}.run{run}.jsonl") for run in options.runs]
        chosen = [
            i for i in choice.indices(variants) if not done or not all(variants[i].id in ids for ids in done)
        ]
        if chosen and not options.no_compile:
            work = (name, variants, chosen, options.workers, options.out)
            compilations.append(threading.Thread(target=compile_all, args=work))
    for thread in compilations:
        thread.start()
    for thread in compilations:
        thread.join()
    for name in options.task:
        for run in options.runs:
            measure(name, run, options.out, choice, deadline)


if __name__ == "__main__":
    main()
