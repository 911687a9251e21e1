"""One search: OpenEvolve's own process behind ``gpu-forecasters openevolve``, and what its ledger says of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from measuring.service import SERVICE_VARIABLE
from proposing.proposer import RuleProposer, space_of

from comparing.kept import kept_document
from gpu_forecasters_plugin.compare.records import best_so_far
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import ConfigError, HostError
from gpu_forecasters_plugin.files import write_atomically, write_json
from gpu_forecasters_plugin.guardian import guarded_process
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.ledger.reading import snapshot
from gpu_forecasters_plugin.recorded.server import serve

__all__ = ["ARMS", "ROOT", "Found", "Search", "Stopped"]

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("baseline", "surrogate", "screened", "random")
"""Without the filter; with it; with the compiler asked as well; with chance in place of forecasts."""

_RESULT = "search.json"
_POLL_S = 0.3
_CUT = "ended with the run"
"""What the ledger says of measurements that were under way when the budget was spent."""

_ANY_ARCH = "sm_90"
"""What the compiler is asked about where there is no GPU to ask it about."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Others need the cores too: searches run side by side, and kernels are compiled meanwhile."""


class Stopped(Exception):
    """The comparison ends before this search does; the same command begins it anew."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        curve: best speed-up over the initial program after each measurement, in the order in which they ended.
        outcomes: how many measurements ended how.
        candidates_considered: proposals that were decided on while there was budget left.
        best_code: source of the fastest program.
        best_time_us: its time.
        seconds: how long the search took.
    """

    curve: tuple[float, ...]
    outcomes: dict[str, int]
    candidates_considered: int
    best_code: str
    best_time_us: float
    seconds: float


@dataclass(frozen=True)
class Search:
    """One arm with one seed. All that it leaves is in its folder.

    A search that was interrupted begins anew: its ledger could go on, but the population that it had is gone, and it
    would no longer be like one that was not interrupted. What it measured is in the service's journal.

    Attributes:
        task: the task's name.
        arm: one of :data:`ARMS`.
        seed: of the proposals and of what chooses among them.
        budget: measurements, the initial program's included.
        folder: the search's own.
        surrogate: file of another ``surrogate:`` section, for the arm of that name.
        screen_workers: dry runs of the compiler's at once; ``None``: as many as there are cores.
        at_once: measurements in flight; ``None``: as the task's configuration says.
    """

    task: str
    arm: str
    seed: int
    budget: int
    folder: Path
    surrogate: Path | None = None
    screen_workers: int | None = None
    at_once: int | None = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.task}, {self.arm}, seed {self.seed}"

    def found(self) -> Found | None:
        """What it found, once it has ended.

        Raises:
            ConfigError: the file in which it was kept cannot be read.
        """
        path = self.folder / _RESULT
        document = kept_document(path, dict)
        if document is None:
            return None
        try:
            return Found(**document | {"curve": tuple(document["curve"])})
        except (KeyError, TypeError):
            raise ConfigError(f"{path} is not what was written there: remove it, and start again") from None

    def run(self, service: str, device: str, stop: threading.Event) -> Found:
        """Search until the budget is spent.

        Args:
            service: address of the measuring service.
            device: name for the ledger, or ``auto``.
            stop: ends the search, unfinished, once it is set.

        Raises:
            Stopped: it was.
            HostError: the search did not end well; what was measured is kept.
        """
        if stop.is_set():
            raise Stopped
        known = self.found()
        if known is not None:
            return known
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        proposer = RuleProposer(space_of(self.task), seed=self.seed, journal=self.folder / "proposals.jsonl")
        with serve(proposer) as server:
            command = self._command(server.base_url, device)
            self._execute(command, os.environ | _ONE_THREAD | {SERVICE_VARIABLE: service}, stop)
        found = self._read()
        write_json(self.folder / _RESULT, asdict(found))
        return found

    def _command(self, api_base: str, device: str) -> list[str]:
        task = ROOT / "tasks" / self.task
        config = yaml.safe_load((task / "config.yaml").read_text())
        section = config.pop("surrogate")
        config["random_seed"] = self.seed
        config["llm"]["api_base"] = api_base
        if self.at_once is not None:
            config["evaluator"]["parallel_evaluations"] = self.at_once
        section["screen"] |= {"task_file": str(task / "task.py"), "workers": self.screen_workers}
        chosen = self.surrogate if self.arm == "surrogate" else ROOT / "arms" / f"{self.arm}.yaml"
        changes = {} if chosen is None else yaml.safe_load(chosen.read_text())["surrogate"] or {}
        changes["screen"] = section["screen"] | (changes.get("screen") or {})
        if device != "auto":
            changes["screen"]["arch"] = _ANY_ARCH
        section |= changes | {"budget": {"measurements": self.budget}, "seed": self.seed, "device": device}
        write_atomically(self.folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        document = {"surrogate": section}
        write_atomically(self.folder / "surrogate.yaml", yaml.safe_dump(document, sort_keys=False))
        options = {"--config": "config.yaml", "--surrogate": "surrogate.yaml", "--output": "run"}
        given = [word for name, file in options.items() for word in (name, str(self.folder / file))]
        program = [str(task / "initial_program.py"), str(task / "evaluator.py")]
        return [sys.executable, "-m", "gpu_forecasters_plugin", "openevolve", *program, *given]

    def _execute(self, command: list[str], environment: dict[str, str], stop: threading.Event) -> None:
        log = self.folder / "host.log"
        with log.open("ab") as output:
            # Whatever ends this process ends the search with all that it has started.
            with guarded_process(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            ) as process:
                while process.poll() is None:
                    if stop.wait(_POLL_S):
                        raise Stopped
        if process.returncode != 0:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise HostError(f"{self.label}: ended with {process.returncode} (log: {log}): {' '.join(tail)}")

    def _check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a search that has paid for measurements which the machine failed to make."""
        failed = [
            row["error"] for row in rows if row["outcome"] == Outcome.INFRASTRUCTURE and row["error"] != _CUT
        ]
        if failed:
            reason = " ".join(str(failed[0]).split())
            raise HostError(
                f"{self.label}: {len(failed)} of {len(rows)} measurements failed for want of a machine: {reason}; "
                "mend that, and start again: no kernel is measured twice"
            )

    def _read(self) -> Found:
        ledger = LedgerReader(self.folder / "run" / "ledger.sqlite3")
        try:
            ledger.follow_run(ledger.runs()[0]["id"])
            decisions = ledger.decisions()
            rows = sorted(
                (row for row in decisions if row["outcome"] is not None), key=lambda row: row["finished_at"]
            )
            self._check(rows)
            best = max((row for row in rows if row["speedup"] is not None), key=lambda row: row["speedup"])
            with snapshot(ledger) as run:
                code = run.sources([best["candidate_key"]])[best["candidate_key"]]
        finally:
            ledger.close()
        names = [str(row["outcome"]) for row in rows]
        return Found(
            curve=best_so_far([row["speedup"] for row in rows]),
            outcomes={name: names.count(name) for name in sorted(set(names))},
            candidates_considered=sum(row["reason"] != "budget_spent" for row in decisions),
            best_code=code,
            best_time_us=best["time_us"],
            seconds=round(rows[-1]["finished_at"] - rows[0]["finished_at"], 1),
        )
