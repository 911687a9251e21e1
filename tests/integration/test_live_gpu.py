"""The example of a live run, on Triton's interpreter in place of a GPU: with real OpenEvolve and real workers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("openevolve")
EXAMPLE = Path(__file__).parents[2] / "examples" / "live_gpu"
sys.path.append(str(EXAMPLE))

from helpers import complete_lines  # noqa: E402
from measuring.workers import MeasuringError, TimeLimits, WarmWorkers  # noqa: E402

from gpu_forecasters_plugin.errors import ConfigError  # noqa: E402
from gpu_forecasters_plugin.ledger.reader import LedgerReader  # noqa: E402

TASK = EXAMPLE / "tasks" / "nearest_code" / "task.py"

RIGHT = """
import torch

def run(x, codes):
    distance, index = torch.cdist(x.float(), codes.float()).square().min(1)
    return index, distance
"""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmWorkers]:
    log = tmp_path_factory.mktemp("workers") / "log"
    # More than any machine needs: what a test cuts off, it says.
    limits = TimeLimits(compile_s=250.0, run_s=250.0)
    found = WarmWorkers("cpu", [TASK], 1, limits=limits, log=log)
    yield found
    found.close()


def outcome(workers: WarmWorkers, code: str) -> str:
    found = workers.measure(TASK, code)
    return f"{found['outcome']}: {found.get('error', '')}"


def test_each_program_gets_what_it_deserves_and_the_next_one_is_measured(workers: WarmWorkers) -> None:
    found = workers.measure(TASK, "print('hello')\n" + RIGHT)
    assert found["outcome"] == "ok" and found["time_us"] > 0 and found["spread"] >= 0 and "device_s" in found
    cases = {
        "def run(x, codes:\n": "compile_error: SyntaxError",
        "import nothing_of_the_kind\n": "compile_error: ModuleNotFoundError",
        RIGHT.replace("min(1)", "max(1)"): "incorrect: Tensor-likes are not close",
        RIGHT.replace("return index, distance", "return index"): "incorrect: 1 outputs instead of 2",
        RIGHT.replace("    return", "    x += 1\n    return"): "incorrect: an input was changed",
        RIGHT.replace("return index", "return index.float()"): "incorrect: the index is torch.float32",
        RIGHT.replace("return", "raise SystemExit('enough')  #"): "runtime_error: SystemExit: enough",
    }
    for code, expected in cases.items():
        assert outcome(workers, code).startswith(expected), code
    assert workers.replaced == 0
    assert outcome(workers, RIGHT) == "ok: "


def test_outputs_that_were_never_written_are_wrong_even_where_the_memory_held_right_ones(
    workers: WarmWorkers,
) -> None:
    once = """
import torch

CALLS = []

def run(x, codes):
    if not CALLS:
        distance, index = torch.cdist(x.float(), codes.float()).square().min(1)
        CALLS.append((index, distance))
    return CALLS[0]
