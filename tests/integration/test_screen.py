"""Screening real kernels with the real compilers, for a GPU that is not there."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import Command

pytest.importorskip("torch")
pytest.importorskip("triton")

from gpu_forecasters_plugin.screen import Fault, Screener, ScreenJob, Status, Verdict  # noqa: E402
from gpu_forecasters_plugin.screen.binaries import binary_tool  # noqa: E402
from gpu_forecasters_plugin.screen.dry.cuda_source import assembler_refused  # noqa: E402
from gpu_forecasters_plugin.screen.workshop import ScreenError, Workshop  # noqa: E402

LONG_S = 250.0
"""For what ends by itself, however slow the machine is."""

needs_nvcc = pytest.mark.skipif(binary_tool("nvcc") is None, reason="there is no nvcc here")

GOOD = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * 2, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    n = x.numel()
    double[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024, num_warps=4)
    return y
"""
TASK = """
import torch

ENTRY_POINT = "run"


def make_inputs():
    return (torch.randn(4096, 4096, device="cuda", dtype=torch.float32),)
"""
EVALUATOR = """
import importlib.util
import torch


def evaluate(program_path):
    try:
        spec = importlib.util.spec_from_file_location("program", program_path)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        x = torch.randn(4096, 4096, device="cuda")
        if not torch.allclose(program.run(x), x * 2):
            return {"combined_score": 0.0}
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        program.run(x)
        end.record()
        torch.cuda.synchronize()
        return {"combined_score": 1.0 / begin.elapsed_time(end)}
    except Exception as error:
        return {"combined_score": 0.0, "error": str(error)}
"""


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    started = Workshop()
    yield started
    started.close()


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture
def evaluator(tmp_path: Path) -> Path:
    path = tmp_path / "evaluator.py"
    path.write_text(EVALUATOR)
    return path


class ByTask:
    """Screens texts by the task file."""

    def __init__(self, workshop: Workshop, task_file: Path) -> None:
        self._workshop = workshop
        self._job = ScreenJob("", "sm_90", task_file=str(task_file), seconds=LONG_S)

    def __call__(self, code: str, **more: object) -> Verdict:
        return self._workshop.screen(replace(self._job, code=code, **more))


@pytest.fixture
def screen(workshop: Workshop, task_file: Path) -> ByTask:
    return ByTask(workshop, task_file)


def test_a_kernel_that_builds_is_valid_and_has_a_profile(screen: ByTask) -> None:
    verdict = screen(GOOD, disassemble=True)
    assert verdict.status is Status.VALID, verdict.message
    assert verdict.profile is not None and verdict.profile.complete
    (launch,) = verdict.profile.launches
    assert (launch.kernel, launch.count, launch.grid, launch.threads) == ("double", 1, (16384, 1, 1), 128)
    assert launch.spill_bytes == 0 and 8 <= launch.registers <= 64
    assert launch.occupancy == 1.0 and launch.waves == pytest.approx(16384 / (16 * 132))
    assert launch.argument_bytes == 2 * 4096 * 4096 * 4
    assert launch.instructions is not None and launch.instructions.global_loads == {"128": 2}
    # 128 MiB at 3,352 GB/s, and a launch.
    assert verdict.profile.roofline_us == pytest.approx(2**27 / 3352e3 + 2.5)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    "line",
    [
        "torch.nn.Linear(4, 4).cuda()(torch.ones(4, 4, device='cuda'))",
        "torch.nn.Linear(4, 4).to('cuda').half()",
        "torch.nn.Sequential(torch.nn.Linear(4, 4)).to(device='cuda')",
        "torch.empty(4, device=0)",
        "torch.empty(4, device=torch.cuda.current_device())",
        "torch.empty(4).to(0)",
        "torch.tensor([1.0, 2.0], device='cuda')",
    ],
)
def test_other_ways_to_reach_the_gpu_are_none_the_worse(screen: ByTask, line: str) -> None:
    verdict = screen(GOOD.replace("def run(x):\n", f"def run(x):\n    {line}\n"))
    assert verdict.status is Status.VALID, verdict.message


def test_what_a_thread_of_the_candidate_does_on_the_gpu_is_not_known(screen: ByTask) -> None:
    threaded = """
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.empty_like(x)))
    thread.start()
    thread.join()
    made[1]
"""
    verdict = screen("import threading\n" + GOOD.replace("def run(x):\n", f"def run(x):\n{threaded}"))
    assert verdict.status is Status.UNDECIDED and "a thread of its own" in verdict.message


