"""The SQLite ledger as several processes, full disks and older versions find it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from helpers import candidate, failed, measured, open_gate, source, surrogate

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Action, Decision, Outcome, Reason
from gpu_forecasters_plugin.errors import LedgerError, LedgerWriteError, UnknownDecisionError
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
)
from gpu_forecasters_plugin.ledger import DecisionDraft, Ledger, PoolDraft, RunIdentity, Worker, schema
from gpu_forecasters_plugin.ledger.engine import open_engine, reading
from gpu_forecasters_plugin.ledger.locating import resolve_url
from gpu_forecasters_plugin.ledger.models import metadata
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.ledger.schema import head_revision

DATA = Path(__file__).parent.parent / "data"
IDENTITY = RunIdentity("task", "reference", device="H100")
CHILD_TIMEOUT_S = 240

# One process imports, and each share of the work is then a process of its own.
PRELUDE = """
import json, os, sys
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.errors import LedgerWriteError
from gpu_forecasters_plugin.ledger import Ledger, Worker

def open_run(**options):
    ledger = Ledger(sys.argv[1], **options)
    ledger.follow_run(1)
    return ledger

def each_in_a_process(work, **options):
    children = []
    for ids in json.loads(sys.argv[2]):
        pid = os.fork()
        if pid == 0:
            try:
                work(open_run(**options), ids, Worker.current())
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
"""
WRITE = """
def work(ledger, ids, worker):
    for i in ids:
        assert ledger.charge(i, worker)
        assert ledger.record_result(i, Measurement(Outcome.OK, speedup=1.0 + i, gpu_seconds=0.5))
each_in_a_process(work, durable=False)  # on a slow disk, whoever comes last would wait for too long
"""
COMPETE = """
def work(ledger, ids, worker):
    os.write(1, b"%d\\n" % sum(ledger.charge(i, worker, limit=50) for i in ids))
each_in_a_process(work)
"""
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
ledger, (ids,), worker, written = open_run(), json.loads(sys.argv[2]), Worker.current(), 0
try:
    for i in ids:
        if ledger.charge(i, worker):
            ledger.record_result(i, Measurement(Outcome.INCORRECT, error="e" * 10_000))
            written += 1
except LedgerWriteError as error:
    print("refused")
print(written)
"""
REPORTING = """
ledger, (ids,), worker = open_run(), json.loads(sys.argv[2]), Worker.current()
for i in ids:
    if ledger.charge(i, worker):
        os.write(1, b"c%d\\n" % i)
        ledger.record_result(i, Measurement(Outcome.OK, speedup=1.0 + i))
        os.write(1, b"r%d\\n" % i)
        assert os.read(0, 1)  # one more is allowed
"""
FORKED = """
ledger, ((first, second, third),) = open_run(), json.loads(sys.argv[2])
ledger.charge(first, Worker.current())
pid = os.fork()
if pid == 0:
    if ledger._engine.pool.checkedin():
        os._exit(2)  # its parent's connection is at hand
    ledger.charge(second, Worker.current())
    ledger.record_result(second, Measurement(Outcome.OK, speedup=2.0))
    os._exit(0 if ledger.budget_use().measurements == 2 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert ledger.charge(third, Worker.current())
print(*[charge.decision_id for charge in ledger.open_charges()])
"""


