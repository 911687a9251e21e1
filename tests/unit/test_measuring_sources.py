"""How the sources of recorded tasks are measured: what needs no GPU of it."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.generators import ahead, measure, processes, session, timing
from benchmarks.generators.jobs import Job, choose
from benchmarks.generators.plan import plan
from benchmarks.generators.processes import Worker
from benchmarks.generators.rows import RowFile, collect, outcomes, read_rows
from benchmarks.generators.session import Session
from benchmarks.generators.variant import Variant
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.recorded import shipped

ROOT = Path(__file__).resolve().parents[2]


def variant(number: int, language: str = "pytorch", **choices: str) -> Variant:
    key = tuple(sorted({"family": "plain", "number": str(number), **choices}.items()))
    return Variant(key, f"def run(x):\n    return x + {number}\n", language)


def job(count: int, language: str = "pytorch", rows: Any = None) -> Job:
    variants = [variant(number, language) for number in range(count)]
    return Job("toy", variants, list(range(count)), 2, rows or {1: {}, 2: {}})


class FakeAhead:
    """Everything is compiled but what the compiler refuses."""

    failures: tuple[str, ...] = ()

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused = refused

    def next_of(self, task: str, left: list[int]) -> int:
        return left[0]

    def error(self, task: str, index: int) -> None:
        return None

    def broken_build(self, task: str, index: int) -> str | None:
        return "nvcc says no" if index in self.refused else None

    def summary(self) -> str:
        return ""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What workers are asked, in order; the fourth source hangs."""
    indices: list[int] = []

    class FakeWorker:
        starts = 1

        def __init__(self, *arguments: Any, **options: Any) -> None: ...

        def renew(self, setup: str) -> None: ...

        def ask(self, line: str, timeout: float) -> dict[str, Any]:
            indices.append(int(line.split()[1]))
            if indices[-1] == 3:
                return {"outcome": "timeout", "error": "no result", "ended": True}
            return {"outcome": "ok", "shapes": []}

        def stop(self) -> None: ...

    monkeypatch.setattr(session, "Worker", FakeWorker)
    return indices


def session_in(out: Path, ahead: Any, **changed: Any) -> Session:
    return Session(
        **{
            "logs": out,
            "device": "NVIDIA H200",
            "cache": out,
            "ahead": ahead,
            "file": RowFile(out / "rows.jsonl", "h200"),
            "deadline": float("inf"),
            "task_seconds": float("inf"),
            "versions": {},
        }
        | changed
    )


def test_each_source_is_measured_twice_but_what_hung_or_was_refused(tmp_path: Path, asked: list[int]) -> None:
    work = session_in(tmp_path, FakeAhead(refused=(1,)))
    work.jobs.put(job(6))
    work.measure_on(0)
    assert Counter(asked) == {0: 2, 2: 2, 3: 1, 4: 2, 5: 2}
    assert asked[0] == 2  # the seed, without which the rest is worth nothing
    rows = [row for row in read_rows(tmp_path / "rows.jsonl") if "id" in row]
    assert Counter(row["outcome"] for row in rows) == {"ok": 8, "timeout": 2, "compile_error": 2}
    (repeated,) = [row for row in rows if row.get("not_repeated")]
    assert (repeated["outcome"], repeated["run"]) == ("timeout", 2)


