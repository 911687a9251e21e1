"""Forecasts that are kept as they arrive, so that an evaluation that was ended goes on and pays for nothing twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import OutputError
from gpu_forecasters_plugin.evaluation.pairs import Pair
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
)
from gpu_forecasters_plugin.json_lines import read_json_lines

__all__ = ["FAILURES_FILE", "FORECASTS_FILE", "KeptForecasts"]

FORECASTS_FILE = "forecasts.jsonl"
"""In the format of the ``replay`` forecaster."""

FAILURES_FILE = "failures.jsonl"

_PASSING = {FailureKind.TIMEOUT, FailureKind.RATE_LIMITED, FailureKind.UNREACHABLE}
"""Failures that asking again may mend; the others are answers, though useless ones, and were paid for."""


class KeptForecasts:
    """The forecasts in a folder; one process at a time works on it.

    Args:
        folder: where they are; exists.
        identity: of forecaster, kernels and protocol: forecasts of another evaluation are refused.

    Raises:
        OutputError: the folder holds forecasts of another evaluation, or what it holds cannot be read.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._identity = identity
        self._known: dict[str, ForecastOutcome] = {}
        # Failures first: what failed may have been asked again, and answered.
        for name, restore in ((FAILURES_FILE, _failure), (FORECASTS_FILE, _forecast)):
            for row in self._rows(name):
                self._known[row["pair"]] = restore(row)

    def get(self, pair: Pair) -> ForecastOutcome | None:
        """What was answered for a kernel; ``None`` where it has to be asked (again)."""
        known = self._known.get(pair.id)
        return None if isinstance(known, ForecastFailure) and known.kind in _PASSING else known

    def add(self, pairs: Iterable[Pair], outcomes: Iterable[ForecastOutcome]) -> None:
        """Write what was answered; on return, it survives whatever comes.

        Raises:
            OSError: it could not be written.
        """
        lines: dict[str, str] = {FORECASTS_FILE: "", FAILURES_FILE: ""}
        for pair, outcome in zip(pairs, outcomes, strict=True):
            name = FORECASTS_FILE if isinstance(outcome, Forecast) else FAILURES_FILE
            head = {"pair": pair.id, "evaluation": self._identity, "candidate_key": pair.candidate_key}
            lines[name] += json.dumps(head | asdict(outcome)) + "\n"
            self._known[pair.id] = outcome
        for name, text in lines.items():
            if text:
                with (self._folder / name).open("a", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / name
        if not path.exists():
            return []
        _cut_torn_line(path)
        rows = [row for _, row in read_json_lines(path, str(path), OutputError)]
        if any(row.get("evaluation") != self._identity for row in rows):
            raise OutputError(
                f"{path} holds forecasts of another evaluation (forecaster, settings or kernels differ): "
                "choose another --out"
            )
        return rows


def _cut_torn_line(path: Path) -> None:
    """Take away what a killed process had begun to write."""
    with path.open("rb+") as file:
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)


def _forecast(row: Mapping[str, Any]) -> ForecastOutcome:
    return Forecast(
        tuple(row["probabilities"]),
        row["raw_sum"],
        row["source"],
        ForecastCost(**row["cost"]),
        {name: tuple(values) for name, values in row["components"].items()},
        row["covered_mass"],
        tuple(row["suspicions"]),
        row["disagrees"],
        row["p_invalid"],
        row["p_incorrect"],
    )


def _failure(row: Mapping[str, Any]) -> ForecastOutcome:
    return ForecastFailure(
        FailureKind(row["kind"]),
        row["detail"],
        row["source"],
        ForecastCost(**row["cost"]),
        tuple(row["suspicions"]),
    )