def child(script: str, path: Path, shares: list[list[int]]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + script, str(path), json.dumps(shares)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    output = process.communicate(timeout=CHILD_TIMEOUT_S)[0]
    assert process.returncode == 0
    return output.split()


def decide(ledger: Ledger, count: int, *, first: int = 0) -> list[Decision]:
    """Write a pool of decisions to measure."""
    candidates = [candidate(number) for number in range(first, first + count)]
    drafts = [DecisionDraft(c.id, c.key, Action.MEASURE, Reason.WARM_UP) for c in candidates]
    return ledger.record_pool(PoolDraft(count), drafts, candidates)


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def run(ledger: Ledger) -> Ledger:
    """A ledger in which a run was begun."""
    ledger.begin_run(IDENTITY)
    return ledger


# -- many writers ---------------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_sixteen_processes_write(run: Ledger, path: Path) -> None:
    ids = [decision.id for decision in decide(run, 16 * 40)]
    finish(child(WRITE, path, [ids[share::16] for share in range(16)]))
    results = run.results_since(0)
    assert {result.decision_id: result.measurement.speedup for result in results} == {i: 1.0 + i for i in ids}
    assert [result.revision for result in results] == list(range(1, len(ids) + 1))
    use = run.budget_use()
    assert (use.measurements, use.open, use.gpu_seconds) == (640, 0, 320.0)


def test_competing_processes_never_charge_beyond_the_limit(run: Ledger, path: Path) -> None:
    ids = [decision.id for decision in decide(run, 160)]
    # Every decision is wanted by two processes.
    charged = finish(child(COMPETE, path, [ids[share % 4 :: 4] for share in range(8)]))
    assert sum(map(int, charged)) == len(rows(path, "measurement")) == run.budget_use().measurements == 50
    assert len({row["decision_id"] for row in rows(path, "measurement")}) == 50


def test_threads_share_a_ledger(run: Ledger) -> None:
    ids = [decision.id for decision in decide(run, 40)]

    def work(share: int) -> None:
        for decision_id in ids[share::4]:
            run.charge(decision_id, Worker.current())
            run.record_result(decision_id, measured(2.0))

    threads = [threading.Thread(target=work, args=(share,)) for share in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.results_since(0)) == 40


def test_a_forked_child_uses_a_connection_of_its_own(run: Ledger, path: Path) -> None:
    first, second, third = (decision.id for decision in decide(run, 3))
    assert finish(child(FORKED, path, [[first, second, third]])) == [str(first), str(third)]


# -- what is written, and when --------------------------------------------------------------------------------------


def test_decisions_are_written_before_they_are_handed_out(ledger: Ledger, path: Path) -> None:
    gate = open_gate(ledger)
    decisions = gate.ask([candidate(5), candidate(6)])
    assert [row["id"] for row in rows(path, "decision")] == [decision.id for decision in decisions]
    assert {row["key"] for row in rows(path, "candidate")} == {d.candidate_key for d in decisions}


def test_a_charge_is_written_before_the_evaluator_and_a_result_after(run: Ledger, path: Path) -> None:
    (decision,) = decide(run, 1)
    worker = Worker.current()
    assert run.charge(decision.id, worker)
    (row,) = rows(path, "measurement")
    assert (row["outcome"], row["worker_pid"]) == (None, os.getpid())
    assert [charge.worker for charge in run.open_charges()] == [worker]
    run.record_result(decision.id, measured(2.0))
    assert rows(path, "measurement")[0]["outcome"] == "ok" and run.open_charges() == []


def test_a_result_replaces_a_provisional_one_and_a_final_one_stands(run: Ledger) -> None:
    (decision,) = decide(run, 1)
    run.charge(decision.id, Worker.current())
    assert run.record_result(decision.id, failed(Outcome.INCORRECT, 2.0), provisional=True)
    assert [charge.decision_id for charge in run.open_charges()] == [decision.id]
    assert run.record_result(decision.id, measured(3.0, 5.0))
    assert not run.record_result(decision.id, failed(Outcome.RUNTIME_ERROR))
    (result,) = run.results_since(0)
    assert result.measurement == measured(3.0, 7.0) and not result.provisional


@pytest.mark.parametrize("verdict", [Outcome.TIMEOUT, Outcome.INFRASTRUCTURE])
@pytest.mark.parametrize("provisional", [False, True])
def test_an_answer_after_the_verdict_is_late_and_has_no_time(
    run: Ledger, verdict: Outcome, provisional: bool
) -> None:
    (decision,) = decide(run, 1)
    run.charge(decision.id, Worker.current())
    run.record_result(decision.id, failed(verdict, 3.0))
    assert run.record_result(decision.id, measured(9.0, 5.0), provisional=provisional)
    assert not run.record_result(decision.id, measured(9.0, 5.0))
    (result,) = run.results_since(0)
    late = result.measurement
    assert (late.outcome, late.speedup, late.time_us, late.gpu_seconds) == (Outcome.LATE, None, None, 5.0)
    assert late.error == f"answered ok after it was given up as {verdict}" and result.observation is None


def test_only_charged_decisions_of_this_run_take_results(run: Ledger, path: Path) -> None:
    (decision,) = decide(run, 1)
    with pytest.raises(UnknownDecisionError, match="not charged"):
        run.record_result(decision.id, measured(1.0))
    other = Ledger(path)
    other.begin_run(IDENTITY, name="other")
    with pytest.raises(UnknownDecisionError):
        other.charge(decision.id, Worker.current())


@pytest.mark.parametrize("code", ["x = '\ud800\x00'\n", "ä漢\U0001f600", '\ufffejson:"x"', "\r\n\t"])
def test_sources_come_back_as_they_were(run: Ledger, code: str) -> None:
    odd = Candidate("odd\ud800\x00", code)
    draft = DecisionDraft(odd.id, odd.key, Action.MEASURE, Reason.WARM_UP)
    (decision,) = run.record_pool(PoolDraft(1), [draft], [odd])
    run.charge(decision.id, Worker.current())
    run.record_result(decision.id, measured(1.0))
    observation = run.results_since(0)[0].observation
    assert observation is not None and observation.candidate_code == code


_COST = ForecastCost(1.5, 1000, 900, 20, 15, 0.25)
_GIVEN = Forecast.from_weights([1.0] * 8, source="model", cost=_COST, components={"model": (0.125,) * 8})


@pytest.mark.parametrize(
    "outcome",
    [
        _GIVEN,
        replace(_GIVEN, covered_mass=0.75, suspicions=("talks", "\u200b"), disagrees=True),
        ForecastFailure(FailureKind.TRUNCATED, "length", "model", _COST, ("talks",)),
        None,
    ],
    ids=["plain", "doubted", "failed", "none"],
)
def test_forecasts_come_back_as_they_were(run: Ledger, outcome: ForecastOutcome | None) -> None:
    draft = DecisionDraft("c1", candidate(1).key, Action.SKIP, Reason.NOT_SELECTED, forecast=outcome)
    run.record_pool(PoolDraft(1), [draft], [candidate(1)])
    assert forecast_from_row(run.decisions()[0]) == outcome
    spent = 0.0 if outcome is None else 0.25
    assert run.budget_use(forecasts=True).forecast_gpu_seconds == spent
    assert run.budget_use().forecast_gpu_seconds is None


def test_readers_follow_by_revision(run: Ledger) -> None:
    one, two = (decision.id for decision in decide(run, 2))
    run.charge(one, Worker.current())
    run.charge(two, Worker.current())
    run.record_result(two, measured(2.0))
    assert [(r.revision, r.decision_id) for r in run.results_since(0)] == [(1, two)]
    run.record_result(one, failed(Outcome.INCORRECT), provisional=True)
    run.record_result(one, measured(1.0))
    assert [(r.revision, r.decision_id) for r in run.results_since(1)] == [(3, one)]


def test_no_credential_is_written_or_shown() -> None:
    url = resolve_url("postgresql+psycopg://me:secret@host/db")
    assert "secret" not in url.render_as_string() and url.password == "secret"


def test_a_ledger_stays_where_it_is_when_the_host_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_url("ledger.sqlite3", Path("run")).database == str(tmp_path / "run" / "ledger.sqlite3")


# -- disks that are full or not for writing ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_until_refused(gate: Any, ledger: Ledger) -> int:
    """Ask for pools of long sources until the ledger cannot be written; how many were decided."""
    for number in range(1, 200):
        try:
            gate.ask([Candidate(f"c{number}", source(number) + f"x = '{'y' * 20_000}'\n")])
        except LedgerWriteError as error:
            assert "\n" not in str(error)
            return number - 1
    raise AssertionError("the disk never filled")


def test_a_full_disk_is_a_write_error_and_nothing_is_half_written(
    small_disk: Path, empty_ledger: Path
) -> None:
    path = small_disk / "ledger.sqlite3"
    shutil.copy(empty_ledger, path)
    ledger = Ledger(path)
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 1000}))
    decided = fill_until_refused(gate, ledger)
    assert decided > 0 and ledger.pools() == len(ledger.decisions()) == decided == len(
        rows(path, "candidate")
    )
    assert gate.remaining() == 1000 - decided  # what was not written reserves nothing
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert gate.ask([candidate(5)])[0].measure
    assert ledger.pools() == decided + 1


