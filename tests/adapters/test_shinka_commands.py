"""``gpu-forecasters shinka`` as users call it: its words, its ends, kills and resumes, clusters."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Command, times, wait_until
from openevolve_runs import Run
from shinka_runs import EVALUATE, PLAIN, ModelServer, Task, number_in

BOUNDED = (
    EVALUATE
    + "def started():\n    return Path(__file__).with_name('calls.jsonl').read_text().count('\"start\"')\n\n\n"
    + "while started() > int(Path(ALLOWED).read_text() or 0):\n    time.sleep(0.02)\n"
    + "time.sleep(0.15)\nleave(100.0 / (1 + number % 50))\nlog('end')\n"
)
"""An evaluation that waits while more have started than the file ``ALLOWED`` says: its run does not end unasked."""

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def write_task(folder: Path, server: ModelServer, evaluate: str = PLAIN, **section: Any) -> Task:
    """A task with a configuration file that holds the ``surrogate:`` section."""
    task = Task.write(folder, server, evaluate)
    evo = {name: value for name, value in task.evo_settings().items() if name != "num_generations"}
    filtering = {"forecaster": {"kind": "climatology"}, "device": "none", "pool": {"max_wait_s": 5.0}}
    document = {"evo": evo, "db": {"num_islands": 1}, "surrogate": filtering | section}
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    return task


def arguments(task: Task, *more: str) -> list[str]:
    plain = [
        "shinka",
        "--task-dir",
        str(task.folder),
        "--out",
        str(task.out),
        "--config-fname",
        "config.yaml",
    ]
    return [*plain, "--measure-jobs", "2", "--proposal-jobs", "4", *more]


def test_a_run_is_quiet_and_keeps_the_hosts_log(tmp_path: Path, server: ModelServer) -> None:
    task = write_task(tmp_path, server, budget={"measurements": 5})
    ended = Run(arguments(task), tmp_path / "run").finish()
    assert ended.code == 0
    assert "surrogate filter: 5 of 5 measurements" in ended.stdout
    assert len(ended.stdout.strip().splitlines()) <= 6
    words = [
        line for line in ended.stderr.splitlines() if not line.startswith("surrogate filter: speed is read")
    ]
    assert words and all("/5 measurements: " in line for line in words)
    assert "Program" in (task.out / "evolution_run.log").read_text()
    # The host's own file is as the user wrote it, without our section.
    assert "surrogate" not in yaml.safe_load((task.out / "gpu_forecasters" / "config.yaml").read_text())


@pytest.mark.slow
def test_kills_lose_nothing_and_pay_nothing_twice(tmp_path: Path, server: ModelServer) -> None:
    kills = times(3, 10)
    budget = 4 * kills + 4
    allowed = tmp_path / "allowed"
    evaluate = f"ALLOWED = {str(allowed)!r}\n{BOUNDED}"
    task = write_task(tmp_path, server, evaluate, budget={"measurements": budget})
    chance = random.Random(1)
    for number in range(kills):
        before = len(task.calls())
        allowed.write_text(str(before + 2))  # and the next two wait: four of the budget at most
        run = Run(arguments(task), tmp_path / f"run{number}")
        wait_until(lambda: len(task.calls()) > before or not run.alive, 120)  # noqa: B023 - called here and now
        time.sleep(chance.random() * 0.3)
        assert run.alive, run.text("stderr")[-3000:]
        run.kill()
        assert run.signal == signal.SIGKILL
    allowed.write_text(str(2 * budget))
    ended = Run(arguments(task), tmp_path / "last").finish(180.0)
    assert ended.code == 0, ended.stderr
    charged = task.ledger("SELECT candidate_key, outcome FROM measurement")
    assert len(charged) == budget and all(outcome is not None for _, outcome in charged)
    ok = [key for key, outcome in charged if outcome == "ok"]
    assert len(ok) == len(set(ok))
    # Every program that the host holds was measured, and the initial one is there once.
    stored = [number_in(code) for (code,) in task.programs()]
    assert set(stored) <= {row["number"] for row in task.calls("end")}
    assert stored.count(0) == 1


def test_ctrl_c_ends_a_run_in_good_order(tmp_path: Path, server: ModelServer) -> None:
    evaluate = EVALUATE + "time.sleep(60 if number else 0)\nleave(100.0)\n"
    task = write_task(tmp_path, server, evaluate, budget={"measurements": 9})
    run = Run(arguments(task), tmp_path / "run")
    wait_until(lambda: len(task.calls()) > 1)
    evaluations = [row["pid"] for row in task.calls()[1:]]
    os.kill(run.pid, signal.SIGINT)
    ended = run.finish()
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
    assert json.loads((task.out / "summary.json").read_text())["outcomes"]["infrastructure"] >= 1
    assert "start the same command again to go on" in ended.stderr
    wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in evaluations))


def test_wrong_use_is_one_clear_line(tmp_path: Path, server: ModelServer, gpu_forecasters: Command) -> None:
    task = write_task(tmp_path, server)
    wrong = write_task(tmp_path / "wrong", server, tresholds=1)
    (tmp_path / "empty").mkdir()
    cases = {
        "unrecognized arguments: --max-jobs 3": arguments(task, "--num_generations", "5", "--max-jobs", "3"),
        "surrogate.tresholds: unknown key": arguments(wrong, "--num_generations", "5"),
        "required: --num_generations": ["shinka", "--task-dir", str(task.folder), "--out", str(task.out)],
        "nothing to run: give --task-dir": ["shinka", "--out", str(task.out)],
        "Missing evaluate.py": [
            "shinka",
            "--task-dir",
            str(tmp_path / "empty"),
            "--out",
            str(task.out),
            "--num_generations",
            "5",
        ],
    }
    cases |= {
        "job.time: must be hh:mm:ss in quotes, got '5 min'": arguments(
            task, "--num_generations", "5", "--set", "job.time=5 min"
        ),
        "Model 'no-such-model' is not supported": arguments(
            task, "--num_generations", "5", "--set", 'evo.llm_models=["no-such-model"]'
        ),
        "initial.py/out cannot be written: Not a directory": [
            *arguments(task, "--num_generations", "5"),
            "--out",
            str(task.folder / "initial.py" / "out"),
        ],
    }
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "programs.sqlite").write_bytes(b"no database, " * 500)
    cases["programs.sqlite cannot be read: file is not a database; move it away"] = [
        *arguments(task, "--num_generations", "5"),
        "--out",
        str(broken),
    ]
    for words, given in cases.items():
        said = gpu_forecasters(*given)
        assert said.code == (1 if "cannot be" in words else 2), given
        assert words in said.err and len(said.err.strip().splitlines()) == 1, said.err


def test_overrides_that_hydra_does_not_understand_are_wrong_use(gpu_forecasters: Command) -> None:
    said = gpu_forecasters("shinka", "foo=bar")
    assert said.code == 2
    assert "Could not override 'foo'" in said.err


def test_hydra_overrides_run_what_shinka_launch_runs(tmp_path: Path, server: ModelServer) -> None:
    task = Task.write(tmp_path, server)
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(
            {
                "verbose": False,
                "output_dir": "???",
                "max_evaluation_jobs": 2,
                "hydra": {"run": {"dir": "${output_dir}"}},
                "evo_config": {
                    "_target_": "shinka.core.EvolutionConfig",
                    "results_dir": "${output_dir}",
                    "init_program_path": str(tmp_path / "initial.py"),
                    **task.evo_settings(),
                },
                "db_config": {"_target_": "shinka.database.DatabaseConfig", "num_islands": 1},
                "job_config": {
                    "_target_": "shinka.launch.LocalJobConfig",
                    "eval_program_path": str(tmp_path / "evaluate.py"),
                },
                "surrogate": {"forecaster": {"kind": "climatology"}, "pool": {"max_wait_s": 5.0}},
            }
        )
    )
    given = ["shinka", "--config-path", str(tmp_path), "evo_config.num_generations=4", "--out", str(task.out)]
    ended = Run(given, tmp_path / "run").finish()
    assert ended.code == 0, ended.stderr
    assert "surrogate filter: 4 of 4 measurements" in ended.stdout
    assert len(task.calls()) == 4


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("LONG_TESTS"), reason="a whole search of 16 measurements: make test-slow"
)
def test_the_example_script_runs(tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "shinka_script", folder)
    environment = os.environ | {"PYTHON": sys.executable, "PORT": "0"}  # any free one
    command = [folder / "run.sh", "out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "surrogate filter: 16 of 16 measurements" in done.stdout
