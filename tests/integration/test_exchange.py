"""Rows out of a ledger and into it."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import candidate, failed, measured, open_gate, source, surrogate
from sqlalchemy import Engine

from gpu_forecasters_plugin.candidate import Candidate, source_key
from gpu_forecasters_plugin.decision import Outcome, Reason
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError, RowFileError
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.ledger.engine import open_engine
from gpu_forecasters_plugin.ledger.exchange import (
    ImportCount,
    PairRow,
    export_rows,
    import_rows,
    rows_without_reference,
)
from gpu_forecasters_plugin.ledger.row_files import read_rows, write_rows

IDENTITY = RunIdentity("sum", candidate(0).key, "evaluator", "NVIDIA H100", "570.1")
ROW: dict[str, Any] = {
    "task": "sum",
    "language": "triton",
    "hardware": "NVIDIA H100",
    "reference_code": source(0),
    "candidate_code": source(5),
    "outcome": "ok",
    "speedup": 3.0,
}


@pytest.fixture
def other(tmp_path: Path, empty_ledger: Path) -> Engine:
    """A second ledger."""
    path = tmp_path / "other.sqlite3"
    path.write_bytes(empty_ledger.read_bytes())
    return open_engine(path)


def open_run(ledger: Ledger, **more: Any) -> Gate:
    return open_gate(ledger, config=surrogate(budget={"measurements": 20}), identity=IDENTITY, **more)


def measure(gate: Gate, *numbers: int) -> None:
    """Measure these sources; every multiple of three is incorrect, the reference apart."""
    for decision in gate.ask([candidate(number) for number in numbers], measure_all=True):
        number = int(decision.candidate_id.removeprefix("c"))
        wrong = number and number % 3 == 0
        gate.tell(decision.id, failed(Outcome.INCORRECT) if wrong else measured(1.0 + number))


def exported(ledger: Ledger | Engine) -> list[dict[str, Any]]:
    return list(export_rows(open_engine(ledger.target) if isinstance(ledger, Ledger) else ledger))


def pair(**columns: Any) -> PairRow:
    return PairRow.model_validate(ROW | columns)


# -- export ---------------------------------------------------------------------------------------------------------


def test_every_finished_measurement_is_a_row_with_both_sources(ledger: Ledger) -> None:
    gate = open_run(ledger)
    measure(gate, 0, 1, 3)
    rows = {row["candidate_code"]: row for row in exported(ledger)}
    assert set(rows) == {source(0), source(1), source(3)}
    assert {row["reference_code"] for row in rows.values()} == {source(0)}
    fast, wrong = rows[source(1)], rows[source(3)]
    assert list(fast) == list(PairRow.model_fields)
    assert (fast["key"], fast["task"], fast["hardware"]) == (candidate(1).key, "sum", "NVIDIA H100")
    assert (fast["outcome"], fast["speedup"], fast["time_us"], fast["reason"]) == ("ok", 2.0, 50.0, "warm_up")
    assert (wrong["outcome"], wrong["speedup"], wrong["time_us"]) == ("incorrect", None, None)


def test_audit_rows_carry_the_probability_that_they_were_drawn_with(ledger: Ledger) -> None:
    gate = open_run(ledger)
    for decision in gate.ask([candidate(number) for number in range(12)]):
        if decision.measure:
            gate.tell(decision.id, measured(2.0))
    rows = exported(ledger)
    audit = [row for row in rows if row["reason"] == Reason.AUDIT]
    assert audit and all(0 < row["sampling_probability"] < 1 for row in audit)
    assert {row["sampling_probability"] for row in rows if row["reason"] == Reason.TOP_FRACTION} == {None}


def test_what_is_not_finished_is_no_row(ledger: Ledger) -> None:
    gate = open_run(ledger)
    running, partial, _ = gate.ask([candidate(0), candidate(1), candidate(2)], measure_all=True)
    gate.start(running.id)
    gate.tell(partial.id, measured(2.0), provisional=True)
    assert exported(ledger) == []
    gate.settle(partial.id)
    gate.tell(running.id, measured(1.0))
    assert len(exported(ledger)) == 2


def test_rows_whose_reference_was_never_seen_are_counted(ledger: Ledger) -> None:
    measure(open_run(ledger), 1, 2)
    assert exported(ledger) == [] and rows_without_reference(open_engine(ledger.target)) == 2
    measure(open_run(ledger), 0)
    assert len(exported(ledger)) == 3 and rows_without_reference(open_engine(ledger.target)) == 0


def test_rows_of_all_runs_have_names_of_their_own(ledger: Ledger, other: Engine) -> None:
    measure(open_run(ledger), 0, 1)
    measure(open_run(ledger, run_name="second"), 0, 1)
    elsewhere = Ledger(other.url.render_as_string())
    measure(open_run(elsewhere), 0, 1)
    rows = exported(ledger) + exported(other)
    assert len({row["id"] for row in rows}) == len(rows) == 6


# -- import ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_rows_come_back_as_they_went(ledger: Ledger, other: Engine, tmp_path: Path, name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    measure(open_run(ledger), 0, 1, 2, 3)
    rows = exported(ledger)
    assert write_rows(tmp_path / name, rows) == 4
    assert import_rows(other, list(read_rows(tmp_path / name))) == ImportCount(4, 0)
    assert exported(other) == rows


def test_the_same_rows_twice_are_the_same_rows_once(other: Engine) -> None:
    rows = [pair(), pair(speedup=3.5), pair(candidate_code=source(6))]
    assert import_rows(other, rows) == ImportCount(3, 0)
    again = [PairRow.model_validate(row) for row in exported(other)]
    assert import_rows(other, again) == import_rows(other, rows) == ImportCount(0, 3)


def test_different_rows_of_the_same_name_are_both_kept(other: Engine) -> None:
    assert import_rows(other, [pair(id="1"), pair(id="1", speedup=2.0)]) == ImportCount(2, 0)


def test_a_ledgers_own_rows_are_in_it_already(ledger: Ledger) -> None:
    measure(open_run(ledger), 0, 1)
    rows = exported(ledger)
    own = [PairRow.model_validate(row) for row in rows]
    assert import_rows(open_engine(ledger.target), own) == ImportCount(0, 2)
    assert exported(ledger) == rows


def test_the_key_of_a_file_is_not_believed(other: Engine) -> None:
    import_rows(other, [pair(key=candidate(9).key)])
    assert [row["key"] for row in exported(other)] == [source_key(source(5))]


def test_names_that_a_database_refuses_come_back(other: Engine) -> None:
    import_rows(other, [pair(task="a\x00\ud800", hardware="\x00", id="\x00")])
    (row,) = exported(other)
    assert (row["task"], row["hardware"], row["id"]) == ("a\x00\ud800", "\x00", "\x00")


class Watching(ScriptedForecaster):
    """Remembers what it was given to learn from."""

    def __init__(self) -> None:
        super().__init__(lambda query: [1.0] * 8)
        self.seen: list[Any] = []

    def observe(self, observations: Any) -> None:
        self.seen.extend(observations)


@pytest.mark.parametrize("resumed", [False, True], ids=["new_run", "resumed_run"])
def test_imported_rows_never_answer_for_a_run(ledger: Ledger, resumed: bool) -> None:
    """Not even for one of the same task, device, reference and source: the ledger cannot know who measured them."""
    if resumed:
        open_run(ledger)
    rows = [pair(candidate_code=source(n), speedup=9.0, hardware=IDENTITY.device) for n in range(8)]
    import_rows(open_engine(ledger.target), rows)
    forecaster = Watching()
    gate = open_run(ledger, forecaster=forecaster)
    assert gate.resumed is resumed
    assert (gate.best_speedup, gate.remaining(), gate.reference_measurement()) == (None, 20, None)
    decisions = gate.ask([candidate(number) for number in range(8)], measure_all=True)
    assert {decision.reason for decision in decisions} == {Reason.WARM_UP}
    assert all(decision.answer is None and gate.start(decision.id) for decision in decisions)
    assert gate.remaining() == 12 and forecaster.seen == [] and ledger.imported_rows() == 8


# -- files ----------------------------------------------------------------------------------------------------------


def complaint(path: Path) -> str:
    with pytest.raises(RowFileError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert message.startswith(f"{path}") and "\n" not in message
    return message.removeprefix(f"{path}").lstrip(":, ")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"outcome": "slow"}, "outcome: must be 'ok', 'incorrect'"),
        ({"outcome": "incorect", "speedup": None}, "did you mean 'incorrect'?"),
        ({"speedup": None}, "speedup: must be a number, since the outcome is ok"),
        ({"outcome": "timeout"}, "speedup: must be null, since the outcome is timeout"),
        ({"outcome": "timeout", "speedup": None, "time_us": 3.0}, "time_us: must be null"),
        ({"speedup": 0}, "speedup: must be at least 1e-06, got 0"),
        ({"speedup": 1e300}, "speedup: must be at most 1000000"),
        ({"speedup": float("nan")}, "speedup: must be a finite number"),
        ({"speedup": 10**400}, "speedup: must be a"),
        ({"speedup": "3"}, "speedup: must be a number, got '3'; write speedup: 3"),
        ({"task": None}, "task: must be text, got null"),
        ({"candidate_code": "# nothing\n"}, "candidate_code: source is empty"),
        ({"reference_code": "x = '\ud800'"}, "reference_code: source is not valid UTF-8"),
        ({"sampling_probability": 1.5}, "sampling_probability: must be at most 1"),
        ({"sampling_probabilty": 0.5}, "unknown key; did you mean 'sampling_probability'?"),
        ({"id": "\ud800"}, "id: must be text of whole Unicode characters"),
        ({"reason": "luck"}, "reason: must be 'top_fraction'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_row_is_named_by_line_and_column(tmp_path: Path, columns: dict[str, Any], says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW | columns) + "\n")
    message = complaint(path)
    assert message.startswith("line 3: ") and says in message


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({name: value for name, value in ROW.items() if name != "hardware"}))
    assert complaint(path) == "line 1: hardware: is missing"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "line 1: not JSON"),
        (b"[1]", "line 1: expected a JSON object"),
        (b"\xff", "not UTF-8"),
        (gzip.compress(b"{}", mtime=0)[:-4], "damaged gzip file"),
        (None, "cannot be read: No such file"),
    ],
    ids=["not_json", "no_object", "not_utf8", "torn_gzip", "missing"],
)
def test_a_file_of_something_else_is_one_line(tmp_path: Path, data: bytes | None, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    if data is not None:
        path.write_bytes(data)
    assert says in complaint(path)


def test_a_file_of_an_unknown_kind_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in .jsonl, .jsonl.gz or .parquet"):
        write_rows(tmp_path / "rows.csv", [])
    with pytest.raises(ConfigError, match=r"ends in .jsonl, .jsonl.gz or .parquet"):
        list(read_rows(tmp_path / "rows.csv"))


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (lambda p: write_rows(p, []), lambda p: list(read_rows(p))):
        with pytest.raises(MissingExtraError, match=r"pip install 'gpu-forecasters-plugin\[parquet\]'"):
            use(tmp_path / "rows.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    assert complaint(tmp_path / "rows.parquet").startswith("cannot be read: ")


def test_an_export_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    write_rows(path, [{"id": "1"}])
    before = path.read_bytes()

    def torn() -> Iterator[dict[str, Any]]:
        yield {"id": "2"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(path, torn())
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_source_that_is_exported_can_be_imported(ledger: Ledger, other: Engine) -> None:
    odd = [Candidate("one", "\ufeffx = 1\r\n"), Candidate("two", "#include <x>\n__global__ void k() {}\n")]
    gate = open_run(ledger)
    for decision in gate.ask([candidate(0), *odd], measure_all=True):
        gate.tell(decision.id, measured(2.0))
    rows = exported(ledger)
    assert [row["candidate_code"] for row in rows[1:]] == [c.code for c in odd]
    import_rows(other, [PairRow.model_validate(row) for row in rows])
    assert exported(other) == rows