def test_a_file_that_may_not_grow_is_a_write_error_and_nothing_is_lost(run: Ledger, path: Path) -> None:
    ids = [decision.id for decision in decide(run, 100)]
    refused, written = finish(child(LIMITED, path, [ids]))
    assert refused == "refused" and 0 < int(written) < 100
    assert len(run.results_since(0)) == int(written)
    assert rows(path, "pragma_integrity_check") == [{"integrity_check": "ok"}]


def complaint(target: Path | str) -> str:
    with pytest.raises(LedgerError) as caught:
        Ledger(target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_cannot_be_written_is_named() -> None:
    assert "/proc" in complaint("/proc/gpu-forecasters/ledger.sqlite3")
    assert "/sys" in complaint("/sys/ledger.sqlite3")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "read-only" in complaint(tmp_path / "ledger.sqlite3")


def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert f"{small_disk} is read-only" in complaint(small_disk / "ledger.sqlite3")


def test_a_path_that_is_a_folder_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"ledger {tmp_path} is a folder; give a file"


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in complaint(tmp_path / "file" / "ledger.sqlite3")


def test_a_file_that_is_no_database_is_named_and_left_alone(path: Path) -> None:
    path.write_bytes(b"{'not': 'a database'}" * 100)
    assert f"{path}: file is not a database" in complaint(path)
    assert path.read_bytes() == b"{'not': 'a database'}" * 100


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("mysql://host/db", "'mysql' is not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite+nothing:///x.sqlite3", "driver 'nothing' is not supported: write sqlite:///FILE"),
        ("sqlite+aiosqlite:///x.sqlite3", "driver 'aiosqlite' is not supported: write sqlite:///FILE"),
        (
            "postgresql://host/db",
            "write postgresql+psycopg://..., after: pip install 'gpu-forecasters-plugin[postgres]'",
        ),
        ("postgresql+asyncpg://host/db", "driver 'asyncpg' is not supported"),
        ("sqlite:///x.sqlite3?timeout=soon", "neither host nor options"),
        ("sqlite://host/x.sqlite3", "neither host nor options"),
        ("sqlite:///x%00y", "not a path: it holds a NUL"),
        ("x\0y", "not a path: it holds a NUL"),
        ("x\ud800y", "not a path"),
        ("x\udcffy", "not a path"),
        ("~nobody-of-that-name/x", "not a path"),
        ("sqlite:///~nobody-of-that-name/x", "not a path"),
        ("x" * 5000, "File name too long"),
        ("://x", "not a database URL"),
    ],
)
def test_a_setting_that_names_no_usable_database_is_refused(target: str, says: str) -> None:
    assert says in complaint(target)


