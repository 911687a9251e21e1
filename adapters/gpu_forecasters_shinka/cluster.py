"""Evaluations on a Slurm cluster: they outlive a run that is killed, and the next one has to find them.

All jobs of a run carry its name, and each has a file in the run's folder from its submission until its result is in the
ledger. A kill between the submission and the file leaves a job that only its name gives away.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.errors import HostError
from gpu_forecasters_plugin.files import write_atomically, write_json

__all__ = ["ClusterJob", "ClusterJobs", "cancel", "runs", "verdict"]

_NAME_VARIABLE = "SBATCH_JOB_NAME"
"""sbatch prefers it to the name in its script."""

_GOING_ON = {
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "REQUEUED",
    "RESIZING",
    "STAGE_OUT",
}
_ENDED_FROM_OUTSIDE = {"CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"}


@dataclass(frozen=True)
class ClusterJob:
    """A submitted evaluation.

    Attributes:
        job_id: the cluster's number of it.
        decision_id: the ledger's number of the decision that it measures.
        candidate_key: identity of its source.
        results_dir: where it leaves its files.
        submitted_at: seconds since the epoch.
    """

    job_id: str
    decision_id: int
    candidate_key: str
    results_dir: str
    submitted_at: float


class ClusterJobs:
    """A run's jobs on the cluster. Thread-safe; one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Look after the jobs of a run.

        Args:
            folder: the run's.
        """
        self._folder = folder / "gpu_forecasters" / "cluster"
        self._submitting = threading.Lock()

    # -- of this run ----------------------------------------------------------------------------------------

    def submit(
        self, submit: Callable[[], str], decision_id: int, candidate_key: str, results_dir: str
    ) -> ClusterJob:
        """Submit an evaluation, and note that it was.

        Args:
            submit: the host's own way to do it; returns the job's number.
            decision_id: the decision that it measures, which was charged.
            candidate_key: identity of its source.
            results_dir: where it leaves its files.
        """
        with self._submitting:  # the environment is everybody's
            before = os.environ.get(_NAME_VARIABLE)
            os.environ[_NAME_VARIABLE] = self._run_name()
            try:
                number = submit()
            finally:
                del os.environ[_NAME_VARIABLE]
                if before is not None:
                    os.environ[_NAME_VARIABLE] = before
        job = ClusterJob(number, decision_id, candidate_key, str(Path(results_dir).resolve()), time.time())
        write_json(self._note(decision_id), asdict(job))
        return job

    def settled(self, decision_id: int) -> None:
        """The ledger has the result of a decision."""
        self._note(decision_id).unlink(missing_ok=True)

    def _note(self, decision_id: int) -> Path:
        return self._folder / f"{decision_id}.json"

    def _run_name(self) -> str:
        """The name of the run's jobs, drawn once."""
        with suppress(FileNotFoundError):
            return (self._folder / "name").read_text("utf-8")
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"gpu-forecasters-{uuid.uuid4().hex[:12]}"
        write_atomically(self._folder / "name", name)
        return name

    # -- of a run that was killed ---------------------------------------------------------------------------

    def left(self) -> list[ClusterJob]:
        """Those whose results are not in the ledger, as far as an earlier process of this run has noted."""
        return [ClusterJob(**json.loads(note.read_text("utf-8"))) for note in self._folder.glob("*.json")]

    def cancel_others(self, wanted: Sequence[ClusterJob]) -> int:
        """Cancel all jobs of the run but these, and forget them.

        Returns:
            How many were cancelled.

        Raises:
            HostError: the cluster cannot be asked.
        """
        if not (self._folder / "name").exists():
            return 0  # none was ever submitted
        asked = _ask(
            "squeue", "--noheader", "--format", "%A", "--user", getpass.getuser(), "--name", self._run_name()
        )
        if asked.returncode != 0:
            raise HostError(
                f"squeue cannot list the jobs of this run: {asked.stderr.strip()}; try again later"
            )
        others = set(asked.stdout.split()).difference(job.job_id for job in wanted)
        for number in others:
            cancel(number)
        decisions = {job.decision_id for job in wanted}
        for job in self.left():
            if job.decision_id not in decisions:
                self.settled(job.decision_id)
        return len(others)


def runs(job_id: str) -> bool:
    """Whether a job waits or runs; a cluster that does not say is asked again by the caller.

    Raises:
        HostError: there is no cluster to ask.
    """
    asked = _ask("squeue", "-j", job_id, "--noheader")
    if asked.returncode == 0:
        return bool(asked.stdout.strip())
    # It forgets jobs a few minutes after their end, and then refuses their numbers.
    if "invalid job id" in asked.stderr.lower():
        return False
    state = _final_state(job_id)
    return not state or state in _GOING_ON


def cancel(job_id: str) -> None:
    """End a job."""
    _ask("scancel", job_id)


def verdict(job_id: str) -> Measurement | None:
    """How the cluster itself has ended a job; ``None`` where it has not, or keeps no accounts."""
    state = _final_state(job_id)
    if state == "TIMEOUT":
        return Measurement(Outcome.TIMEOUT, error="the cluster has ended it at its time limit")
    if state in _ENDED_FROM_OUTSIDE:
        return Measurement(Outcome.INFRASTRUCTURE, error=f"the cluster has ended it ({state})")
    return None


def _final_state(job_id: str) -> str:
    """A job's state in the cluster's accounts; empty where there are none."""
    try:
        asked = _ask("sacct", "-j", job_id, "--allocations", "--noheader", "--parsable2", "--format", "State")
    except HostError:
        return ""
    words = asked.stdout.split()  # "CANCELLED by 1000"
    return words[0].rstrip("+") if asked.returncode == 0 and words else ""


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HostError(
            f"{command[0]} cannot be run: {error.strerror}; the jobs need a Slurm cluster"
        ) from None