"""
    assert outcome(workers, once).startswith("incorrect")


def test_a_program_that_hangs_or_ends_its_process_costs_that_process_alone(workers: WarmWorkers) -> None:
    before = workers.replaced
    assert outcome(workers, RIGHT.replace("return", "import os; os.abort()  #")).startswith(
        "runtime_error: the process ended"
    )
    assert outcome(workers, RIGHT) == "ok: "
    generous, workers.limits = workers.limits, TimeLimits(compile_s=250.0, run_s=0.3)
    try:
        assert outcome(workers, RIGHT.replace("return", "import time; time.sleep(3600)  #")).startswith(
            "timeout: "
        )
    finally:
        workers.limits = generous
    assert outcome(workers, RIGHT) == "ok: "
    assert workers.replaced == before + 2


def test_where_no_process_can_start_it_is_said_to_everyone_who_asks(tmp_path: Path) -> None:
    broken = tmp_path / "task.py"
    broken.write_text("raise RuntimeError('no such task')\n")
    workers = WarmWorkers("cpu", [broken], 1, limits=TimeLimits(), log=tmp_path / "log")
    try:
        for _ in range(2):
            with pytest.raises(MeasuringError, match=r"could be started \(log: .*log\)"):
                workers.measure(broken, RIGHT)
        assert "no such task" in (tmp_path / "log").read_text()
    finally:
        workers.close()


def test_a_process_that_cannot_even_be_begun_is_said_too(tmp_path: Path) -> None:
    workers = WarmWorkers("cpu", [TASK], 1, limits=TimeLimits(), log=tmp_path / "missing" / "log")
    try:
        with pytest.raises(MeasuringError, match="could be started .*No such file"):
            workers.measure(TASK, RIGHT)
    finally:
        workers.close()


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in complete_lines(path)]


def command(out: Path, *more: str) -> list[str]:
    surrogate = out.parent / "surrogate.yaml"
    surrogate.write_text("surrogate: {forecaster: {kind: learned, static_profile: false}, oversample: 2}\n")
    options = ["--task", "nearest_code", "--seeds", "1", "--budget", "3", "--device", "cpu", "--workers", "1"]
    options += ["--at-once", "1", "--surrogate", str(surrogate), "--out", str(out), *more]
    return [sys.executable, str(EXAMPLE / "run.py"), *options]


def check_comparison(out: Path, said: str) -> None:
    """Both searches have spent their budget on kernels of the journal, each of which is there once."""
    journal = rows(out / "measurements.jsonl")
    assert len({row["key"] for row in journal}) == len(journal)
    assert "surrogate" in said and (out / "nearest_code" / "curves.png").exists()
    summary = json.loads((out / "nearest_code" / "summary.json").read_text())
    used = {arm: numbers["measurements_used"] for arm, numbers in summary["arms"].items()}
    assert used == {"baseline": [3], "surrogate": [3]}
    assert len(summary["arms"]["surrogate"]["confirmed_speedup"]) == 1
    for arm in used:
        ledger = LedgerReader(out / "nearest_code" / "runs" / f"{arm}-0" / "run" / "ledger.sqlite3")
        ledger.follow_run(ledger.runs()[0]["id"])
        measured = {row["candidate_key"] for row in ledger.decisions() if row["outcome"]}
        assert ledger.budget_use().measurements == 3 and measured <= {row["key"] for row in journal}
        ledger.close()


def test_searches_with_and_without_the_filter_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "live"
    done = subprocess.run(command(out), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    check_comparison(out, done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("LONG_TESTS"), reason="starts every search twice: make test-slow")
def test_a_comparison_that_is_cut_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "live"
    begun = subprocess.Popen(command(out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while begun.poll() is None and not rows(out / "measurements.jsonl"):
        time.sleep(0.05)
    begun.send_signal(signal.SIGTERM)
    begun.communicate(timeout=200)
    before = rows(out / "measurements.jsonl")
    assert before

    done = subprocess.run(command(out), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert rows(out / "measurements.jsonl")[: len(before)] == before
    check_comparison(out, done.stdout)


def loaded_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("live_gpu_run", EXAMPLE / "run.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_wrong_use_is_said_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = loaded_script()
    misspelt, empty = tmp_path / "misspelt.yaml", tmp_path / "empty.yaml"
    misspelt.write_text("surrogate: {keep_fractoin: 0.5}\n")
    empty.write_text("{}\n")
    for wrong, said in (
        (["--task", "softmax"], "--task: unknown 'softmax'"),
        (["--task", "nearest_code", "--arms", "oracle"], "--arms: unknown 'oracle'"),
        (["--task", "nearest_code", "--at-once", "0"], "--at-once is at least 1, got 0"),
        (["--task", "nearest_code", "--surrogate", str(misspelt)], "keep_fractoin"),
        (["--task", "nearest_code", "--surrogate", str(empty)], "has no 'surrogate:' section"),
        (["--task", "nearest_code", "--surrogate", str(tmp_path)], "cannot read config"),
    ):
        with pytest.raises(SystemExit) as ended:
            script.main([*wrong, "--out", str(tmp_path / "out")])
        assert ended.value.code == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_searches_on_another_device_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "comparison.json").write_text('{"device": "cuda", "budget": 3}')
    wanted = ["--task", "nearest_code", "--budget", "3", "--device", "cpu", "--out", str(tmp_path)]
    assert loaded_script().main(wanted) == 1
    assert "choose another --out" in capsys.readouterr().err


def test_a_name_that_is_given_twice_counts_once() -> None:
    given = ["--task", "nearest_code,nearest_code", "--arms", "baseline,random,random", "--device", "cpu"]
    options = loaded_script()._options([*given, "--out", "out"])
    assert options.task == ["nearest_code"] and options.arms == ["baseline", "random"]


def test_searches_with_other_settings_are_not_mixed(tmp_path: Path) -> None:
    script = loaded_script()
    section = tmp_path / "section.yaml"
    given = ["--task", "nearest_code", "--device", "cpu", "--out", str(tmp_path / "live")]
    given += ["--at-once", "2", "--surrogate", str(section)]

    def claim(*more: str) -> None:
        script._claim_folder(script._options([*given, *more]))

    section.write_text("surrogate: {oversample: 2}\n")
    claim()
    claim("--seeds", "5", "--arms", "baseline,random")
    with pytest.raises(ConfigError, match="at_once 2, not 3: choose another --out"):
        claim("--at-once", "3")
    section.write_text("surrogate: {oversample: 3}\n")
    with pytest.raises(ConfigError, match="surrogate file .*: choose another --out"):
        claim()
    (tmp_path / "live" / "comparison.json").write_text("")
    with pytest.raises(ConfigError, match=r"comparison\.json cannot be read"):
        claim()


def test_without_a_gpu_it_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        loaded_script().main(["--task", "nearest_code", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2 and "--device cpu" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


AHEAD = """
import importlib.util, sys, torch
sys.path[:0] = [{example!r}]
from gpu_forecasters_plugin.screen.architectures import architecture
from gpu_forecasters_plugin.screen.dry.fake_cuda import FakeDevice
from gpu_forecasters_plugin.screen.dry.fake_triton import DryDriver
from gpu_forecasters_plugin.screen.dry.recorder import Recorder
from triton.runtime import driver
driver.set_active(DryDriver(FakeDevice(architecture("sm_90"), None, Recorder("none"))))
from measuring.compiling import _launches_compile, compile_ahead

spec = importlib.util.spec_from_file_location("program", {program!r})
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
tensors = tuple(torch.zeros(size, dtype=torch.bfloat16) for size in ((4, 64), (4, 64), 64, 64))

def compiled():
    return {{
        name: sum(len(cache[0]) for cache in value.device_caches.values())
        for name, value in vars(program).items()
        if hasattr(value, "device_caches")
    }}

compile_ahead(program, [tensors])
ahead = compiled()
with _launches_compile():
    program.run(*tensors)
print(ahead, compiled() == ahead)
"""


def test_kernels_are_compiled_ahead_just_as_real_tensors_launch_them(tmp_path: Path) -> None:
    program = EXAMPLE / "tasks" / "add_norm_gelu" / "initial_program.py"
    script = AHEAD.format(example=str(EXAMPLE), program=str(program))
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'add': 1, 'statistics': 1, 'normalise': 1, 'gelu': 1} True"