@pytest.mark.parametrize(
    "target", ["postgresql+psycopg://me:secret@host:port/db", "postgresql+psycopg://me:secret"]
)
def test_a_url_that_cannot_be_read_does_not_show_its_password(target: str) -> None:
    said = complaint(target)
    assert "'postgresql+psycopg://...' is not a database URL" in said
    assert "secret" not in said


def test_a_name_that_no_database_stores_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"'task \\ud800' is not valid Unicode"):
        ledger.begin_run(RunIdentity("task \ud800", "reference"))


def test_a_path_with_a_urls_signs_in_it_is_found_again(tmp_path: Path) -> None:
    first = Ledger("a?b#c%20d/x.sqlite3", base=tmp_path)
    assert Ledger(first.target).url == first.url
    assert (tmp_path / "a?b#c%20d" / "x.sqlite3").exists()


def test_relative_paths_are_relative_to_the_run(tmp_path: Path) -> None:
    assert Ledger("a/b.sqlite3", base=tmp_path).url.endswith(f"{tmp_path}/a/b.sqlite3")
    assert Ledger("sqlite:///c.sqlite3", base=tmp_path).url.endswith(f"{tmp_path}/c.sqlite3")
    assert (tmp_path / "a" / "b.sqlite3").exists() and (tmp_path / "c.sqlite3").exists()