@pytest.mark.parametrize(
    ("before", "after", "fault", "line", "says"),
    [
        ("def run(x):", "def run(x)", Fault.SYNTAX, 14, "expected ':'"),
        ("def run(x):", "def launch(x):", Fault.ENTRY_POINT, None, "run"),
        ("def run(x):", "def run(x, out):", Fault.SIGNATURE, 14, "out"),
        ("import torch\n", "import tortch as torch\n", Fault.IMPORT, 2, "tortch"),
        ("import torch\n", "import torch\nfrom torch import emty\n", Fault.IMPORT, 3, "emty"),
        ("torch.empty_like", "torch.emptylike", Fault.RAISES, 15, "emptylike"),
        ("tl.load", "tl.lode", Fault.COMPILE, 10, "lode"),
        ("tl.arange(0, BLOCK)", "tl.arange(0, 3 * BLOCK)", Fault.COMPILE, 9, "power of 2"),
        ("num_warps=4", "num_warps=64", Fault.RESOURCES, 17, "threads"),
        ("(triton.cdiv(n, 1024),)", "(n / 1024,)", Fault.LAUNCH, 17, "integer"),
        ("(triton.cdiv(n, 1024),)", "(1, n)", Fault.LAUNCH, 17, "not within"),
        ("(triton.cdiv(n, 1024),)", "(n << 20,)", Fault.LAUNCH, 17, "32 bits"),
        ("(x, y, n,", "(x, y.cpu(), n,", Fault.LAUNCH, 17, "cpu tensor"),
        ("(x, y, n,", "(x, n,", Fault.RAISES, 17, "missing 1 required"),
    ],
)
def test_a_kernel_that_cannot_run_is_invalid_with_its_line(
    screen: ByTask, before: str, after: str, fault: Fault, line: int | None, says: str
) -> None:
    assert before in GOOD
    verdict = screen(GOOD.replace(before, after))
    assert (verdict.status, verdict.fault, verdict.line) == (Status.INVALID, fault, line), verdict.message
    assert says in verdict.message


@pytest.mark.parametrize("grid", ["(0,)", "(-n,)", "(1 << 16, 1 << 15)"])
def test_a_grid_of_which_triton_launches_nothing_is_no_failure(screen: ByTask, grid: str) -> None:
    verdict = screen(GOOD.replace("(triton.cdiv(n, 1024),)", grid))
    assert (verdict.status, verdict.profile) == (Status.VALID, None), verdict.message


DOT = """
import torch
import triton
import triton.language as tl


@triton.jit
def square(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at[:, None] * 4096 + at[None, :])
    tl.store(y_ptr + at[:, None] * 4096 + at[None, :], tl.dot(x, x + 1))


def run(x):
    y = torch.empty_like(x)
    square[(1,)](x, y, BLOCK=128, num_warps=8)
    return y
"""


def test_shared_memory_is_judged_by_the_architecture(screen: ByTask) -> None:
    fits, too_small = screen(DOT), screen(DOT, arch="sm_86")
    assert fits.status is Status.VALID and fits.profile is not None
    assert 99 * 1024 < fits.profile.launches[0].shared_bytes <= 227 * 1024
    assert (too_small.status, too_small.fault) == (Status.INVALID, Fault.RESOURCES)


TUNED = GOOD.replace(
    "@triton.jit",
    '@triton.autotune([triton.Config({}, num_warps=64), triton.Config({}, num_warps=8)], key=["n"])\n@triton.jit',
).replace(", num_warps=4", "")


def test_a_tuner_takes_the_first_configuration_that_builds(screen: ByTask) -> None:
    verdict = screen(TUNED)
    assert verdict.status is Status.VALID, verdict.message
    assert verdict.profile is not None and verdict.profile.launches[0].threads == 256


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def run(x):\n    if x.sum() > 0:\n        return x\n    return x.nope()\n", "needs data"),
        ("import flash_attn\n\n\ndef run(x):\n    return flash_attn.f(x)\n", "GPU machine may have it"),
        ("def run(x):\n    open('/etc/motd', 'a')\n", "OSError|PermissionError|Read-only"),
        ("import os\n\n\ndef run(x):\n    os._exit(0)\n", "without an answer"),
        ("def run(x):\n    raise SystemExit(0)\n", "SystemExit"),
        ("def run(x):\n    bytearray(1 << 45)\n", "MemoryError"),
        (
            "import threading\n\n\ndef run(x):\n    gate = threading.Event()\n"
            "    for _ in range(100_000):\n        threading.Thread(target=gate.wait, daemon=True).start()\n",
            "new thread|more than",
        ),
        (
            "import torch\n\n\ndef run(x):\n    return torch.cuda.get_device_properties(0).clock_of_the_moon\n",
            "real one may have it",
        ),
        (
            "import triton\n\n\ndef run(x):\n    triton.compiler.compiler.compile = print\n",
            "replaces parts of triton",
        ),
        (
            "import torch\n\n\ndef run(x):\n    return x[torch.cuda.max_memory_allocated() + 9000]\n",
            "after a guess",
        ),
    ],
)
def test_what_nobody_can_tell_is_undecided(screen: ByTask, code: str, why: str) -> None:
    verdict = screen(code)
    assert verdict.status is Status.UNDECIDED and re.search(why, verdict.message), verdict


