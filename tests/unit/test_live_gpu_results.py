"""What examples/live_gpu makes of times and of searches, without running either."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "live_gpu"
sys.path.append(str(EXAMPLE))

from comparing.confirming import confirmed_speedups  # noqa: E402
from comparing.results import curves_image, print_summary, reached_at, summarise  # noqa: E402
from comparing.search import Found, Search  # noqa: E402
from measuring import timing  # noqa: E402
from measuring.service import MeasuringService, ask  # noqa: E402
from measuring.workers import MeasuringError  # noqa: E402

from gpu_forecasters_plugin.errors import ConfigError, HostError  # noqa: E402

TASK = EXAMPLE / "tasks" / "nearest_code" / "task.py"


def found(*curve: float) -> Found:
    return Found(curve, {"ok": len(curve)}, 4 * len(curve), "code", 10.0, 60.0)


def test_stopping_early_is_told_seed_by_seed() -> None:
    runs = {
        "baseline": [found(1.0, 1.5, 2.0, 2.0), found(1.0, 1.0, 1.0, 3.0), found(1.0, 1.0, 1.0, 4.0)],
        "surrogate": [found(1.0, 2.5, 2.5, 2.5), found(1.0, 1.0, 3.0, 3.5), found(1.0, 1.0, 1.0, 1.0)],
    }
    confirmed = {arm: [1.0, 2.0, 3.0] for arm in runs}
    summary = summarise(runs, confirmed, task="t", budget=4, about={"gpu": "none"})
    assert summary["stop_early"] == {
        "surrogate": {"reached_at": [2, 3, None], "median": 3, "share_of_budget": 0.75}
    }
    assert summary["fastest_speedup"] == 4.0
    assert summary["arms"]["surrogate"]["confirmed_speedup"] == [1.0, 2.0, 3.0]
    assert summary["comparison"]["surrogate"]["mean_ratio"] == pytest.approx(
        (2.5 / 2 * 3.5 / 3 / 4) ** (1 / 3)
    )
    assert curves_image(runs, summary).startswith(b"\x89PNG")


def test_many_seeds_cut_no_figure_short(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = range(12)
    runs = {
        "baseline": [found(1.0, 1.0, 10.0 + seed) for seed in seeds],
        "surrogate": [found(1.0, 1.0, 1.0) if seed % 2 else found(1.0, 20.0, 40.0) for seed in seeds],
    }
    confirmed = {arm: [10.0 for _ in seeds] for arm in runs}
    print_summary(summarise(runs, confirmed, task="t", budget=3, about={"gpu": "none"}))
    shown = capsys.readouterr().out
    assert "…" not in shown and shown.count("never") >= 6
    assert "surrogate" in shown and "timed again" in shown


def test_a_curve_reaches_a_target_when_it_is_there() -> None:
    assert reached_at([1.0, 2.0, 2.0], 2.0) == 2
    assert reached_at([1.0, 2.0], 2.1) is None


class ScriptedGpu:
    """CUDA events whose host keeps ahead of the GPU only behind idle periods that are long enough."""

    def __init__(self, needed_ms: float) -> None:
        self.needed_ms = needed_ms
        self.leads_ms: list[float] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda: Any = pytest.importorskip("torch").cuda
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None: ...

            def record(self) -> None: ...

            def query(self) -> bool:
                return gpu.leads_ms[-1] < gpu.needed_ms

            def elapsed_time(self, end: Any) -> float:
                return 0.2 if gpu.leads_ms[-1] >= gpu.needed_ms else 5.0

        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "synchronize", lambda: None)
        monkeypatch.setattr(cuda, "_sleep", lambda cycles: self.leads_ms.append(cycles / 1_800_000))


def test_a_time_in_which_the_gpu_waited_for_the_host_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedGpu(needed_ms=3.0)
    gpu.install(monkeypatch)
    timed = timing.time_on_gpu(lambda: ("output",), SimpleNamespace(zero_=lambda: None))
    assert timed.median_us == pytest.approx(200.0) and timed.spread == pytest.approx(0.0)
    assert not timed.host_behind and timed.outputs == ("output",)
    assert max(gpu.leads_ms) >= 3.0


def test_a_kernel_that_itself_waits_counts_as_it_is_and_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ScriptedGpu(needed_ms=1e9)
    gpu.install(monkeypatch)
    timed = timing.time_on_gpu(lambda: (), SimpleNamespace(zero_=lambda: None))
    assert timed.host_behind and timed.median_us == pytest.approx(5000.0)
    counted = timing.REPEATS // timing.BATCH
    assert gpu.leads_ms.count(max(gpu.leads_ms)) == timing._LONGEST_TRIES + counted


class CountedWorkers:
    """Answers at once, counts what it is asked for, and fails where a program says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def measure(self, task: Path, code: str) -> dict[str, Any]:
        self.asked.append(code)
        self.go.wait()
        if "broken" in code:
            raise MeasuringError("no GPU")
        return {"outcome": "ok", "time_us": 5.0}

    def close(self) -> None: ...


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MeasuringService]:
    with MeasuringService(CountedWorkers(), tmp_path / "journal.jsonl") as found:
        yield found