class Failing:
    """Fails whatever is asked of it."""

    starts = 0

    def __init__(self, error: Exception) -> None:
        self.error = error

    def fail(self, *arguments: Any, **options: Any) -> Any:
        raise self.error

    ask = add = fail

    def renew(self, setup: str) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`measure.main` on a task of four sources, with results in a folder of its own."""
    monkeypatch.setattr(measure, "Ahead", lambda *arguments: FakeAhead())
    monkeypatch.setattr(measure, "compiler_versions", dict)
    monkeypatch.setattr(measure, "job_of", lambda *arguments: job(4))
    out = tmp_path / "out"
    yield lambda *more: measure.main(
        ["--task", "softmax", "--device", "NVIDIA H200", "--out", str(out), "--gpus", "1", *more]
    )
    release_folder(out)


def test_a_session_without_workers_fails(
    called: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "Worker", lambda *_, **__: Failing(RuntimeError("no worker process starts")))
    with pytest.raises(SystemExit) as ended:
        called()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["toy run 1: no worker process starts"]


def test_a_full_disk_fails_the_session(
    called: Any, asked: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "RowFile", lambda *_: Failing(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as ended:
        called("--gpus", "2")
    assert ended.value.code == 1
    assert "OSError: [Errno 28] No space left on device" in capsys.readouterr().err


def test_a_compiling_process_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ahead, "Worker", lambda *_, **__: Failing(RuntimeError("no worker process starts")))
    compiling = ahead.Ahead([("toy", 0, "triton")], 1, "NVIDIA H200", tmp_path, tmp_path)
    assert compiling.next_of("toy", [0]) == 0
    assert compiling.failures == ["compiling process 0: RuntimeError: no worker process starts"]
    assert compiling.failures[0] in capsys.readouterr().err


def test_a_session_that_measures_all_succeeds(called: Any, asked: list[int]) -> None:
    called("--rows")
    assert Counter(asked) == {0: 2, 1: 2, 2: 2, 3: 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpus", "-1"], "--gpus: -1 is less than 1"),
        (["--gpus", "0"], "--gpus: 0 is less than 1"),
        (["--workers", "-3"], "--workers: -3 is less than 1"),
        (["--sample", "0"], "--sample: 0 is less than 1"),
        (["--languages", "fortran"], "invalid choice: 'fortran'"),
        (["--task", "nope"], "invalid choice: 'nope'"),
        (["--task", "softmax_cuda"], "invalid choice: 'softmax_cuda'"),
        (["--rows", "/nope/rows.jsonl"], "'/nope/rows.jsonl'"),
        (["--out", "/dev/null/out"], "folder /dev/null/out cannot be written"),
        (["--logs", "/dev/null/logs"], "folder /dev/null/logs cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_told(
    called: Any, asked: list[int], capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        called(*arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert asked == []


def test_two_sessions_do_not_write_to_one_folder(
    called: Any, asked: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = f"from pathlib import Path\nfrom {hold_folder.__module__} import hold_folder\n"
    hold += f"hold_folder(Path({str(tmp_path / 'out')!r}))\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(SystemExit) as ended:
            called()
        other.communicate(b"\n")
    assert ended.value.code == 2
    assert f"in use by another run (process {other.pid})" in capsys.readouterr().err
    assert asked == []


def test_a_later_session_measures_only_what_is_missing(tmp_path: Path, asked: list[int]) -> None:
    work = session_in(tmp_path, FakeAhead())
    work.jobs.put(job(4))
    work.measure_on(0)
    asked.clear()
    known = outcomes([tmp_path / "rows.jsonl"], "h200")
    again = job(6, rows={run: known["toy", run] for run in (1, 2)})
    work.jobs.put(again)
    work.measure_on(0)
    assert Counter(asked) == {4: 2, 5: 2}
    assert outcomes([tmp_path / "rows.jsonl"], "h100") == {}


def test_a_session_that_is_over_begins_nothing(tmp_path: Path, asked: list[int]) -> None:
    work = session_in(tmp_path, FakeAhead(), deadline=0.0)
    work.jobs.put(job(4))
    work.measure_on(0)
    short = session_in(tmp_path, FakeAhead(), task_seconds=0.0)
    short.jobs.put(job(4))
    short.measure_on(0)
    assert asked == []


def test_a_line_that_a_kill_cut_short_costs_one_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowFile(path, "h200").add("toy", 1, {"id": "a"})
    with path.open("a") as file:
        file.write('{"task": "toy", "run": 1, "id"')
    RowFile(path, "h200").add("toy", 1, {"id": "b"})
    assert [row["id"] for row in read_rows(path)] == ["a", "b"]


def test_damaged_rows_are_skipped(tmp_path: Path) -> None:
    sound = {"task": "toy", "run": 1, "device": "h200", "id": "a", "outcome": "ok"}
    lines = [
        json.dumps(row).encode()
        for row in (sound, [1], 7, {"id": "b", "device": "h200"}, {**sound, "run": []})
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([b"\xff", b'{"id": "\xff"}', b"[" * 100_000, *lines]))
    assert outcomes([path], "h200") == {("toy", 1): {"a": sound}}
    assert collect([path], tmp_path) == ["toy"]
    assert list(read_rows(tmp_path / "toy.run1.jsonl.gz")) == [{"id": "a", "outcome": "ok"}]


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, list[dict[str, str]]]:
    """A compressed file, and its rows."""
    chance = random.Random(1)
    rows = [{"id": chance.randbytes(20).hex()} for _ in range(5000)]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))
    return path, rows


def test_what_is_left_of_an_archive_that_was_cut_is_read(archive: tuple[Path, list[dict[str, str]]]) -> None:
    path, rows = archive
    path.write_bytes(path.read_bytes()[:-1000])
    read = list(read_rows(path))
    assert len(read) > 4000
    assert read == rows[: len(read)]


@pytest.mark.parametrize("where", [0, -6], ids=["its mark", "its checksum"])
def test_an_archive_with_other_bytes_is_not_believed(
    archive: tuple[Path, list[dict[str, str]]], where: int
) -> None:
    path, _ = archive
    data = bytearray(path.read_bytes())
    data[where] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(gzip.BadGzipFile, match="is damaged"):
        list(read_rows(path))


def test_rows_are_kept_by_task_device_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"pool": {"device": "NVIDIA H100 80GB HBM3"}})
    (tmp_path / "old.jsonl.gz").write_bytes(gzip.compress(header.encode()))
    monkeypatch.setattr(shipped, "_folder", lambda kind: tmp_path)
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for number, path in enumerate(files):
        for task in ("old", "new"):
            RowFile(path, "h200").add(task, 1, {"id": f"{task}{number}"})
    kept = tmp_path / "rows"
    kept.mkdir()
    assert collect([*files, files[0]], kept) == ["new", "old@h200"]
    assert list(read_rows(kept / "old@h200.run1.jsonl.gz")) == [{"id": "old0"}, {"id": "old1"}]
    assert list(read_rows(kept / "new.run1.jsonl.gz")) == [{"id": "new0"}, {"id": "new1"}]


def test_a_sample_takes_turns_between_languages_and_mistakes() -> None:
    variants = [variant(number) for number in range(20)]
    variants += [variant(20, "triton"), variant(21, bug="minus")]
    assert {20, 21} <= set(choose(variants, 4, None))
    assert len(choose(variants, 4, None)) == 4
    assert choose(variants, None, ["triton"]) == [20]


def test_the_plan_counts_what_is_left() -> None:
    rows: dict[int, Any] = {1: {variant(0).id: {}}, 2: {}}
    lines = plan([job(5, rows=rows), job(3)], (1, 2), 14, 1).splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["toy", "9", "0"], ["toy", "6", "0"]]


def batches(ahead_from_ms: float, call_ms: float, seen: list[tuple[int, float]]) -> Any:
    """A GPU that a host is ahead of from a lead on."""

    def batch(call: Any, count: int, flush: Any, lead_ms: float) -> Any:
        seen.append((count, lead_ms))
        return SimpleNamespace(
            times_ms=[call_ms] * count, outputs=(), host_ms=0.1 * count, ahead=lead_ms >= ahead_from_ms
        )

    return batch


@pytest.mark.parametrize(
    ("ahead_from_ms", "hopeless", "behind", "calls"),
    [(0.0, False, False, 37), (5.0, False, False, 57), (1e9, False, True, 97), (1e9, True, True, 37)],
    ids=["at once", "behind a longer period", "never", "never, as at another shape"],
)
def test_a_host_that_never_runs_ahead_is_soon_given_up(
    monkeypatch: pytest.MonkeyPatch, ahead_from_ms: float, hopeless: bool, behind: bool, calls: int
) -> None:
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(timing, "_timed_batch", batches(ahead_from_ms, 0.1, seen))
    found, _ = timing.time_calls(tuple, None, hopeless=hopeless, before=lambda: None)
    assert (found.host_behind, found.repeats) == (behind, timing.REPEATS)
    assert sum(count for count, _ in seen) == calls
    assert max(lead for _, lead in seen) <= timing.MAX_LEAD_MS


@pytest.mark.parametrize(("call_ms", "repeats"), [(1.0, 30), (20.0, 10), (60.0, 5), (500.0, 3)])
def test_slow_calls_are_repeated_less(monkeypatch: pytest.MonkeyPatch, call_ms: float, repeats: int) -> None:
    monkeypatch.setattr(timing, "_timed_batch", batches(0.0, call_ms, []))
    found, _ = timing.time_calls(tuple, None, hopeless=False, before=lambda: None)
    assert found.repeats == repeats
    assert found.median_us == pytest.approx(1000 * call_ms)


WORKER = """
import json, os, sys
print(json.dumps({"loaded": True}), flush=True)
setup = sys.stdin.readline()
print(json.dumps({"ready": True}), flush=True)
for line in iter(sys.stdin.readline, ""):
    if line == "die\\n":
        os._exit(7)
    if line == "killed\\n" or line == "killed once\\n" and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os.kill(os.getpid(), 9)
    if line == "babble\\n":
        print("7", flush=True)
    if line == "hang\\n":
        sys.stdin.readline()
    print(json.dumps({"outcome": "ok", "pid": os.getpid(), "setup": setup, "fatal": line == "poison\\n"}), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "made_up_worker.py").write_text(WORKER)
    monkeypatch.setattr(processes, "WORKER", "made_up_worker")
    made = Worker([str(tmp_path / "killed")], tmp_path / "log", {"PYTHONPATH": str(tmp_path)}, spare=True)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("line", "outcome"),
    [("die", "runtime_error"), ("hang", "timeout"), ("poison", "ok"), ("babble", "runtime_error")],
    ids=str,
)
def test_a_worker_that_is_of_no_more_use_is_replaced(worker: Worker, line: str, outcome: str) -> None:
    first = worker.ask("a", 60.0)["pid"]
    assert worker.ask("b", 60.0)["pid"] == first
    row = worker.ask(line, 1.0 if line == "hang" else 60.0)
    assert (row["outcome"], row["ended"]) == (outcome, True)
    assert worker.ask("c", 60.0)["pid"] != first
    assert worker.starts == 2