# -- revisions of the schema ------------------------------------------------------------------------------------------


def test_models_and_migrations_agree(path: Path) -> None:
    with reading(open_engine(path)) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_a_ledger_of_a_newer_version_is_left_alone(path: Path, empty_ledger: Path) -> None:
    shutil.copy(empty_ledger, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "schema '9999'" in complaint(path) and "upgrade gpu-forecasters-plugin" in complaint(path)


@pytest.mark.parametrize("saved", sorted(DATA.glob("ledger_*.sqlite3")), ids=lambda path: path.stem)
def test_a_saved_ledger_of_each_revision_opens_and_keeps_its_rows(path: Path, saved: Path) -> None:
    shutil.copy(saved, path)
    expected = json.loads(saved.with_suffix(".json").read_text())
    gate = open_gate(path.parent, identity=RunIdentity(**expected["identity"]), run_name=expected["run"])
    assert gate.resumed and rows(path, "alembic_version") == [{"version_num": head_revision()}]
    ledger = Ledger(path)
    ledger.follow_run(1)
    found = [
        [d["candidate_id"], d["action"], d["reason"], d["outcome"], d["speedup"]] for d in ledger.decisions()
    ]
    assert found == expected["decisions"]
    assert gate.best_speedup == expected["best_speedup"]
    assert ledger.imported_rows() == expected.get("imported_rows", 0)
    assert len(ledger.verdicts()) == expected.get("screened", 0)
    use = ledger.budget_use(forecasts=True)
    assert (use.gpu_seconds, use.forecast_gpu_seconds) == (
        expected["gpu_seconds"],
        expected.get("forecast_gpu_seconds", 0.0),
    )
    assert gate.ask([candidate(99)])[0].measure


def test_every_revision_has_a_saved_ledger() -> None:
    saved = {path.stem.removeprefix("ledger_") for path in DATA.glob("ledger_*.sqlite3")}
    assert head_revision() in saved


def test_the_revision_with_the_largest_number_is_the_last_of_the_chain() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).with_name("migrations")))
    assert scripts.get_heads() == [head_revision()]


def test_a_ledger_that_needs_no_migration_is_opened_without_loading_the_tool_for_it(
    empty_ledger: Path,
) -> None:
    script = "import sys\nledger = open_run()\nprint(ledger.pools(), 'alembic' in sys.modules)"
    assert finish(child(script, empty_ledger, [])) == ["0", "False"]


# -- sudden death -----------------------------------------------------------------------------------------------------


def test_killed_while_writing_a_ledger_keeps_all_that_it_confirmed(run: Ledger, path: Path) -> None:
    chance = random.Random(0)
    ids = [decision.id for decision in decide(run, 400)]
    confirmed: set[str] = set()
    for _ in range(4):
        process = child(REPORTING, path, [ids])
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("." * 60)  # after so many it waits: however late it is killed, it has not ended
        process.stdin.flush()
        for _ in range(chance.randint(1, 60)):
            confirmed.add(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        confirmed |= {line.strip() for line in process.stdout if line.endswith("\n")}
        process.stdin.close()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
    assert rows(path, "pragma_integrity_check") == [{"integrity_check": "ok"}]
    charged = {row["decision_id"]: row["outcome"] for row in rows(path, "measurement")}
    assert {int(line[1:]) for line in confirmed if line.startswith("c")} <= set(charged)
    assert all(charged[int(line[1:])] == "ok" for line in confirmed if line.startswith("r"))
    still_open = run.open_charges()
    assert len(still_open) <= 4 and not any(charge.worker.may_be_alive() for charge in still_open)


def test_names_of_any_length_fit_their_columns_and_stay_distinct() -> None:
    names = ["model-" * 200, "model-" * 200 + "b"]
    cut = [RunIdentity("task", "key", forecaster=name, model=name) for name in names]
    assert all(len(identity.forecaster) == 200 and len(identity.model) == 400 for identity in cut)
    assert cut[0].forecaster != cut[1].forecaster and cut[0].model != cut[1].model
    assert RunIdentity("task", "key", model="short").model == "short"