def test_nothing_is_measured_twice_not_even_by_the_next_service(
    service: MeasuringService, tmp_path: Path
) -> None:
    answers = [ask(service.address, TASK, code) for code in ("a = 1\n", "a = 1  # the same\n", "a = 2\n")]
    assert service.workers.asked == ["a = 1\n", "a = 2\n"]
    assert answers == [{"outcome": "ok", "time_us": 5.0}] * 3 and service.answers == 3
    with MeasuringService(CountedWorkers(), tmp_path / "journal.jsonl") as later:
        assert ask(later.address, TASK, "a = 2\n") == answers[0]
        assert later.workers.asked == [] and later.measured == 2


def test_a_journal_that_was_cut_costs_no_other_line(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with MeasuringService(CountedWorkers(), journal) as first:
        answer = first.measure(TASK, "a = 1\n")
    journal.write_bytes(b'\xff\xfe\n{"task": 1}\n' + journal.read_bytes() + b'{"task": "nearest_code", "ke')
    with MeasuringService(CountedWorkers(), journal) as second:
        assert second.measure(TASK, "a = 1\n") == answer and second.workers.asked == []
        second.measure(TASK, "a = 2\n")
    with MeasuringService(CountedWorkers(), journal) as third:
        assert third.measured == 2


def test_nobody_is_told_what_could_not_be_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with MeasuringService(CountedWorkers(), journal) as service:
        journal.mkdir()
        assert "cannot be written" in ask(service.address, TASK, "a = 1\n")["error"]
        journal.rmdir()
        assert ask(service.address, TASK, "a = 1\n")["outcome"] == "ok"


def test_a_search_that_the_machine_failed_has_no_result_and_one_that_ended_meanwhile_has(
    tmp_path: Path,
) -> None:
    search = Search("nearest_code", "baseline", 0, 3, tmp_path)
    ok = {"outcome": "ok", "error": None}
    search._check([ok, {"outcome": "infrastructure", "error": "ended with the run"}])
    with pytest.raises(HostError, match=r"1 of 2 measurements .*no GPU; .*start again"):
        search._check([ok, {"outcome": "infrastructure", "error": "no GPU"}])


def test_a_search_that_was_cut_begins_anew_and_one_that_has_ended_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search("nearest_code", "baseline", 0, 3, tmp_path / "baseline-0")
    (search.folder / "run").mkdir(parents=True)
    (search.folder / "proposals.jsonl").write_text("{}\n")
    begun: list[list[str]] = []
    monkeypatch.setattr(Search, "_execute", lambda self, *_: begun.append(os.listdir(self.folder)))
    monkeypatch.setattr(Search, "_read", lambda self: found(1.0, 2.0))
    for _ in range(2):
        assert search.run("no service", "auto", threading.Event()) == found(1.0, 2.0)
    assert [sorted(names) for names in begun] == [["config.yaml", "surrogate.yaml"]]


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    search = Search("nearest_code", "baseline", 0, 3, tmp_path)
    for content in ("", '{"curve": [1', "[]", "{}"):
        (tmp_path / "search.json").write_text(content)
        with pytest.raises(ConfigError, match=r"search\.json .*remove it"):
            search.found()
    for content in ("[", "{}", "[1]", '[{"code": "a"}]'):
        (tmp_path / "confirmation.json").write_text(content)
        with pytest.raises(ConfigError, match=r"confirmation\.json .*remove it"):
            confirmed_speedups(CountedWorkers(), "nearest_code", {"baseline": [found(1.0)]}, tmp_path)


def test_two_searches_that_ask_at_once_wait_for_one_measurement(service: MeasuringService) -> None:
    service.workers.go.clear()
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(service.measure(TASK, "a = 1\n"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    service.workers.go.set()
    for thread in threads:
        thread.join()
    assert service.workers.asked == ["a = 1\n"] and len(answers) == 2


def test_a_failure_of_the_machine_is_no_result_and_is_tried_again(service: MeasuringService) -> None:
    for _ in range(2):
        assert ask(service.address, TASK, "broken = 1\n") == {"outcome": "infrastructure", "error": "no GPU"}
    assert len(service.workers.asked) == 2 and service.measured == 0