@pytest.mark.parametrize(("line", "outcome"), [("killed once", "ok"), ("killed", "runtime_error")])
def test_a_worker_that_was_killed_is_asked_once_more(worker: Worker, line: str, outcome: str) -> None:
    row = worker.ask(line, 60.0)
    assert row["outcome"] == outcome
    assert worker.starts == 2


def test_a_renewed_worker_is_set_up_anew(worker: Worker) -> None:
    before = worker.ask("a", 60.0)
    worker.renew("toy 7")
    after = worker.ask("b", 60.0)
    assert (before["setup"], after["setup"]) == ("go\n", "go toy 7\n")
    assert before["pid"] != after["pid"]


COMPILE = """
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from benchmarks.generators import compiling
from benchmarks.generators.variant import Variant

CODE = '''
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2.0 * tl.load(x + i, mask=i < n), mask=i < n)


def run(x):
    y = torch.empty_like(x[1:])
    double[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](x, y, y.numel())
    return y
'''
# As a build of torch with CUDA does it, where there is no device.
def no_device(*device):
    raise RuntimeError("Found no NVIDIA driver")
from torch._subclasses import fake_tensor
fake_tensor.init_gpu_context = no_device
task = SimpleNamespace(SHAPES=[1024], make_inputs=lambda n, device, seed: torch.empty(n, device=device))
compiling.load_task = lambda name: task
compiler = compiling.Compiler(Path(sys.argv[1]), "NVIDIA H200", "triton")
print(compiler.compile("toy", Variant((), CODE, "triton"))["error"])
print(compiler.compile("toy", Variant((), CODE.replace("2.0 *", "undefined *"), "triton"))["error"])
"""


def test_sources_are_compiled_without_a_gpu(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    sound, broken = found.stdout.splitlines()
    assert sound == "None"
    assert "undefined" in broken
    assert len(list(tmp_path.glob("cache/*/double.cubin"))) == 2  # one for each configuration


def test_a_binary_of_nvrtc_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("torch.cuda._utils")
    from benchmarks.generators.nvrtc_cache import keep_nvrtc_binaries

    built: list[tuple[str, str]] = []

    def build(source: str, name: str, capability: str) -> tuple[bytes, str]:
        built.append((source, capability))
        return source.encode(), name

    for _ in range(2):  # two processes
        monkeypatch.setattr(utils, "_nvrtc_compile", build)
        keep_nvrtc_binaries(tmp_path, "NVIDIA H200")
        assert utils._nvrtc_compile("code", "kernel") == (b"code", "kernel")
        assert utils._nvrtc_compile("other", "kernel") == (b"other", "kernel")
    assert built == [("code", "90"), ("other", "90")]
