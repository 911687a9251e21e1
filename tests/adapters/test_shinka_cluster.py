"""Evaluations as jobs of a Slurm cluster: its programs are played, its jobs are processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpu_forecasters_shinka import cluster
from helpers import wait_until
from shinka.launch import SlurmCondaJobConfig
from shinka_runs import EVALUATE, PLAIN, ModelServer, Task, number_in

from gpu_forecasters_plugin.decision import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

PROGRAMS = {
    "sbatch": """
number=$(date +%s%N)
out=$(sed -n 's/^#SBATCH --output=//p' "$1")
err=$(sed -n 's/^#SBATCH --error=//p' "$1")
module() { :; }
export -f module
echo "$SBATCH_JOB_NAME" >"$FAKE_CLUSTER/$number.name"
SLURM_JOB_ID=$number bash "$1" >"$out" 2>"$err" </dev/null &
echo $! >"$FAKE_CLUSTER/$number"
echo "Submitted batch job $number"
""",
    "squeue": """
if [ "$1" = -j ]; then
  if [ ! -e "$FAKE_CLUSTER/$2" ]; then
    echo "slurm_load_jobs error: ${REFUSAL:-Invalid job id specified}" >&2
    exit 1
  fi
  kill -0 "$(cat "$FAKE_CLUSTER/$2")" 2>/dev/null && echo "$2 RUNNING"
  exit 0
fi
name="${@: -1}"
for job in "$FAKE_CLUSTER"/*.name; do
  id=$(basename "$job" .name)
  [ "$(cat "$job")" = "$name" ] && kill -0 "$(cat "$FAKE_CLUSTER/$id")" 2>/dev/null && echo "$id"
done
exit 0
""",
    "scancel": """
pkill -P "$(cat "$FAKE_CLUSTER/$1")"
kill "$(cat "$FAKE_CLUSTER/$1")"
touch "$FAKE_CLUSTER/$1.cancelled"
""",
    "sacct": 'cat "$FAKE_CLUSTER/$2.state" 2>/dev/null\n',
}

HELD = (
    EVALUATE
    + "hold = Path(__file__).with_name('hold')\n"
    + "while number and hold.exists() and not hold.with_name(f'release-{number}').exists():\n"
    + "    time.sleep(0.02)\nleave(100.0 / (1 + number % 50))\nlog('end')\n"
)
"""An evaluation that waits while there is a file ``hold``, and none that releases this very program."""

SEARCH = """
import sys
from pathlib import Path
from test_shinka_cluster import task_in
task_in(Path(sys.argv[1]), sys.argv[2]).run(budget={"measurements": 6}, measure_jobs=3)
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a played cluster: a file per job, with the number of its process."""
    programs = tmp_path / "cluster"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CLUSTER", str(programs))
    return programs


def task_in(folder: Path, model: str) -> Task:
    job = SlurmCondaJobConfig(eval_program_path=str(folder / "evaluate.py"), time="00:01:00")
    return Task(folder, model, evo={"job_type": "slurm_conda"}, job=job)


def write_task(folder: Path, server: ModelServer, evaluate: str) -> Task:
    Task.write(folder, server, evaluate)
    return task_in(folder, server.model())


@contextmanager
def search(task: Task) -> Iterator[subprocess.Popen[str]]:
    """The task's search in a process of its own."""
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}:{here.parent}"}
    command = [sys.executable, "-c", SEARCH, str(task.folder), task.model]
    with (task.folder / "words").open("a") as words:
        with subprocess.Popen(command, env=environment, stderr=words, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def notes(task: Task) -> list[Path]:
    return list((task.out / "gpu_forecasters" / "cluster").glob("*.json"))


def note_of(task: Task, number: int) -> Path:
    (path,) = (Path(row["path"]) for row in task.calls() if row["number"] == number)
    return next(note for note in notes(task) if f"/{path.parent.name}/" in note.read_text())


def test_a_cluster_measures_what_was_selected(tmp_path: Path, server: ModelServer, slurm: Path) -> None:
    task = write_task(tmp_path / "task", server, PLAIN)
    task.run(budget={"measurements": 5})
    assert len(task.calls()) == 5
    assert {number_in(code) for (code,) in task.programs()} == {row["number"] for row in task.calls()}
    assert set(task.outcomes().values()) == {"ok"}
    assert len(list(slurm.glob("*.name"))) == 5 and len({p.read_text() for p in slurm.glob("*.name")}) == 1
    assert not notes(task)


@pytest.mark.timeout(1000)  # two processes import the host, which takes a slow disk minutes
def test_what_a_killed_run_has_left_on_the_cluster_is_collected_or_cancelled(
    tmp_path: Path, server: ModelServer, slurm: Path
) -> None:
    task = write_task(tmp_path / "task", server, HELD)
    hold = task.folder / "hold"
    hold.touch()
    with search(task) as process:
        wait_until(lambda: len(task.calls()) == 4 and len(notes(task)) == 3, 300)
        process.kill()
    early, late, lost = (row["number"] for row in task.calls()[1:])
    # One ends while nobody looks, one under the eyes of the next run, and for one the kill came before the note.
    (task.folder / f"release-{early}").touch()
    wait_until(lambda: [row["number"] for row in task.calls("end")] == [0, early], 120)
    note_of(task, lost).unlink()
    with search(task) as process:
        wait_until(lambda: task.outcomes()[early] == "ok", 300)
        assert task.outcomes()[late] is None and len(list(slurm.glob("*.cancelled"))) == 1
        hold.unlink()
        assert process.wait(200) == 0
    measured = [row["number"] for row in task.calls()]
    assert len(measured) == len(set(measured)) == 6
    assert {row["number"] for row in task.calls("end")} == set(measured) - {lost}
    assert task.outcomes() == {number: "infrastructure" if number == lost else "ok" for number in measured}
    assert not notes(task) and len(list(slurm.glob("*.cancelled"))) == 1


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("TIMEOUT", Outcome.TIMEOUT),
        ("CANCELLED by 1000", Outcome.INFRASTRUCTURE),
        ("NODE_FAIL", Outcome.INFRASTRUCTURE),
        ("FAILED", None),
        ("", None),
    ],
)
def test_a_job_that_the_cluster_has_ended_says_nothing_about_its_kernel(
    slurm: Path, state: str, outcome: Outcome | None
) -> None:
    (slurm / "7.state").write_text(f"{state}\n")
    lost = cluster.verdict("7")
    assert (None if lost is None else lost.outcome) is outcome


def test_a_job_that_the_cluster_has_forgotten_has_ended_and_one_it_does_not_answer_for_has_not(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not cluster.runs("7")
    monkeypatch.setenv("REFUSAL", "Unable to contact slurm controller")
    assert cluster.runs("7")
    (slurm / "7.state").write_text("COMPLETED\n")
    assert not cluster.runs("7")