def test_library_calls_are_counted_with_their_operations(screen: ByTask) -> None:
    verdict = screen("import torch\n\n\ndef run(x):\n    return torch.mm(x, x).relu()\n")
    assert verdict.status is Status.VALID and verdict.profile is not None
    mm, relu = verdict.profile.library
    assert (mm.name, mm.count, mm.flops, mm.bytes) == ("aten.mm", 1, 2 * 4096**3, 2 * 4096**2 * 4)
    assert (relu.name, relu.flops) == ("aten.relu", 0)


CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

__global__ void twice(const float* x, float* y, int n) {
  __shared__ float part[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x % 64] = x[i];
  if (i < n) y[i] = 2.0f * part[threadIdx.x % 64];
}

torch::Tensor twice_of(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "not on a GPU");
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
built = load_inline("built", "torch::Tensor twice_of(torch::Tensor x);", SOURCE, functions=["twice_of"])


def run(x):
    return built.twice_of(x)
'''


@needs_nvcc
def test_device_code_of_an_extension_is_compiled(screen: ByTask) -> None:
    verdict = screen(CUDA)
    assert verdict.status is Status.VALID and "CUDA code" in verdict.stopped, verdict.message
    assert verdict.profile is not None
    (launch,) = verdict.profile.launches
    assert (launch.language, launch.count, launch.static_shared_bytes) == ("cuda", 0, 256)


@needs_nvcc
def test_a_mistake_in_device_code_has_its_line_in_the_program(screen: ByTask) -> None:
    verdict = screen(CUDA.replace("2.0f * part", "2.0f * nothing"))
    assert (verdict.status, verdict.fault, verdict.line) == (Status.INVALID, Fault.COMPILE, 12)
    assert 'identifier "nothing" is undefined' in verdict.message


@needs_nvcc
def test_host_code_beyond_the_stand_ins_is_undecided(screen: ByTask) -> None:
    assert screen(CUDA.replace("x.is_cuda()", "x.is_nested()")).status is Status.UNDECIDED


CUPY = """
import cupy
import torch

CODE = r'''extern "C" __global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}'''
kernel = cupy.RawKernel(CODE, "twice", options=("--std=c++17",))


def run(x):
    y = torch.empty_like(x)
    kernel((65536,), (256,), (x.data_ptr(), y.data_ptr(), cupy.int32(x.numel())))
    return y
"""


@needs_nvcc
def test_kernels_of_cupy_are_compiled_without_cupy(screen: ByTask) -> None:
    if find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    assert screen(CUPY).status is Status.VALID
    bad = screen(CUPY.replace("blockDim.x", "blockDims.x"))
    assert (bad.status, bad.fault, bad.line) == (Status.INVALID, Fault.COMPILE, 6)


def test_an_evaluator_is_run_dry_until_it_needs_data(workshop: Workshop, evaluator: Path) -> None:
    job = ScreenJob(GOOD, "sm_90", evaluator=str(evaluator), seconds=LONG_S)
    good = workshop.screen(job)
    assert good.status is Status.VALID and "allclose" in good.stopped
    # The evaluator catches what its programs raise: it is seen all the same.
    bad = workshop.screen(replace(job, code=GOOD.replace("tl.load", "tl.lode")))
    assert (bad.status, bad.fault, bad.line) == (Status.INVALID, Fault.COMPILE, 10)
    nameless = workshop.screen(replace(job, code=GOOD.replace("def run", "def launch")))
    assert (nameless.status, nameless.fault) == (Status.INVALID, Fault.ENTRY_POINT)


def test_an_evaluator_that_calls_nothing_here_decides_nothing(tmp_path: Path) -> None:
    remote = tmp_path / "remote.py"
    remote.write_text(
        "def evaluate(program_path):\n    return {'combined_score': 0.0, 'error': 'no route to host'}\n"
    )
    screener = Screener(ScreenJob("", "sm_90", evaluator=str(remote), seconds=LONG_S), reference=GOOD)
    try:
        (verdict,) = screener.screen(["def run(x:\n"], LONG_S)
        assert verdict.status is Status.UNDECIDED and screener.problem is not None
        assert "cannot be run dry" in screener.problem
    finally:
        screener.close()


def test_verdicts_are_kept_and_late_ones_are_undecided(task_file: Path, tmp_path: Path) -> None:
    job = ScreenJob("", "sm_90", task_file=str(task_file), seconds=LONG_S)
    first = Screener(job, folder=tmp_path / "kept")
    try:
        with first._workshop._lock:  # nothing can be screened meanwhile
            (late,) = first.screen([GOOD], 0.0)
        assert late.status is Status.UNDECIDED and "deadline" in late.message
        (verdict,) = first.screen([GOOD], LONG_S)
        assert verdict.status is Status.VALID
    finally:
        first.close()
    second = Screener(job, folder=tmp_path / "kept")
    try:
        assert second.screen([GOOD], 0.0) == [verdict]  # nothing had to be started
    finally:
        second.close()


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)", True),
        (
            "`ptxas` failed with error code 255\n`ptxas` stderr:\nptxas k.ptx, line 9; error: syntax error",
            True,
        ),
        ("`ptxas` failed with error code -9", False),
        ("`ptxas` raised SIGSEGV", False),
        ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", False),
        ("ptxas fatal   : Memory allocation failure", False),
    ],
)
def test_an_assembler_that_was_ended_says_nothing_of_the_kernel(said: str, refused: bool) -> None:
    assert assembler_refused(said) is refused


def test_a_screener_that_is_closed_lets_go_of_whoever_waits(task_file: Path) -> None:
    screener = Screener(ScreenJob("", "sm_90", task_file=str(task_file), seconds=600.0), workers=1)
    answers: list[list[Verdict]] = []
    codes = [f"import time\ntime.sleep(500 + {n})\n" for n in range(2)]
    asking = threading.Thread(target=lambda: answers.append(screener.screen(codes, 500.0)))
    screener.start()
    asking.start()
    while not screener._running:
        asking.join(0.01)
    screener.close()
    asking.join(60.0)
    assert not asking.is_alive()
    answers.append(screener.screen(codes, 500.0))
    assert {verdict.status for found in answers for verdict in found} == {Status.UNDECIDED}
    assert screener.problem is None
    with pytest.raises(ScreenError, match="ended"):
        screener.start()


def test_a_job_that_comes_as_the_process_is_ended_is_undecided(
    task_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Workshop()
    monkeypatch.setattr(ended, "start", ended.close)  # somebody closes it when it has just been started
    verdict = ended.screen(ScreenJob(GOOD, "sm_90", task_file=str(task_file)))
    assert verdict.status is Status.UNDECIDED and "was ended" in verdict.message


def test_a_process_that_died_is_started_anew(workshop: Workshop, screen: ByTask) -> None:
    workshop.start()
    assert workshop._process is not None
    workshop._process.kill()
    workshop._process.wait()
    assert screen("def run(x:\n").status is Status.INVALID


def test_the_command_shows_candidates_beside_the_reference(
    gpu_forecasters: Command, evaluator: Path, tmp_path: Path
) -> None:
    reference, candidate = tmp_path / "initial.py", tmp_path / "candidate.py"
    reference.write_text(GOOD)
    candidate.write_text(GOOD.replace("tl.load", "tl.lode\x1b[2J"))
    said = gpu_forecasters(
        *("profile", candidate, "--reference", reference, "--evaluator", evaluator),
        *("--out", tmp_path / "out", "--timeout", str(LONG_S)),
    )
    assert said.code == 0, said.err
    assert "reference initial.py: valid" in said.out and "candidate candidate.py: invalid" in said.out
    assert "\x1b[2J" not in said.out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [kernel["status"] for kernel in summary["kernels"]] == ["valid", "invalid"]
    assert summary["kernels"][0]["profile"]["launches"][0]["instructions"]["global_loads"] == {"128": 2}


def test_doctor_runs_the_initial_program_dry(
    gpu_forecasters: Command, evaluator: Path, tmp_path: Path
) -> None:
    (tmp_path / "initial_program.py").write_text(GOOD)
    config = tmp_path / "config.yaml"
    config.write_text("surrogate: {screen: {policy: skip, arch: sm_90}}\n")
    assert evaluator.parent == tmp_path
    command = ("doctor", "--config", config, "--out", tmp_path, "--deadline", str(LONG_S))
    said = gpu_forecasters(*command)
    assert "the initial program is valid" in said.out and "sm_90" in said.out
    evaluator.write_text("def evaluate(path):\n    return {}\n")
    assert "everything would be undecided" in gpu_forecasters(*command).out
