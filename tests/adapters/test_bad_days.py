"""What can go wrong around a filtered OpenEvolve run, and what must then still be true."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import ended, times, wait_until, write_pool
from misbehaving_server import MisbehavingServer, silence

pytest.importorskip("openevolve")

from openevolve_runs import (
    EVALUATOR,
    HOLDING,
    PLAIN,
    CodeProposer,
    Run,
    Task,
    assert_only_measured_programs,
    fixed,
    run,
    start,
    write_task,
)

from gpu_forecasters_plugin.candidate import Candidate, decode_source, source_key
from gpu_forecasters_plugin.measuring import LONGEST_PAYLOAD
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.recorded.proposer import ProposalGraph, RecordedProposer, serve


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("pool") / "pool.jsonl", blocks=times(16, 64))


@pytest.fixture(scope="module")
def model(pool: Path) -> Iterator[str]:
    """Address of the recorded proposer."""
    with serve(RecordedProposer(ProposalGraph.from_pool(load_pool(pool)), seed=3)) as server:
        yield server.base_url


def write_drop_in(task: Task) -> list[str]:
    """Arguments of ``openevolve-run`` with the drop-in evaluator."""
    drop_in = task.folder / "drop_in.py"
    drop_in.write_text(
        "from gpu_forecasters_openevolve import filtered\n"
        "filtered(globals(), program='initial_program.py', evaluator='evaluator.py', config='config.yaml', out='out')\n"
    )
    return [str(task.program), str(drop_in), "--config", str(task.config), "--output", str(task.out)]


# -- pools ------------------------------------------------------------------------------------------------------


def test_one_worker_oversampled_four_times_does_not_block(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=6, workers=1, surrogate={"oversample": 4})
    done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert len(task.calls()) == task.charges() == 6
    assert len({call["pid"] for call in task.calls()}) == 1


def test_one_worker_behind_the_drop_in_measures_everything_and_says_so(
    tmp_path: Path, pool: Path, model: str
) -> None:
    task = write_task(tmp_path, pool, model, budget=6, workers=1)
    done = Run(write_drop_in(task), tmp_path / "run", "openevolve-run").finish()
    assert done.code == 0, done.stderr[-3000:]
    assert len(task.calls()) == task.charges() == 6
    assert "parallel_evaluations is 1" in done.stderr
    assert task.ledger("select count(*) from decision where reason = 'not_selected'") == [(0,)]


def test_a_pool_that_cannot_fill_is_decided_at_its_deadline(tmp_path: Path, pool: Path) -> None:
    stuck = threading.Event()

    class OneAtATime(RecordedProposer):
        """Answers two requests; all others wait until the test has ended."""

        def propose(self, *arguments: Any, **more: Any) -> tuple[str, str]:
            with self._lock:
                self._asked["all"] += 1
                number = self._asked["all"]
            if number > 2:
                stuck.wait()
            return super().propose(*arguments, **more)

    with serve(OneAtATime(ProposalGraph.from_pool(load_pool(pool)), seed=3)) as server:
        task = write_task(tmp_path, pool, server.base_url, budget=6, surrogate={"pool": {"max_wait_s": 1.0}})
        going = start(task)
        try:
            wait_until(lambda: len(task.calls("end")) >= 2)
            sizes = [size for (size,) in task.ledger("select size from pool order by id")]
        finally:
            stuck.set()
            going.kill()
    assert sizes[-1] <= 2 < 8


def test_fewer_proposals_than_a_pool_needs(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, budget=6, workers=8, surrogate={"pool": {"max_wait_s": 1.0}})
    task.change(max_iterations=3)
    done = Run(write_drop_in(task), tmp_path / "run", "openevolve-run").finish()
    assert done.code == 0, done.stderr[-3000:]
    sizes = [size for (size,) in task.ledger("select size from pool order by id")]
    # The reference, and one of each pool: of a single one where all proposals come before its deadline.
    assert 2 <= task.charges() == len(task.calls()) <= len(sizes)
    assert max(sizes) <= 3
    assert "Maximum iterations reached" in done.stderr


# -- deaths -----------------------------------------------------------------------------------------------------


def test_a_worker_killed_while_it_waits(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(
        tmp_path, pool, model, evaluator=HOLDING, budget=12, surrogate={"pool": {"max_wait_s": 60.0}}
    )
    task.hold.touch()
    going = start(task)
    # A measurement goes on: all others wait for a pool or for its answer.
    wait_until(lambda: task.calls("held"))
    victim = going.workers()[0]
    victim.kill()
    task.hold.unlink()
    done = going.finish()
    assert done.code == 1
    assert "a worker process of OpenEvolve died" in done.stderr
    assert "start the same command again" in done.stderr
    spent = task.charges()
    assert spent == len(task.calls("end")) < 12
    assert task.ledger("select count(*) from measurement where outcome is null") == [(0,)]
    again = run(task)
    assert again.code == 0, again.stderr[-3000:]
    assert task.charges() == len(task.calls()) == 12
    assert_only_measured_programs(task)


def assert_nothing_lost(task: Task, life: list[dict[str, Any]], *, evaluators_live_on: bool) -> None:
    """Every call that ended has its result in the ledger, but for what an evaluator was killed over.

    Args:
        task: the task of the run.
        life: the events of the evaluators' log since the run began.
        evaluators_live_on: whether they were left to end by themselves. Else the call that was the last thing in an
            evaluator's life may be lost: it is logged before its result is written.
    """
    known = {
        key
        for (key,) in task.ledger(
            "select candidate_key from measurement where outcome not in ('infrastructure')"
        )
    }
    last = {event["pid"]: event for event in life}
    over = [event for event in life if event["event"] == "end"]
    sure = [event for event in over if evaluators_live_on or event is not last[event["pid"]]]
    assert {source_key(event["code"]) for event in sure} <= known


@pytest.mark.slow
def test_killed_again_and_again_and_resumed_each_time(tmp_path: Path, pool: Path, model: str) -> None:
    kills = times(4, 20)
    fewer = {"oversample": 2, "keep_fraction": 0.5, "pool": {"max_wait_s": 0.5}}
    # More than there are programs: no life ends by itself.
    task = write_task(tmp_path, pool, model, budget=100_000, surrogate=fewer)
    chance = random.Random(20)
    for life in range(kills):
        before, calls_before = len(task.log()), len(task.calls())
        going = start(task, TOY_SECONDS="0.03")
        # Some die before their first call, most in the middle of a few.
        calls = chance.choice([0, 1, 2, 3, 4, 5])
        wait_until(lambda: len(task.calls()) >= calls_before + calls or not going.alive)  # noqa: B023
        going_on = chance.random() * (0.1 if calls else 1.5)
        time.sleep(going_on)
        assert going.alive, going.text("stderr")[-3000:]
        # Every other time the evaluators live on: what they are measuring must reach the ledger.
        evaluators_die = life % 2 == 0
        spared = going.kill(evaluators=evaluators_die)
        assert going.signal == signal.SIGKILL
        wait_until(lambda: ended(spared))  # noqa: B023
        if (task.out / "ledger.sqlite3").exists() and task.calls():
            assert_nothing_lost(task, task.log()[before:], evaluators_live_on=not evaluators_die)
            assert task.charges() >= len(task.calls())
    spent = task.charges() if task.calls() else 0
    budget = spent + 8
    task.change(surrogate={"budget": {"measurements": budget}})
    done = run(task, TOY_SECONDS="0.03")
    assert done.code == 0, done.stderr[-3000:]
    assert task.charges() == budget
    assert budget - 2 * kills <= len(task.calls()) <= budget
    outcomes = task.ledger("select candidate_key, outcome from measurement")
    assert None not in [outcome for _, outcome in outcomes]
    lost = Counter(key for key, outcome in outcomes if outcome == "infrastructure")
    # Paid again is only what had no result.
    calls_by_key = Counter(source_key(call["code"]) for call in task.calls())
    assert all(count <= 1 + lost[key] for key, count in calls_by_key.items())
    finals = Counter(key for key, outcome in outcomes if outcome != "infrastructure")
    assert max(finals.values()) == 1
    assert sum(lost.values()) <= 2 * kills
    assert_only_measured_programs(task)


def test_an_evaluator_that_outlives_its_run_still_delivers(tmp_path: Path, pool: Path, model: str) -> None:
    task = write_task(tmp_path, pool, model, evaluator=HOLDING, budget=8)
    task.hold.touch()
    going = start(task)
    wait_until(lambda: task.calls("held"))
    spared = going.kill(evaluators=False)
    held = task.calls("held")
    task.hold.unlink()
    wait_until(lambda: ended(spared))
    for call in held:
        assert task.outcomes()[source_key(call["code"])] == "ok"
    assert run(task).code == 0
    for call in held:
        assert [other["code"] for other in task.calls()].count(call["code"]) == 1
    # The kill may have struck another measurement, charged and not yet called.
    lost = task.ledger("select count(*) from measurement where outcome = 'infrastructure'")[0][0]
    assert task.charges() == 8 and 8 - lost <= len(task.calls()) <= 8


def test_ctrl_c_while_the_reference_is_measured_ends_it_and_nobody_else_runs_meanwhile(
    tmp_path: Path, pool: Path
) -> None:
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1")
    going = start(task, TOY_SECONDS="600")
    wait_until(lambda: task.calls("start"))
    evaluators = going.evaluators()
    files = {path: path.stat().st_mtime_ns for path in (task.out / "gpu_forecasters").iterdir()}
    second = Run(task.arguments, tmp_path / "second").finish()
    assert second.code == 1 and f"in use by another run (process {going.pid})" in second.stderr
    assert files == {path: path.stat().st_mtime_ns for path in (task.out / "gpu_forecasters").iterdir()}
    os.kill(going.pid, signal.SIGINT)
    done = going.finish()
    wait_until(lambda: ended(evaluators))
    assert done.code == 130 and done.stderr.splitlines() == [
        "interrupted; what was measured is in the ledger: start the same command again to go on"
    ]
    assert task.ledger("select outcome from measurement") in ([("infrastructure",)], [(None,)])


def is_at_rest(task: Task, going: Run) -> bool:
    """Whether both evaluators are held, and OpenEvolve has dealt with what was skipped.

    It has nothing to log then: its handler of Ctrl-C writes to its log, which Python refuses while that is written to.
    """
    if len(task.calls("held")) < 2:
        return False
    ((skipped,),) = task.ledger("select count(*) from decision where reason = 'not_selected'")
    return bool(going.text("stderr").count("rejected program") >= skipped)


def test_ctrl_c_in_a_run_ends_it_in_good_order_and_says_so_by_its_exit_code(
    tmp_path: Path, pool: Path, model: str
) -> None:
    task = write_task(tmp_path, pool, model, evaluator=HOLDING, budget=12)
    task.hold.touch()
    going = start(task)
    wait_until(lambda: is_at_rest(task, going))
    os.kill(going.pid, signal.SIGINT)
    wait_until(lambda: "Graceful shutdown requested" in going.text("stderr"))
    task.hold.unlink()
    done = going.finish()
    assert done.code == 130 and "measurements are left: start the same command again" in done.stderr
    assert set(task.outcomes().values()) == {"ok"}
    assert run(task).code == 0 and task.charges() == len(task.calls()) == 12


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_of_a_run_gives_up_forecasts_under_way(
    tmp_path: Path, pool: Path, model: str, number: signal.Signals
) -> None:
    with MisbehavingServer(silence) as server:
        forecaster = {
            "kind": "openai_server",
            "base_url": server.base_url,
            "model": "m",
            "deadline_s": 3600.0,
        }
        task = write_task(tmp_path, pool, model, surrogate={"forecaster": forecaster})
        going = start(task)
        wait_until(lambda: server.requests)
        os.kill(going.pid, number)
        done = going.finish()
    assert done.code == 128 + number and "measurements are left: start the same command again" in done.stderr
    assert "forecaster is down" not in done.stderr


def test_when_the_main_process_is_killed_nobody_outlives_it_for_long(
    tmp_path: Path, pool: Path, model: str
) -> None:
    task = write_task(tmp_path, pool, model, evaluator=HOLDING, budget=12)
    task.hold.touch()
    going = start(task)
    wait_until(lambda: task.calls("held"))
    everybody = going.workers() + going.evaluators()
    os.kill(going.pid, signal.SIGKILL)
    task.hold.unlink()
    wait_until(lambda: ended(everybody))
    assert len(everybody) > 2


def test_a_long_path_for_temporary_files_is_no_obstacle(tmp_path: Path, pool: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1", budget=1)
    done = run(task, TMPDIR=str(long))
    assert done.code == 0, done.stderr
    assert task.summary()["measurements_used"] == 1


# -- what evaluators return and do ------------------------------------------------------------------------------

SEED = 'MARK = "seed"\n\n\ndef run(x):\n    return x\n'

ANSWERS: dict[str, tuple[str, str]] = {
    "nan": ("{'combined_score': float('nan')}", "implausible"),
    "inf": ("{'combined_score': float('inf')}", "implausible"),
    "text": ("'fast'", "runtime_error"),
    "none": ("None", "runtime_error"),
    "bool": ("True", "runtime_error"),
    "no_score": ("{'warps': 4.0}", "implausible"),
    "text_score": ("{'combined_score': 'fast'}", "implausible"),
    "bool_score": ("{'combined_score': True}", "implausible"),
    "coroutine": ("late_answer()", "ok"),
    "zero_time": ("{'time_us': 0.0, 'combined_score': 9.0}", "implausible"),
    "tiny_time": ("{'time_s': 1e-12, 'combined_score': 9.0}", "implausible"),
    "nan_error": (
        "{'correct': True, 'max_error': float('nan'), 'time_us': 0.2, 'combined_score': 99.0}",
        "implausible",
    ),
    "huge": ("{'combined_score': 1e12}", "implausible"),
    "wrong": ("{'combined_score': 0.0, 'correct': False}", "incorrect"),
    "raises": ("1 / 0", "runtime_error"),
    "syntax": ("compile('x +', 'k', 'exec')", "compile_error"),
    "system_exit": ("sys.exit(0)", "runtime_error"),
    "exits": ("os._exit(1)", "runtime_error"),
    "segfault": ("os.kill(os.getpid(), 11)", "runtime_error"),
    "array": ("{'time_us': 60.0, 'combined_score': 1.7, 'correct': np.array([1.0])}", "ok"),
    "wordy": (
        "EvaluationResult({'time_us': 70.0, 'combined_score': 1.4}, {'log': 'x' * 20_000_000})",
        "ok",
    ),
    "good": ("{'time_us': 50.0, 'combined_score': 2.0, 'correct': True}", "ok"),
}


def weird_evaluator() -> str:
    cases = "\n".join(
        f"    if mark == {name!r}:\n        return {value}" for name, (value, _) in ANSWERS.items()
    )
    return (
        "import numpy as np\nfrom openevolve.evaluation_result import EvaluationResult\n"
        + EVALUATOR
        + "\n\nasync def late_answer():\n    return {'time_us': 80.0, 'combined_score': 1.25, 'correct': True}\n"
        + "\n\ndef evaluate(program_path):\n    log('start', program_path)\n"
        + "    mark = re.search('MARK = \"(.*)\"', Path(program_path).read_text()).group(1)\n"
        + cases
        + "\n    return {'time_us': 100.0, 'combined_score': 1.0, 'correct': True}\n"
    )


@pytest.fixture(scope="module")
def weird_run(tmp_path_factory: pytest.TempPathFactory, pool: Path) -> Task:
    """One run in which the evaluator does something else for every candidate."""
    folder = tmp_path_factory.mktemp("weird")
    codes = [SEED.replace("seed", name) for name in ANSWERS]
    with serve(CodeProposer(load_pool(pool), fixed(codes))) as server:
        task = write_task(
            folder,
            pool,
            server.base_url,
            evaluator=weird_evaluator(),
            budget=1 + len(codes),
            diff=False,
            workers=2,
            surrogate={"keep_fraction": 1.0},
            checkpoint_interval=1,
            database={"artifacts_base_path": str(folder / "artifacts")},  # else where it is started
        )
        task.program.write_text(SEED)
        done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    return task


@pytest.mark.parametrize("name", ANSWERS)
def test_what_the_evaluator_does_becomes_a_typed_outcome(weird_run: Task, name: str) -> None:
    assert weird_run.outcomes()[source_key(SEED.replace("seed", name))] == ANSWERS[name][1]


def test_a_run_with_a_broken_evaluator_goes_on_to_the_end(weird_run: Task) -> None:
    assert weird_run.charges() == len(weird_run.calls()) == 1 + len(ANSWERS)
    rows = weird_run.ledger("select outcome, time_us, speedup, error from measurement")
    for outcome, time_us, speedup, error in rows:
        assert (outcome == "ok") == (speedup is not None)
        assert (outcome == "ok") == (error is None)
        assert outcome == "ok" or time_us is None
    assert weird_run.summary()["best_speedup"] == 2.0


def test_what_an_evaluator_says_at_length_does_not_swell_the_ledger(weird_run: Task) -> None:
    ((longest,),) = weird_run.ledger("select max(length(payload)) from measurement")
    assert 400_000 < longest <= LONGEST_PAYLOAD


def test_implausible_programs_are_not_in_the_population(weird_run: Task) -> None:
    marks = {program["code"].split('"')[1] for program in weird_run.programs()}
    assert "good" in marks
    assert marks.isdisjoint(name for name, (_, outcome) in ANSWERS.items() if outcome == "implausible")
    assert '"good"' in weird_run.best()["code"]
    assert weird_run.best()["metrics"]["combined_score"] == 2.0


def sleeps(pid: int) -> bool:
    """Whether a process is ``sleep 600``: another one may have got its number since."""
    try:
        return psutil.Process(pid).cmdline() == ["sleep", "600"]
    except psutil.NoSuchProcess:
        return False


def test_a_hanging_evaluator_is_ended_with_all_that_it_started(tmp_path: Path, pool: Path) -> None:
    source = EVALUATOR + (
        "\n\nimport subprocess\n\n\ndef evaluate(program_path):\n    log('start', program_path)\n"
        "    if '\"seed\"' not in Path(program_path).read_text():\n"
        "        child = subprocess.Popen(['sleep', '600'])\n"
        "        log('child', program_path, child=child.pid)\n        child.wait()\n"
        "    return {'combined_score': 1.0}\n"
    )
    with serve(CodeProposer(load_pool(pool), fixed([SEED.replace("seed", "a")]))) as server:
        task = write_task(tmp_path, pool, server.base_url, evaluator=source, budget=1, diff=False)
        task.program.write_text(SEED)
        # The reference has all the time that it takes.
        assert run(task).code == 0
        task.change(evaluator={"timeout": 3}, surrogate={"budget": {"measurements": 2}})
        done = run(task)
    assert done.code == 0, done.stderr[-3000:]
    assert [o for (o,) in task.ledger("select outcome from measurement")] == ["ok", "timeout"]
    (child,) = task.calls("child")
    wait_until(lambda: not sleeps(child["child"]))


# -- candidates -------------------------------------------------------------------------------------------------


def test_the_same_code_again_is_answered_from_the_ledger(tmp_path: Path, pool: Path) -> None:
    base = SEED.replace("seed", "a")
    codes = [
        base,
        base + "# the same\n",
        "\n\n" + base.replace("    return x", "    return x  # as before"),
        base.replace("\n", "\r\n"),
        SEED + "# the reference again\n",
        "",
        "# nothing but a comment\n",
        "def broken(:\n" + base,
        SEED.replace("seed", "b") + f"# {'x' * 1_000_000}\n",
    ]
    source = EVALUATOR + (
        "\n\ndef evaluate(program_path):\n    log('start', program_path)\n"
        "    compile(Path(program_path).read_text(), 'k', 'exec')\n    return {'combined_score': 1.5}\n"
    )
    with serve(CodeProposer(load_pool(pool), fixed(codes))) as server:
        task = write_task(
            tmp_path,
            pool,
            server.base_url,
            evaluator=source,
            budget=20,
            diff=False,
            workers=1,
            surrogate={"keep_fraction": 1.0},
        )
        task.program.write_text(SEED)
        task.change(max_code_length=2_000_000, max_iterations=3 * len(codes))
        done = Run(write_drop_in(task), tmp_path / "run", "openevolve-run").finish()
    assert done.code == 0, done.stderr[-3000:]
    # The seed, the one program, and the one that does not compile.
    assert len(task.calls()) == task.charges() == 3
    assert Counter(task.outcomes().values()) == {"ok": 2, "compile_error": 1}
    reasons = Counter(reason for (reason,) in task.ledger("select reason from decision"))
    assert reasons["duplicate"] > 10
    assert reasons["invalid_source"] > 0
    assert_only_measured_programs(task)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"# only words\n", "empty"),
        (b"x = '\xff'\n", "UTF-8"),
        (b"x = 1\n" * 200_000, "characters"),
        ("x = '\ud800'\n".encode("utf-8", "surrogatepass"), "UTF-8"),
    ],
    ids=["empty", "comments", "invalid_utf8", "one_megabyte", "lone_surrogate"],
)
def test_a_file_that_cannot_be_a_kernel_costs_nothing(data: bytes, problem: str) -> None:
    assert problem in (Candidate("x", decode_source(data)).problem or "")


@pytest.mark.parametrize("data", [b"\xef\xbb\xbfx = 1\n", b"x = 1\r\n", b"\xef\xbb\xbf# hi\r\nx = 1\r\n"])
def test_byte_order_marks_and_line_ends_are_no_difference(data: bytes) -> None:
    assert source_key(decode_source(data)) == source_key("x = 1\n")


# -- configuration ----------------------------------------------------------------------------------------------

WRONG_SECTIONS: dict[str, tuple[Any, str]] = {
    "unknown_key": ({"oversampel": 4}, "did you mean 'oversample'"),
    "unknown_nested_key": ({"deferral": {"treshold": 0.5}}, "did you mean 'threshold'"),
    "wrong_type": ({"oversample": "many"}, "surrogate.oversample"),
    "threshold": ({"deferral": {"threshold": 1.5}}, "surrogate.deferral.threshold"),
    "oversample_zero": ({"oversample": 0}, "surrogate.oversample"),
    "keep_zero": ({"keep_fraction": 0.0}, "surrogate.keep_fraction"),
    "no_section": ("all of it", "surrogate"),
    "ledger_path": ({"ledger": "/proc/nowhere/ledger.sqlite3"}, "/proc/nowhere"),
    "ledger_folder": ({"ledger": "/tmp"}, "folder"),
    "ledger_url": ({"ledger": "mysql://x/y"}, "mysql"),
    "ledger_memory": ({"ledger": "sqlite://"}, "memory"),
}


def assert_refused(task: Task, done: Any, text: str, calls: int = 0) -> None:
    assert done.code in (1, 2)
    assert text in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert len(task.calls()) == calls


@pytest.mark.parametrize("name", WRONG_SECTIONS)
def test_a_wrong_setting_is_one_line_before_anything_runs(tmp_path: Path, pool: Path, name: str) -> None:
    section, text = WRONG_SECTIONS[name]
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1")
    task.change(surrogate=section)
    assert_refused(task, run(task), text)


def test_a_ledger_below_a_file_is_one_line(tmp_path: Path, pool: Path) -> None:
    (tmp_path / "file").touch()
    task = write_task(
        tmp_path, pool, "http://127.0.0.1:1/v1", surrogate={"ledger": str(tmp_path / "file" / "x")}
    )
    assert_refused(task, run(task), "cannot create the ledger")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "config"),
        ("- a\n", "mapping"),
        ("evaluator: {timeout: [}\n", "config"),
        ("database: 5\n", "config"),
    ],
)
def test_a_broken_host_configuration_is_one_line(tmp_path: Path, pool: Path, text: str, said: str) -> None:
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1")
    task.config.write_text(text)
    assert_refused(task, run(task), said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_like_it\n", "nothing_like_it"),
        ("def evaluate(:\n", "SyntaxError"),
        ("def score(path):\n    return 1\n", "does not define"),
        ("import sys\nsys.exit(3)\n", "SystemExit"),
        ("import os\nos._exit(3)\n", "cannot be loaded"),
    ],
    ids=["import", "syntax", "no_evaluate", "exits", "dies"],
)
def test_an_evaluator_that_does_not_load_is_one_line(
    tmp_path: Path, pool: Path, source: str, said: str
) -> None:
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1", evaluator=source)
    assert_refused(task, run(task), said)


@pytest.mark.parametrize(
    "body", ["raise ValueError('no GPU here')", "return {'correct': False, 'error': 'no GPU here'}"]
)
def test_an_initial_program_that_fails_is_one_line(tmp_path: Path, pool: Path, body: str) -> None:
    source = EVALUATOR + f"\n\ndef evaluate(program_path):\n    log('start', program_path)\n    {body}\n"
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1", evaluator=source)
    assert_refused(task, run(task), "no GPU here", calls=1)


@pytest.mark.parametrize("field", ["device", "evaluator_hash", "bin_scheme", "reference_key"])
def test_a_ledger_of_another_run_is_refused(tmp_path: Path, pool: Path, field: str) -> None:
    # The reference alone is enough of a run.
    task = write_task(tmp_path, pool, "http://127.0.0.1:1/v1", budget=1)
    assert run(task).code == 0
    if field == "device":
        task.change(surrogate={"device": "Another GPU"})
    elif field == "evaluator_hash":
        task.evaluator.write_text(PLAIN + "\n# mended\n")
    elif field == "reference_key":
        task.program.write_text(task.program.read_text() + "\nmore = 1\n")
    else:
        with closing(sqlite3.connect(task.out / "ledger.sqlite3")) as connection, connection:
            connection.execute("update run set bin_scheme = 'published_labels'")
    assert_refused(task, run(task), field, calls=1)


# -- disk full --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path, pool: Path, model: str) -> None:
    # More than there are programs: nothing but the disk ends it.
    task = write_task(tmp_path, pool, model, budget=100_000)
    going = start(task, TOY_SECONDS="0.03")
    wait_until(lambda: len(task.calls("end")) >= 4)
    log = task.out / "ledger.sqlite3-wal"
    for process in [psutil.Process(going.pid), *going.evaluators()]:
        # From here on no file of theirs grows beyond what the ledger's log has.
        process.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size, resource_infinity()))
    done = going.finish()
    assert done.code == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ledger ") and "cannot be read or written" in last
    budget = task.charges() + 20
    task.change(surrogate={"budget": {"measurements": budget}})
    again = run(task)
    assert again.code == 0, again.stderr[-3000:]
    assert task.charges() == budget
    assert budget - 2 <= len(task.calls()) <= budget
    assert set(task.ledger("select distinct outcome from measurement")) <= {("ok",), ("infrastructure",)}
    assert max(Counter(call["sha"] for call in task.calls()).values()) <= 2
    assert_only_measured_programs(task)


def resource_infinity() -> int:
    import resource

    return resource.RLIM_INFINITY
