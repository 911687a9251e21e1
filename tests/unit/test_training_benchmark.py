"""The training comparison: lanes that outlive a training's process, and a report that names what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import training_drive
from benchmarks.training import PROFILE, SEEDS, Work, lane
from benchmarks.training_claims import against_start, better_than_shipped, claims, rewards_told
from benchmarks.training_lines import SHIPPED, START, as_shipped, trained_lines
from benchmarks.training_picture import draw
from benchmarks.training_report import utilisation
from benchmarks.training_runs import main as train_all
from benchmarks.training_scores import INTERVALS, Answers, Line
from benchmarks.training_tables import missing, quality_table
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.evaluation.asking import Protocol, ask_about
from gpu_forecasters_plugin.evaluation.pairs import Pair, with_recorded_verdicts
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.training.rows import TrainingRow, pool_rows

SURE = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
UNSURE = [0.125] * 8


def rows(count: int) -> list[TrainingRow]:
    """Kernels that are 1.8 times as fast as their reference: bin 6."""
    return [
        TrainingRow("scale", "triton", "H100", "ref", f"code {n}", f"key {n}", "ref", 1.8)
        for n in range(count)
    ]


def varied_rows() -> list[TrainingRow]:
    """Twelve kernels from twice as slow to almost four times as fast as their reference."""
    return [replace(row, speedup=0.5 * 2 ** (n / 4)) for n, row in enumerate(rows(12))]


def about(bins: list[int], sure: float = 0.65) -> list[list[float]]:
    """Forecasts that put that much on each kernel's bin."""
    return [[sure if number == own else (1 - sure) / 7 for number in range(1, 9)] for own in bins]


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


def test_an_interval_of_rankings_is_about_every_draw() -> None:
    kernels = varied_rows()
    upwards = about([row.bin for row in kernels])
    line = Line(kernels, [Answers([upwards, [row[::-1] for row in upwards]])])
    assert line.measures["spearman_within_tasks"] == pytest.approx(0.0)
    assert line.resampled(20)["spearman_within_tasks"] == pytest.approx([0.0] * 20)


def test_means_over_kernels_are_the_same_of_a_resample_of_all_kernels() -> None:
    kernels = varied_rows()
    line = Line(kernels, [Answers([about([row.bin for row in kernels]), about([3] * 12)])])
    every = line._of_sample(np.arange(12))
    assert every == pytest.approx({name: line.measures[name] for name in INTERVALS})


def compared(sure: float) -> tuple[dict[str, Line], dict[str, Any]]:
    """Two rewards: one whose answers are sure and wrong, one that ended early and is right as often as it says."""
    kernels = varied_rows()
    lines = {
        "uniform": Line(kernels, [Answers([[UNSURE] * 12])]),
        "GRPO, correctness": Line(kernels, [Answers([[SURE[::-1]] * 12])]),
        "GRPO, correctness_crps": Line(kernels, [Answers([about([row.bin for row in kernels], sure)])]),
    }
    return lines, {title: line.resampled(20) for title, line in lines.items()}


def training(steps: int) -> dict[str, Any]:
    return {"settings": {"steps": 32}, "training": {"steps": steps}, "trained_s": 60.0}


def test_a_training_that_ended_early_is_named_where_it_is_compared() -> None:
    kept = {"grpo-correctness-0": training(32), "grpo-correctness-1": training(32)}
    kept |= {"grpo-correctness_crps-0": training(24), "grpo-correctness_crps-1": training(13)}
    told = claims(*compared(0.99), kept)
    assert "**GRPO, correctness_crps (24 and 13 of 32 steps)** against *GRPO, correctness*:" in told
    assert "ECE at least 30 % lower: **reached**" in told
    assert "**GRPO, correctness_brier** against *GRPO, correctness*: not measured." in told
    assert "neither is surely better than chance" not in told
    assert "for correctness alone no groups, since 100% of its answers are equally sure" in told


def test_that_neither_reward_teaches_a_ranking_is_told() -> None:
    lines, _ = compared(0.99)
    kernels = varied_rows()
    lines["GRPO, correctness_crps"] = Line(kernels, [Answers([[UNSURE] * 12])])
    told = claims(lines, {title: line.resampled(20) for title, line in lines.items()}, {})
    assert "Spearman undefined to undefined, undefined; neither is surely better than chance" in told


def test_no_error_of_calibration_is_told_without_that_of_knowing_nothing() -> None:
    told = rewards_told(compared(0.99)[0])
    assert "an eighth for every bin, whatever the kernel, has Brier 0.438" in told
    assert "*GRPO, correctness_crps* has Brier 0.000" in told


def test_only_what_is_better_by_every_measure_beats_the_shipped_forecaster() -> None:
    kernels = varied_rows()
    right = [row.bin for row in kernels]
    lines = {
        SHIPPED: Line(kernels, [Answers([about(right, 0.5)])]),
        "SFT, one token": Line(kernels, [Answers([about(right, 0.9)])]),
        "proper, nll": Line(kernels, [Answers([about(right, 0.4)])]),
        "proper, brier": Line(kernels, [Answers([backwards_but_surer(right)])]),
        "SFT, written": Line(kernels, [Answers([about(right, 0.99)])]),
    }
    samples = {title: line.resampled(50) for title, line in lines.items()}
    assert lines["proper, brier"].measures["nll"] < lines[SHIPPED].measures["nll"]
    assert better_than_shipped(lines, samples) == ["SFT, one token"]


