"""Finished searches of a comparison that has not ended yet: after an interruption the same command goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.files import write_json
from gpu_forecasters_plugin.plugins import registry
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["KeptRuns"]


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _recorded_forecasts(arm: Arm) -> list[str]:
    """Hashes of the files that an arm replays forecasts from."""
    members = [] if arm.config is None else arm.config.forecaster.members()
    paths = [Path(member.path) for member in members if member.path is not None]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


class KeptRuns:
    """A file per finished search in ``unfinished`` below the comparison's folder, until :meth:`clear`."""

    def __init__(self, out: Path, pool: RecordedPool, host: str, budget: int) -> None:
        self._folder = out / "unfinished"
        rows = [(c.id, c.code, c.outcome, c.time_us, c.neighbours) for c in pool.candidates.values()]
        installed = sorted({str(entry.origin) for entry in registry().entries()})
        self._identities: dict[str, str] = {}
        self._setting = _digest([installed, host, budget, pool.reference_id, pool.operation, rows])

    def _path(self, arm: str, seed: int) -> Path:
        return self._folder / f"{arm}-{seed}.json"

    def _identity(self, arm: Arm) -> str:
        """Hash of all that a search's result depends on, its seed apart."""
        if arm.name not in self._identities:
            config = None if arm.config is None else arm.config.model_dump(mode="json")
            price = [arm.gpu_seconds, arm.measurement_seconds, arm.count_forecasting]
            self._identities[arm.name] = _digest([self._setting, config, _recorded_forecasts(arm), *price])
        return self._identities[arm.name]

    def find(self, arm: Arm, seed: int) -> ArmRun | None:
        """The search of an earlier command that was the same; ``None`` when it has to be run."""
        try:
            document: dict[str, Any] = json.loads(self._path(arm.name, seed).read_bytes())
            if document.pop("identity") != self._identity(arm):
                return None
            return ArmRun(**document | {"curve": tuple(document["curve"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # there is none, or what is there cannot be used: it costs a search, no more

    def keep(self, arm: Arm, run: ArmRun) -> None:
        """Write a finished search down."""
        self._folder.mkdir(exist_ok=True)
        document = {"identity": self._identity(arm)} | asdict(run)
        write_json(self._path(run.arm, run.seed), document)

    def clear(self) -> None:
        """The comparison has ended: a new one starts afresh."""
        shutil.rmtree(self._folder, ignore_errors=True)
