"""No decision may rest on a time that the search has not paid for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import measured, surrogate, write_pool

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.forecast import Forecast
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.learned import recorded_kernels
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool

Belief = list[tuple[str, Action, Reason, float | None, tuple[float, ...] | None]]


def recorded(folder: Path, task: str, *, order: int = 1) -> RecordedPool:
    """A recorded task; order -1 gives every time to the kernel at the other end."""
    path = write_pool(folder / f"{task}{order}.jsonl", blocks=2)
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    header["pool"]["task"] = task
    good = [row for row in rows if row["time_us"] is not None]
    for row, time_us in zip(good, [row["time_us"] for row in good][::order], strict=True):
        row["time_us"] = time_us
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    return load_pool(path)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> dict[str, RecordedPool]:
    """The recorded tasks that a warm start finds."""
    tasks: dict[str, RecordedPool] = {}
    shipped = recorded_kernels.kernels_of
    monkeypatch.setattr(recorded_kernels, "_shipped", lambda: [shipped(task, {}) for task in tasks.values()])
    return tasks


def play(task: RecordedPool, folder: Path, steps: int) -> list[Belief]:
    """What the default forecaster and gate decide, step by step, on a search over a recorded task."""
    forecaster = build_forecaster(ForecasterConfig(), operation=task.operation)
    reference = Candidate("reference", task.reference.code)
    gate = Gate(reference, forecaster, Ledger(folder / "ledger.sqlite3"), surrogate(task=task.task))
    others = [found for found in task.candidates.values() if found.id != task.reference_id]
    beliefs: list[Belief] = []
    for step in range(steps):
        rows = others[8 * step : 8 * step + 8]
        decisions = gate.ask([reference, *[Candidate(row.id, row.code) for row in rows]])
        beliefs.append([])
        for decision in decisions:
            forecast = decision.forecast
            mass = forecast.probabilities if isinstance(forecast, Forecast) else None
            beliefs[-1].append(
                (decision.candidate_id, decision.action, decision.reason, decision.score, mass)
            )
            speedup = task.speedup(decision.candidate_id) if decision.candidate_id != "reference" else 1.0
            if decision.measure and speedup is not None:
                gate.tell(decision.id, measured(speedup))
    return beliefs


def test_scrambled_times_change_nothing_before_the_first_measurement(
    tmp_path: Path, shelf: dict[str, RecordedPool]
) -> None:
    shelf |= {task: recorded(tmp_path, task) for task in ("sum", "max")}
    true, scrambled = recorded(tmp_path, "toy"), recorded(tmp_path, "toy", order=-1)
    assert [true.speedup(i) for i in true.candidates] != [scrambled.speedup(i) for i in true.candidates]
    shelf["toy"] = true
    one = play(true, tmp_path / "true", steps=3)
    shelf["toy"] = scrambled
    two = play(scrambled, tmp_path / "scrambled", steps=3)
    assert one[0] == two[0]
    # ... and it is no empty promise: forecasts differ between kernels, and follow what was paid for.
    assert len({score for _, _, _, score, _ in one[0]}) > 4
    assert one[1] != two[1]


def test_the_same_operations_records_are_left_out_and_others_are_used(
    tmp_path: Path, shelf: dict[str, RecordedPool]
) -> None:
    toy = recorded(tmp_path, "toy")
    shelf |= {task: recorded(tmp_path, task) for task in ("sum", "max")}
    with_others = play(toy, tmp_path / "1", steps=1)
    shelf["toy"] = recorded(tmp_path, "toy", order=-1)
    with_its_own = play(toy, tmp_path / "2", steps=1)
    shelf |= {task: recorded(tmp_path, task, order=-1) for task in ("sum", "max")}
    with_other_times = play(toy, tmp_path / "3", steps=1)
    assert with_others == with_its_own != with_other_times