def test_what_training_adds_is_told_beside_its_start() -> None:
    kernels = varied_rows()
    right = [row.bin for row in kernels]
    lines = {
        START: Line(kernels, [Answers([about(right, 0.5)])]),
        "proper, nll": Line(kernels, [Answers([about(right, 0.9)])]),
        "GRPO, correctness": Line(kernels, [Answers([about(right, 0.9)])]),
    }
    told = against_start(lines, {title: line.resampled(20) for title, line in lines.items()})
    gained = lines["proper, nll"].measures["brier"] - lines[START].measures["brier"]
    assert gained < 0 and f"| proper, nll | {gained:+.3f} (" in told
    assert f"| {START} |" not in told and "| GRPO, correctness |" not in told
    assert against_start({}, {}) == f"*{START}*: not measured."


def test_a_share_of_minutes_is_that_of_whole_trainings_however_many_steps_they_have() -> None:
    lines, _ = compared(0.99)
    lines["proper, brier, longer"] = lines["uniform"]
    kept = {f"grpo-{reward}-0": training(16) for reward in ("correctness", "correctness_crps")}
    kept["longer-brier-0"] = {"settings": {"steps": 150}, "training": {"steps": 150}, "trained_s": 90.0}
    told = claims(lines, {title: line.resampled(20) for title, line in lines.items()}, kept)
    # A minute for 16 of 32 steps is two minutes for all of them; the other one took a minute and a half.
    assert "- proper, brier, longer, within noise or better: **not reached**" in told
    assert "in a tenth of the GPU-minutes: **not reached**, 75% of them." in told


def test_time_between_two_parts_of_the_work_is_no_time_of_the_gpu(tmp_path: Path) -> None:
    samples = [{"t": t, "gpu": 80, "used_gib": 9.0} for t in (0.0, 1.0, 2.0, 9000.0, 9001.0)]
    (tmp_path / "gpu.jsonl").write_text("\n".join(map(json.dumps, samples)))
    assert "Over all 5 seconds of 2 parts," in utilisation(tmp_path)
    (tmp_path / "gpu.jsonl").write_text("\n".join(map(json.dumps, samples[:3])))
    assert "Over all 3 seconds, two" in utilisation(tmp_path)


def backwards_but_surer(right: list[int]) -> list[list[float]]:
    """More on the right bin, and the rest so far away on the other side that the order is the wrong one."""
    found = []
    for own in right:
        row = [0.0] * 8
        row[own - 1] = 0.7
        row[0 if own > 4 else 7] += 0.3
        found.append(row)
    return found


def test_the_picture_is_narrow_and_small(tmp_path: Path) -> None:
    draw(compared(0.9)[0], tmp_path / "picture.png")
    data = (tmp_path / "picture.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 1_000_000
    assert int.from_bytes(data[16:20]) <= 1200


def test_the_shipped_forecaster_knows_no_kernel_of_the_operation_unless_it_was_measured() -> None:
    kernels = pool_rows(load_task("softmax")).rows[:6]
    faster = [replace(row, speedup=8 * row.speedup) for row in kernels]
    nothing = as_shipped(kernels, 0).probabilities
    assert nothing == as_shipped(faster, 0).probabilities
    assert nothing != as_shipped(kernels, 4).probabilities


def test_the_shipped_forecaster_knows_no_compiler_unless_it_is_asked() -> None:
    kernels = pool_rows(load_task("softmax")).rows[:6]
    config = parse_surrogate_config({}).forecaster
    pairs = [
        Pair(
            row.id,
            row.task,
            row.device,
            row.reference_code,
            row.candidate_code,
            row.candidate_key,
            row.speedup,
        )
        for row in kernels
    ]
    for compiled, known in ((False, pairs), (True, with_recorded_verdicts(pairs))):
        outcomes = ask_about(known, Protocol(config, within_run=0)).outcomes
        wanted = [getattr(outcomes[row.id], "probabilities", None) for row in kernels]
        assert as_shipped(kernels, 0, compiled=compiled).probabilities == [wanted]
    assert as_shipped(kernels, 0).probabilities != as_shipped(kernels, 0, compiled=True).probabilities


def test_the_report_names_what_is_missing_and_what_was_cut() -> None:
    whole = {"settings": {"steps": 30}, "training": {"steps": 30}}
    cut = {"settings": {"steps": 30}, "training": {"steps": 11}}
    names = [name for names, _ in trained_lines().values() for name in names]
    assert "All trainings are there" in missing(dict.fromkeys(names, whole))
    there = dict.fromkeys([*names, "profile-correctness_brier-0"], whole) | {"grpo-correctness-1": cut}
    del there["proper-crps-0"]
    assert missing(there) == (
        "**Not there**: proper-crps-0. **Ended before their last step**: grpo-correctness-1 (11 of 30 steps)."
    )
    assert "| GRPO, correctness | not measured |" in quality_table({}, {})


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
