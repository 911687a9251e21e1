"""The training comparison: lanes that outlive a training's process, and a report that names what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import training_drive
from benchmarks.training import PROFILE, SEEDS, Work, lane
from benchmarks.training_report import lines, missing, table
from benchmarks.training_runs import main as train_all
from benchmarks.training_scores import Answers, Line
from gpu_forecasters_plugin.training.rows import TrainingRow

SURE = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
UNSURE = [0.125] * 8


def rows(count: int) -> list[TrainingRow]:
    """Kernels that are 1.8 times as fast as their reference: bin 6."""
    return [
        TrainingRow("scale", "triton", "H100", "ref", f"code {n}", f"key {n}", "ref", 1.8)
        for n in range(count)
    ]


def answer(probabilities: list[float] | None, tokens: int = 100) -> dict[str, Any]:
    return {
        "p": probabilities,
        "failure": None if probabilities else "invalid",
        "tokens": tokens,
    }


def test_one_answer_and_several_draws_are_read_alike() -> None:
    kernels = rows(2)
    single = Answers.of({row.id: answer(SURE) for row in kernels}, kernels)
    drawn = Answers.of({row.id: [answer(SURE), answer(None, 50)] for row in kernels}, kernels)
    assert single.probabilities == [[SURE, SURE]] and single.unread == 0 and single.tokens == 100
    assert drawn.probabilities == [[SURE, SURE], [None, None]] and drawn.unread == 2 and drawn.tokens == 75


def test_a_line_is_the_mean_of_its_seeds_and_draws_and_unread_answers_are_uniform() -> None:
    kernels = rows(20)
    half = Answers([[SURE] * 20, [None] * 20], unread=20)
    line = Line(kernels, [half, Answers([[SURE] * 20])])
    assert line.measures["exact"] == pytest.approx((0.5 + 1.0) / 2)
    assert line.measures["brier"] == pytest.approx((0.5 * 7 / 16 + 0.0) / 2)
    assert line.resampled(5)["brier"] == pytest.approx([7 / 64] * 5)
    assert sum(sum(row) for row in line.pictures()["confusion"]) == 60


def test_the_report_names_what_is_missing_and_what_was_cut() -> None:
    whole = {"settings": {"steps": 30}, "training": {"steps": 30}}
    cut = {"settings": {"steps": 30}, "training": {"steps": 11}}
    names = [name for names, _ in lines().values() for name in names]
    assert "All trainings are there" in missing(dict.fromkeys(names, whole))
    there = dict.fromkeys([*names, "profile-correctness_brier-0"], whole) | {"grpo-correctness-1": cut}
    del there["proper-crps-0"]
    assert missing(there) == (
        "**Not there**: proper-crps-0. **Ended before their last step**: grpo-correctness-1 (11 of 30 steps)."
    )
    assert "| GRPO, correctness | not measured |" in table({}, {})


def test_a_cut_leaves_pairs_since_both_seeds_have_one_order() -> None:
    orders = [[name.rpartition("-")[0] for name in lane(seed) if name != "base"] for seed in SEEDS]
    assert orders[0] == orders[1]
    assert orders[0][:3] == ["start", "grpo-correctness", "grpo-correctness_brier"]


def work(folder: Path) -> Work:
    (folder / "results").mkdir()
    return Work(folder, Path("model"))


def test_a_training_that_kills_its_process_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, started = work(tmp_path), []

    def process(command: list[str], **_: Any) -> SimpleNamespace:
        names = command[3 : command.index("--size")]
        started.append(names)
        for name in names:
            if name == "deadly":
                return SimpleNamespace(returncode=-9)
            kept.result(name).write_text("{}")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(training_drive.subprocess, "run", process)
    training_drive._run_lane(["one", "deadly", "two", "three"], kept)
    assert started == [["one", "deadly", "two", "three"], ["two", "three"]]
    assert sorted(path.stem for path in (tmp_path / "results").iterdir()) == ["one", "three", "two"]


def test_a_training_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = work(tmp_path)

    def run(name: str, _: Work) -> None:
        if name == "bad":
            raise ValueError("no such thing")
        kept.result(name).write_text(json.dumps({"name": name}))

    monkeypatch.setattr("benchmarks.training_runs._free_memory", lambda: None)
    train_all(["one", "bad", "two", "--model", "model", "--work", str(tmp_path)], run)
    assert sorted(path.stem for path in (tmp_path / "results").iterdir()) == ["one", "two"]
    assert "no such thing" in (tmp_path / "failed" / "bad").read_text()


@pytest.mark.parametrize(
    ("times", "left_s", "steps"),
    [
        ([0.0, 2.0, 4.0, 99.0], 100_000.0, 40),
        ([0.0, 2.0, 4.0, 99.0], 0.0, 12),
        ([0.0, 4.0, 8.0, 99.0], 135.0 + 3 * 1.6 * 4.0 * 20.5, 20),
        ([0.0], 100.0, 24),
        (None, 100.0, 24),
    ],
    ids=["much time", "no time", "some time", "not timed", "not profiled"],
)
def test_all_arms_have_as_many_steps_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[float] | None, left_s: float, steps: int
) -> None:
    monkeypatch.setattr(training_drive.time, "time", lambda: 0.0)
    kept = replace(work(tmp_path), until=left_s)
    if times is not None:
        kept.result(PROFILE).write_text(json.dumps({"training": {"step_times": times}}))
    assert training_drive._plan(kept)["steps"] == steps
