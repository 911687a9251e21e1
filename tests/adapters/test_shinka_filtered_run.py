"""The filter in real ShinkaEvolve runs, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import shinka.llm.providers.local_openai as local_models
from gpu_forecasters_shinka import filtered, measurer
from gpu_forecasters_shinka.costs import SkippedCosts
from gpu_forecasters_shinka.filtering import FilteredRun
from gpu_forecasters_shinka.host import HostRun
from gpu_forecasters_shinka.jobs import FilteredJob
from gpu_forecasters_shinka.processes import ProcessFamily
from helpers import wait_until
from shinka.database import DatabaseConfig, ProgramDatabase
from shinka.utils import load_programs_to_df
from shinka_runs import EVALUATE, PLAIN, ModelServer, Task, at_once, number_in, surrogate

from gpu_forecasters_plugin.errors import ConfigError, FolderInUseError, HostError, LedgerIdentityError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended may be listed until its parent takes note."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer of the model costs a cent."""
    monkeypatch.setattr(local_models, "_extract_costs", lambda *arguments: (0.004, 0.006))


def total_cost(task: Task) -> float:
    rows = [json.loads(text) for (text,) in task.programs("metadata")]
    return sum(row.get("api_costs") or 0.0 for row in rows)


def skipped_attempts(task: Task) -> list[dict[str, Any]]:
    """What the host has noted of the proposals that were not measured."""
    attempts = task.stored("SELECT status, details FROM attempt_log WHERE stage = 'surrogate'")
    return [json.loads(details) for status, details in attempts if status == "not_measured"]


