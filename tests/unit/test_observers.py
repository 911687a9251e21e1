from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import by_number, candidate, failed, measure_all, measured, open_gate, surrogate

from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.errors import ConfigError, OutputError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, Worker
from gpu_forecasters_plugin.observers import (
    DecisionTaken,
    Event,
    ForecastMade,
    MeasurementEnded,
    Observer,
    RunEnded,
    RunStarted,
)
from gpu_forecasters_plugin.observers import observing as observing_module
from gpu_forecasters_plugin.observers.jsonl import JsonLinesObserver
from gpu_forecasters_plugin.observers.observing import observe_run
from gpu_forecasters_plugin.testing.observers import sample_events

WAIT_S = 120.0


@pytest.fixture(autouse=True)
def patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine, a run that ends waits until everything is told."""
    monkeypatch.setattr(observing_module, "CLOSING_S", WAIT_S)


class Recorder(Observer):
    """Remembers what it was told, and lets tests wait for it."""

    def __init__(self, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.closed = threading.Event()
        self._told = threading.Condition()
        self._on_event = on_event

    def notify(self, event: Event) -> None:
        with self._told:
            self.events.append(event)
            self._told.notify_all()
        self._on_event(event)

    def close(self) -> None:
        self.closed.set()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type[Any], count: int) -> None:
        with self._told:
            assert self._told.wait_for(lambda: len(self.of(kind)) >= count, WAIT_S)


def observed(gate: Gate, ledger: Ledger, *observers: Observer, resumed: bool = False) -> Gate:
    """A gate that tells these observers, beside those of its configuration."""
    named = {f"number {index}": observer for index, observer in enumerate(observers)}
    gate._observing = observe_run(named, ledger, resumed=resumed)
    return gate


def test_everything_is_told_in_the_order_of_the_ledger(ledger: Ledger) -> None:
    recorder = Recorder()
    with observed(open_gate(ledger), ledger, recorder) as gate:
        measure_all(gate, gate.ask([candidate(0)]))
        for first in (1, 9):
            measure_all(gate, gate.ask([candidate(first + i) for i in range(8)]), speedup=first / 4)
    assert isinstance(recorder.events[0], RunStarted) and isinstance(recorder.events[-1], RunEnded)
    decisions = recorder.of(DecisionTaken)
    assert [event.decision.id for event in decisions] == [row["id"] for row in ledger.decisions()]
    measurements = recorder.of(MeasurementEnded)
    assert [event.decision_id for event in measurements] == [r.decision_id for r in ledger.results_since(0)]
    assert [event.number for event in measurements] == [1, 2, 3, 4, 5]
    assert [event.best_speedup for event in measurements] == [1.0, 1.0, 1.0, 2.25, 2.25]
    for made, taken in zip(recorder.of(ForecastMade), decisions[1:], strict=True):
        assert recorder.events.index(taken) == recorder.events.index(made) + 1
        assert made.outcome == taken.decision.forecast and made.candidate_id == taken.decision.candidate_id
    for event in measurements:
        (taken,) = [d for d in decisions if d.decision.id == event.decision_id]
        assert recorder.events.index(taken) < recorder.events.index(event)
    assert (recorder.events[-1].measurements, recorder.events[-1].best_speedup) == (5, 2.25)
    assert recorder.closed.is_set()


def test_it_is_told_while_the_run_goes_on(ledger: Ledger) -> None:
    recorder = Recorder()
    with observed(open_gate(ledger), ledger, recorder) as gate:
        decisions = gate.ask([candidate(0)])
        recorder.wait_for(DecisionTaken, 1)
        gate.tell(decisions[0].id, measured(1.0))
        recorder.wait_for(MeasurementEnded, 1)
        assert recorder.of(RunEnded) == []


def test_results_that_other_processes_write_are_told_too(ledger: Ledger, tmp_path: Path) -> None:
    recorder = Recorder()
    with observed(open_gate(ledger), ledger, recorder) as gate:
        (decision,) = gate.ask([candidate(0)])
        other = Ledger(tmp_path / "ledger.sqlite3")
        other.follow_run(ledger.run_id)
        other.charge(decision.id, Worker.current())
        other.record_result(decision.id, measured(1.0))
        recorder.wait_for(MeasurementEnded, 1)


def test_a_provisional_result_is_told_when_it_is_final_and_a_late_one_counts_once(ledger: Ledger) -> None:
    recorder = Recorder()
    with observed(open_gate(ledger), ledger, recorder) as gate:
        staged, overdue = gate.ask([candidate(5), candidate(6)], measure_all=True)
        gate.tell(staged.id, measured(1.0), provisional=True)
        gate.tell(overdue.id, failed(Outcome.TIMEOUT))
        recorder.wait_for(MeasurementEnded, 1)
        gate.tell(staged.id, measured(3.0))
        gate.tell(overdue.id, measured(9.0))
    told = [(e.measurement.outcome, e.number, e.best_speedup) for e in recorder.of(MeasurementEnded)]
    assert told == [(Outcome.TIMEOUT, 1, None), (Outcome.OK, 2, 3.0), (Outcome.LATE, 2, 3.0)]


def test_a_resumed_run_is_known_again_and_goes_on_counting(ledger: Ledger) -> None:
    before, after = Recorder(), Recorder()
    with observed(open_gate(ledger), ledger, before) as gate:
        measure_all(gate, gate.ask([candidate(0), candidate(1)], measure_all=True), speedup=2.0)
    with observed(open_gate(ledger), ledger, after, resumed=True) as gate:
        measure_all(gate, gate.ask([candidate(2)]))
    (first,), (second,) = before.of(RunStarted), after.of(RunStarted)
    assert first.run_key == second.run_key and (first.resumed, second.resumed) == (False, True)
    assert first.identity == gate.identity
    (event,) = after.of(MeasurementEnded)
    assert (event.number, event.best_speedup) == (3, 2.0)


def test_a_slow_observer_delays_neither_the_run_nor_another_observer(ledger: Ledger) -> None:
    stuck, goes_on = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        stuck.set()
        goes_on.wait(WAIT_S)

    slow, quick = Recorder(hang), Recorder()
    with observed(open_gate(ledger), ledger, slow, quick) as gate:
        assert stuck.wait(WAIT_S)
        measure_all(gate, gate.ask([candidate(0), candidate(1)], measure_all=True))
        quick.wait_for(MeasurementEnded, 2)
        assert len(slow.events) == 1
        goes_on.set()
    assert len(slow.events) == len(quick.events) == 6  # late, and nothing is lost


def test_an_observer_that_hangs_does_not_keep_a_run_from_ending(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observing_module, "CLOSING_S", 0.05)
    goes_on = threading.Event()
    recorder = Recorder(lambda event: goes_on.wait(WAIT_S) and None)
    with observed(open_gate(ledger), ledger, recorder) as gate:
        measure_all(gate, gate.ask([candidate(0)]))
    assert "observer number 0 is still busy" in caplog.text
    goes_on.set()
    assert recorder.closed.wait(WAIT_S)


def test_an_observer_that_raises_is_announced_once_and_counted(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("no \x1b[31m luck")

    recorder = Recorder(fail)
    with observed(open_gate(ledger), ledger, recorder) as gate:
        assert measure_all(gate, gate.ask([candidate(0)]))
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert loud == [
        "observer number 0 raised RuntimeError: no \\x1b[31m luck: the run goes on without it "
        "(error 1; later ones at level debug)"
    ]
    assert f"observer number 0 has failed {len(recorder.events)} times" in caplog.text
    assert len(recorder.events) == 4 and recorder.closed.is_set()


# -- JSON Lines -------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_json_lines_hold_every_event_of_a_run(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "new" / "events.jsonl"
    config = surrogate(observers=[{"kind": "jsonl", "path": str(path)}], budget={"measurements": 3})
    with open_gate(ledger, by_number, config=config) as gate:
        measure_all(gate, gate.ask([candidate(0)]))
        measure_all(gate, gate.ask([candidate(number) for number in range(1, 9)]), speedup=2.0)
    rows = lines(path)
    kinds = [row["event"] for row in rows]
    assert kinds[0] == "run_started" and kinds[-1] == "run_ended" and len({row["run"] for row in rows}) == 1
    assert [kinds.count(kind) for kind in ("forecast", "decision", "measurement")] == [8, 9, 3]
    assert (
        rows[0]["identity"]["forecaster"] == "scripted" and rows[0]["config"]["budget"]["measurements"] == 3
    )
    (first, *_) = [row for row in rows if row["event"] == "forecast"]
    assert first["candidate_id"] == "c1" and sum(first["probabilities"]) == pytest.approx(1.0)
    chosen = [row for row in rows if row["event"] == "decision" and row["action"] == "measure"]
    assert {row["reason"] for row in chosen} <= {str(reason) for reason in Reason}
    done = [row for row in rows if row["event"] == "measurement"]
    assert [row["speedup"] for row in done] == [1.0, 2.0, 2.0] and done[-1]["outcome"] == "ok"


def test_json_lines_are_plain_whatever_a_kernel_is_called(tmp_path: Path) -> None:
    observer = JsonLinesObserver(str(tmp_path / "events.jsonl"))
    for event in sample_events():
        observer.notify(event)
    observer.close()
    text = (tmp_path / "events.jsonl").read_text(encoding="ascii")
    assert text.replace("\n", "").isprintable() and len(lines(tmp_path / "events.jsonl")) == len(
        sample_events()
    )


def test_runs_that_share_a_file_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")

    def write() -> None:
        observer = JsonLinesObserver(path)
        for event in sample_events() * 20:
            observer.notify(event)
        observer.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(Path(path))) == 4 * 20 * len(sample_events())


def test_a_file_that_cannot_be_written_stops_before_the_run(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "file").write_text("")
    config = surrogate(observers=[{"kind": "jsonl", "path": str(tmp_path / "file" / "events.jsonl")}])
    with pytest.raises(OutputError, match=r"events.jsonl cannot be written"):
        open_gate(ledger, config=config)
    assert ledger.runs() == []


def test_an_observer_without_its_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^surrogate.observers.0.path: is missing$"):
        surrogate(observers=[{"kind": "jsonl"}])
    with pytest.raises(
        ConfigError, match=r"observers.0.kind: must be 'jsonl' or 'mlflow', got 'json'; did you mean"
    ):
        surrogate(observers=[{"kind": "json", "path": "x"}])
