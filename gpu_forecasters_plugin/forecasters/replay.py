"""Forecasts recorded earlier: re-run a search, or score a model, without asking the model again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.errors import ForecasterError
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastFailure,
    ForecastOutcome,
    Query,
)
from gpu_forecasters_plugin.forecasters._base import Forecaster
from gpu_forecasters_plugin.json_lines import read_json_lines

__all__ = ["ReplayForecaster", "load_forecasts"]


class ReplayForecaster(Forecaster):
    """Answers from a table; a candidate that is not in it gets an ``empty`` failure.

    Args:
        forecasts: eight weights by candidate key; they are normalised.
        name: what ledgers and reports call it.

    Raises:
        ForecasterError: a row is no distribution over eight bins.
    """

    def __init__(self, forecasts: Mapping[str, Sequence[float]], *, name: str = "replay") -> None:
        self.name = name
        self._forecasts: dict[str, Forecast] = {}
        for key, weights in forecasts.items():
            try:
                self._forecasts[key] = Forecast.from_weights(weights, source=name)
            except (TypeError, ValueError, OverflowError) as error:
                raise ForecasterError(f"recorded forecast of {key!r}: {error}") from error

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, draw: int = 0, name: str = "replay") -> ReplayForecaster:
        """Read a file as :func:`load_forecasts` does."""
        return cls(load_forecasts(path, draw), name=name)

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        """The recorded forecast of each query."""
        return [self._answer(query.candidate_key) for query in queries]

    def _answer(self, key: str) -> ForecastOutcome:
        recorded = self._forecasts.get(key)
        if recorded is None:
            return ForecastFailure(FailureKind.EMPTY, f"no forecast is recorded for {key}", self.name)
        return recorded


def load_forecasts(path: str | PathLike[str], draw: int = 0) -> dict[str, list[float]]:
    """Read recorded forecasts from JSON Lines, ``.gz`` or not.

    A row holds ``probabilities`` (eight numbers) and either ``candidate_key`` or ``candidate_code``; further
    columns are ignored, and of several rows for one candidate the last counts. Where a model was asked several times,
    ``draw`` numbers the times from 0.

    Args:
        path: the file.
        draw: which of the draws that are there to read, counted round; rows without a number are read with each.

    Raises:
        ForecasterError: the file cannot be read; names the line.
    """
    name = f"recorded forecasts {path}"
    in_every: dict[str, list[float]] = {}
    by_draw: dict[int, dict[str, list[float]]] = {}
    for number, row in read_json_lines(Path(path), name, ForecasterError):
        try:
            key, weights = _row(row)
            table = by_draw.setdefault(_draw(row), {}) if "draw" in row else in_every
        except (ValueError, TypeError, OverflowError) as error:
            raise ForecasterError(f"{name}, line {number}: {error}") from error
        table[key] = weights
    if not by_draw:
        return in_every
    numbers = sorted(by_draw)
    return in_every | by_draw[numbers[draw % len(numbers)]]


def _draw(row: Mapping[str, Any]) -> int:
    draw = row["draw"]
    if not isinstance(draw, int) or isinstance(draw, bool) or draw < 0:
        raise ValueError(f"'draw' is a whole number from 0, got {draw!r}")
    return draw


def _row(row: Mapping[str, Any]) -> tuple[str, list[float]]:
    if "probabilities" not in row:
        raise ValueError("a row needs 'probabilities'")
    if row.get("candidate_key") is not None:
        key = row["candidate_key"]
        if not isinstance(key, str):
            raise ValueError(f"'candidate_key' is text, got {key!r:.100}")
    elif "candidate_code" in row:
        key = source_key(str(row["candidate_code"]))
    else:
        raise ValueError("a row needs 'candidate_key' or 'candidate_code'")
    if not isinstance(row["probabilities"], list):
        raise ValueError(f"'probabilities' is a list of eight numbers, got {row['probabilities']!r:.100}")
    weights = [float(weight) for weight in row["probabilities"]]
    Forecast.from_weights(weights)
    return key, weights