def test_only_measured_programs_are_stored_and_the_budget_counts_measurements(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    priced(monkeypatch)
    task = Task.write(tmp_path, server)
    run = task.run(budget={"measurements": 7}, pool={"max_wait_s": 60.0})
    measured = [row["number"] for row in task.calls()]
    assert len(measured) == len(set(measured)) == 7
    assert measured[0] == 0
    stored = [(number_in(code), correct) for code, correct in task.programs("code, correct")]
    assert sorted(stored) == sorted((number, 1) for number in measured)
    # Pools of 8 are decided on, and 2 of each measured.
    assert task.ledger("SELECT size FROM pool")[1:4] == [(8,), (8,), (8,)]
    assert len(task.ledger("SELECT * FROM decision")) >= 1 + 3 * 8
    # Every proposal is judged against the program that it was made from.
    (initial, *parents) = [key for (key,) in task.ledger("SELECT parent_key FROM decision ORDER BY id")]
    assert initial is None
    assert set(parents) <= {key for (key,) in task.ledger("SELECT candidate_key FROM measurement")}
    frame = load_programs_to_df(str(task.out / "programs.sqlite"))
    scores = sorted(1.0 + number % 50 for number in measured)
    assert sorted(frame["combined_score"]) == pytest.approx(scores)
    # What its pages ask for.
    pages = ProgramDatabase(DatabaseConfig(db_path=str(task.out / "programs.sqlite")), read_only=True)
    assert {row["correct"] for row in pages.get_programs_summary()} == {True}
    assert len(pages.get_programs_summary()) == 7
    pages.close()
    skipped = skipped_attempts(task)
    # Of those that were skipped last, the host may not have heard when the run ended.
    assert len(skipped) >= 2 * 6 and all(row["note"].startswith("skip: ") for row in skipped)
    # What the forgotten proposals cost is not forgotten: the next stored program bears it, after a resume too.
    assert total_cost(task) > 0.01 * len(stored)
    resumed = SimpleNamespace(total_api_cost=total_cost(task))
    SkippedCosts(task.out / "programs.sqlite").carry_over(resumed)
    assert resumed.total_api_cost == pytest.approx(0.01 * (len(stored) - 1 + len(skipped)))
    assert run.exit_code == 0
    assert json.loads((task.out / "summary.json").read_text())["measurements_used"] == 7
    assert "7 of 7 measurements" in capsys.readouterr().out


def test_one_evaluation_job_keeps_one_of_four(tmp_path: Path, server: ModelServer) -> None:
    task = Task.write(
        tmp_path, server, EVALUATE + "time.sleep(0.2)\nleave(100.0 / (1 + number))\nlog('end')\n"
    )
    run = filtered(
        task.runner(max_evaluation_jobs=1), surrogate(budget={"measurements": 4}, pool={"max_wait_s": 60.0})
    )
    run.runner.run()
    assert len(task.calls()) == 4
    assert at_once(task.calls(), task.calls("end")) == 1
    assert task.ledger("SELECT size FROM pool")[1:4] == [(4,)] * 3


def test_a_pool_of_sixteen_fills_through_four_proposal_jobs(tmp_path: Path, server: ModelServer) -> None:
    task = Task.write(tmp_path, server)
    task.run(measure_jobs=4, proposal_jobs=4, budget={"measurements": 5}, pool={"max_wait_s": 60.0})
    assert task.ledger("SELECT size FROM pool")[1] == (16,)
    assert len(task.calls()) == 5


def test_a_hung_evaluation_is_ended_with_its_grandchildren(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = """
import subprocess
if number:
    pids, seen, hung = (Path(__file__).with_name(name) for name in ("pids", "seen", "hung"))
    # The shell ends once it was seen: the sleeper that it leaves has no parent any more.
    leave_a_sleeper = f"sleep 600 & echo $! > {pids}.part; while [ ! -e {seen} ]; do sleep 0.05; done"
    shell = subprocess.Popen(["sh", "-c", leave_a_sleeper])
    child = subprocess.Popen(["sleep", "600"])
    sleeper = pids.with_name("pids.part")
    while not sleeper.exists() or not sleeper.read_text().endswith("\\n"):
        time.sleep(0.05)
    pids.write_text(f"{sleeper.read_text()} {child.pid} {os.getpid()}")
    shell.wait()
    hung.touch()
    time.sleep(600)
leave(100.0)
"""
    pids, seen, hung = (tmp_path / name for name in ("pids", "seen", "hung"))
    look = ProcessFamily.look

    def noted_look(family: ProcessFamily) -> None:
        all_there = pids.exists()
        look(family)
        if all_there:
            seen.touch()

    monkeypatch.setattr(ProcessFamily, "look", noted_look)
    # An hour passes as soon as the evaluation hangs, on however slow a machine, and none before.
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + 3600.0 * hung.exists())
    monkeypatch.setattr(measurer, "time", clock)
    task = Task.write(tmp_path, server, EVALUATE + hang)
    runner = task.runner()
    runner.job_config.time = "00:30:00"
    run = filtered(runner, surrogate(budget={"measurements": 2}, keep_fraction=1.0), measure_jobs=1)
    runner.run()
    assert sorted(task.outcomes().values()) == ["ok", "timeout"]
    started = [int(word) for word in pids.read_text().split()]
    assert len(started) == 3
    wait_until(lambda: not any(is_running(pid) for pid in started))
    assert run.exit_code == 0
    assert [correct for (correct,) in task.programs("correct")] == [1, 0]


BROKEN = """
modes = {
    1: lambda: sys.exit("out of memory"),
    2: lambda: (leave(50.0), (results / "metrics.json").write_text('{"combined_score": 1.0, "publ')),
    3: lambda: (leave(50.0), (results / "metrics.json").write_text('{"combined_score": NaN, "public": {}}')),
    4: lambda: (leave(50.0), (results / "correct.json").write_text("not json")),
    5: lambda: leave(50.0, correct=False, error="off by one"),
    6: lambda: (leave(50.0), (results / "metrics.json").write_text("[1, 2]")),
}
modes.get(number, lambda: leave(100.0))()
"""


def test_whatever_an_evaluation_leaves_is_an_outcome_and_no_slow_kernel(
    tmp_path: Path, serve: Callable[..., ModelServer]
) -> None:
    def answer(count: int) -> int:
        # Proposals are made side by side: a later one is not to be measured in place of one of the broken ones.
        if count > 6:
            wait_until(lambda: {row["number"] for row in task.calls()} >= set(range(7)))
        return count

    task = Task.write(tmp_path, serve(answer), EVALUATE + BROKEN)
    run = task.run(budget={"measurements": 9}, keep_fraction=1.0, measure_jobs=2)
    assert run.exit_code == 0
    outcomes = task.outcomes()
    assert len(outcomes) == 9
    assert {number: outcomes[number] for number in range(1, 7)} == {
        1: "runtime_error",
        2: "runtime_error",
        3: "implausible",
        4: "runtime_error",
        5: "incorrect",
        6: "runtime_error",
    }
    assert {outcomes[number] for number in outcomes if number not in range(1, 7)} == {"ok"}
    stored = {number_in(code): correct for code, correct in task.programs("code, correct")}
    assert stored == {number: int(outcome == "ok") for number, outcome in outcomes.items()}
    errors = dict(task.ledger("SELECT outcome, error FROM measurement ORDER BY id DESC"))
    assert errors["incorrect"] == "off by one"
    (stderr,) = [text for code, text in task.programs("code, metadata") if number_in(code) == 1]
    assert "out of memory" in stderr


def test_a_cost_limit_that_is_reached_while_a_pool_waits_ends_the_run(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    priced(monkeypatch)
    task = Task.write(tmp_path, server, evo={"max_api_costs": 0.05})
    # The pool of 16 never fills: five proposals are all that the limit allows.
    run = task.run(measure_jobs=4, budget={"measurements": 9}, pool={"max_wait_s": 600.0})
    assert 1 < len(task.calls()) < 5
    assert task.ledger("SELECT count(*) FROM measurement WHERE outcome IS NULL") == [(0,)]
    assert "evo.max_api_costs" in capsys.readouterr().err
    assert run.exit_code == 0


def test_islands_embeddings_novelty_and_meta_prompts_keep_working(
    tmp_path: Path, server: ModelServer
) -> None:
    evo = {
        "embedding_model": server.model("embedder"),
        "novelty_llm_models": [server.model("judge")],
        "code_embed_sim_threshold": 0.1,
        "patch_types": ["full", "cross"],
        "patch_type_probs": [0.6, 0.4],
        "llm_dynamic_selection": "ucb",
    }
    task = Task.write(tmp_path, server, evo=evo, db={"num_islands": 2, "db_path": None})
    task.run(budget={"measurements": 8})
    measured = {row["number"] for row in task.calls()}
    assert len(task.calls()) == 8
    rows = task.programs("code, island_idx, embedding, parent_id")
    assert {number_in(code) for code, *_ in rows} == measured
    assert {island for _, island, *_ in rows} == {0, 1}
    assert all(len(json.loads(embedding)) == 3 for _, _, embedding, _ in rows)
    ids = {name for (name,) in task.programs("id")}
    assert all(parent in ids for *_, parent in rows if parent is not None)
    assert {"embedding", "novelty", "proposal"} <= set(server.asked)


def test_an_evaluation_that_stops_early_is_read_as_ever(tmp_path: Path, server: ModelServer) -> None:
    early = """
import random
from shinka.core.wrap_eval import run_shinka_eval
log("start")
run_shinka_eval(
    options.program_path, options.results_dir, "main", num_runs=40,
    get_experiment_kwargs=lambda index: {"seed": index},
    aggregate_metrics_fn=lambda found: {"combined_score": float(len(found)), "public": {"runs": len(found)}},
    early_stop_method="ci", early_stop_threshold=100.0,
)
"""
    start = EVALUATE.replace('log("start")\n', "")
    task = Task.write(tmp_path, server, start + early)
    code = "def main(seed):\n    return 1.0 + seed % 3 / 10\n"
    (tmp_path / "initial.py").write_text(f"{code}# EVOLVE-BLOCK-START\nNUMBER = 0\n# EVOLVE-BLOCK-END\n")
    task.run(budget={"measurements": 2}, keep_fraction=1.0, measure_jobs=1)
    public = [json.loads(text) for (text,) in task.programs("public_metrics")]
    assert len(public) == 2 and all(row["runs"] < 40 for row in public)
    assert set(task.outcomes().values()) == {"ok"}


def test_two_runs_do_not_share_a_folder(tmp_path: Path, server: ModelServer) -> None:
    task = Task.write(tmp_path, server)
    holder = (
        "import sys; from pathlib import Path; from gpu_forecasters_plugin.folder_lock import hold_folder; "
        f"hold_folder(Path({str(task.out)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(FolderInUseError, match="in use by another run"):
            filtered(task.runner(), surrogate())
        other.communicate("")


def test_a_resume_pays_nothing_twice_and_needs_the_same_evaluation(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced(monkeypatch)
    task = Task.write(tmp_path, server)
    task.run(budget={"measurements": 4})
    ((pools,),) = task.ledger("SELECT count(*) FROM pool")
    noted = 3 + len(skipped_attempts(task))  # each proposal costs a cent
    with pytest.raises(ConfigError, match="budget of this run is spent already"):
        task.run(budget={"measurements": 4})
    # A killed run has begun proposals that nobody has stored.
    (task.out / "gen_900").mkdir()
    run = task.run(budget={"measurements": 7})
    # The host's cost limit knows what was paid before, for skipped proposals too.
    decided = sum(size for (size,) in task.ledger(f"SELECT size FROM pool WHERE number >= {pools}"))
    paid = round(run.runner.total_api_cost / 0.01, 6)
    assert noted > 3 and noted + decided <= paid <= len(server.asked)
    assert not (task.out / "gen_900").exists() and (task.out / "unfinished" / "1" / "gen_900").exists()
    measured = [row["number"] for row in task.calls()]
    assert len(measured) == len(set(measured)) == 7
    assert sorted(number_in(code) for (code,) in task.programs()) == sorted(measured)
    (tmp_path / "evaluate.py").write_text(PLAIN + "# another\n")
    with pytest.raises(LedgerIdentityError, match="evaluator"):
        task.run(budget={"measurements": 9})


def test_repeated_programs_are_answered_and_end_the_run_when_nothing_else_comes(
    tmp_path: Path, serve: Callable[..., ModelServer]
) -> None:
    task = Task.write(tmp_path, serve(lambda count: count % 3))
    run = task.run(budget={"measurements": 9}, oversample=1, keep_fraction=1.0)
    assert sorted(row["number"] for row in task.calls()) == [0, 1, 2]
    assert run.exhausted and run.exit_code == 0


def test_a_job_that_the_host_stores_at_this_moment_is_not_called_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Submitted:
        def __contains__(self, name: str) -> bool:
            lock.busy = False  # the host has stored it, and forgets it, as soon as it was looked at
            return True

    lock = SimpleNamespace(busy=True, locked=lambda: lock.busy)
    runner = SimpleNamespace(submitted_jobs=Submitted(), failed_jobs_for_retry={}, processing_lock=lock)
    host = HostRun(cast(FilteredRun, SimpleNamespace(folder=tmp_path, runner=runner)))
    job = FilteredJob(str(tmp_path / "main.py"), str(tmp_path))
    job.collected = True
    assert not host._is_stored(job) and caplog.text == ""
    assert host._is_stored(job) and "could not store the result" in caplog.text, "nobody works on it any more"


def test_an_initial_program_that_fails_is_said_at_once(tmp_path: Path, server: ModelServer) -> None:
    task = Task.write(tmp_path, server, EVALUATE + "sys.exit('no GPU')\n")
    with pytest.raises(HostError, match="initial program is the reference.*no GPU"):
        task.run()
    assert server.asked == []


def test_a_runner_is_filtered_once(tmp_path: Path, server: ModelServer) -> None:
    runner = Task.write(tmp_path, server).runner()
    run = filtered(runner, surrogate())
    with pytest.raises(ConfigError, match="has the filter already"):
        filtered(runner, surrogate())
    run.close()


def test_another_version_of_the_host_is_named(tmp_path: Path, server: ModelServer) -> None:
    runner = Task.write(tmp_path, server).runner()
    del runner.evaluation_slot_pool
    with pytest.raises(
        HostError, match="has no 'evaluation_slot_pool' in its runner; install shinka-evolve 0.0.7"
    ):
        filtered(runner, surrogate())
