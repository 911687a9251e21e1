from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from helpers import times, write_pool

from gpu_forecasters_plugin.compare import ARM_NAMES, run_comparison
from gpu_forecasters_plugin.compare.arms import Arm, build_arms
from gpu_forecasters_plugin.compare.inprocess import InProcessHost
from gpu_forecasters_plugin.compare.output import curves_image, print_result
from gpu_forecasters_plugin.compare.records import ArmRun, best_so_far
from gpu_forecasters_plugin.compare.statistics import compare_arms, mean_curve, summarise
from gpu_forecasters_plugin.config import BudgetConfig, SurrogateConfig
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import ConfigError, PoolFileError
from gpu_forecasters_plugin.forecast import Forecast, ForecastCost
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.records import RunIdentity
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.recorded.openevolve_task import write_openevolve_task
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool, load_task, recorded_task_names
from gpu_forecasters_plugin.recorded.shipped import recorded_names


def run(arm: str, seed: int, *curve: float) -> ArmRun:
    return ArmRun(arm, seed, curve, len(curve), 0.0)


@pytest.fixture
def pool(tmp_path: Path) -> RecordedPool:
    return load_pool(write_pool(tmp_path / "pool.jsonl"))


def scrambled(pool: RecordedPool, seed: int = 1) -> RecordedPool:
    """The same sources and edges, with times and outcomes dealt anew (the reference keeps its own)."""
    others = [c for c in pool.candidates.values() if c.id != pool.reference_id]
    dealt = [(c.outcome, c.time_us) for c in others]
    random.Random(seed).shuffle(dealt)
    fresh = {
        c.id: replace(c, outcome=outcome, time_us=time_us)
        for c, (outcome, time_us) in zip(others, dealt, strict=True)
    }
    return replace(pool, candidates={name: fresh.get(name, c) for name, c in pool.candidates.items()})


def decided(pool: RecordedPool, folder: Path, budget: int) -> list[tuple[Any, ...]]:
    """What a search of the default arm decides: key, action, reason and score."""
    InProcessHost().run(pool, Arm("surrogate", SurrogateConfig()), 0, budget, folder)
    rows = Ledger(folder / "ledger.sqlite3")
    rows.follow_run(1)
    return [(r["candidate_key"], r["action"], r["reason"], r["score"]) for r in rows.decisions()]


def test_the_running_best_ignores_failures_and_starts_at_the_reference() -> None:
    assert best_so_far([1.0, None, 0.5, 2.0, 1.5]) == (1.0, 1.0, 1.0, 2.0, 2.0)


def test_a_search_that_ended_early_keeps_its_last_value() -> None:
    assert mean_curve([run("a", 0, 1.0, 3.0), run("a", 1, 1.0, 1.0, 1.0, 2.0)], 4) == [1.0, 2.0, 2.0, 2.5]


def test_an_arm_is_compared_with_the_baseline_seed_by_seed() -> None:
    baseline = [run("baseline", 0, 1.0, 1.0, 1.0, 2.0), run("baseline", 1, 1.0, 1.0, 1.0, 4.0)]
    arm = [run("x", 0, 1.0, 4.0, 4.0, 4.0), run("x", 1, 1.0, 2.0, 2.0, 3.9)]
    found = compare_arms(arm, baseline, 4, pool_best=4.0)
    assert found["share_of_pool_best"] == pytest.approx((4.0 + 3.9) / 2 / 4.0)
    assert found["mean_ratio"] == pytest.approx((2.0 * 0.975) ** 0.5)
    assert found["worse_than_2pct_share"] == 0.5
    assert found["measurements_to_match_ratio"] == 4 / 2
    low, high = found["ci95"]
    assert low < found["mean_ratio"] < high
    assert found["verdict"] == "too few seeds for a verdict (2; it takes 5)"


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [((1.1, 1.2, 1.1, 1.3, 1.1), "better"), ((0.9, 0.8, 0.9, 0.7, 0.9), "worse")],
)
def test_a_verdict_needs_five_seeds_that_agree(factors: tuple[float, ...], verdict: str) -> None:
    baseline = [run("baseline", seed, 1.0, 2.0) for seed in range(5)]
    arm = [run("x", seed, 1.0, 2.0 * factor) for seed, factor in enumerate(factors)]
    assert compare_arms(arm, baseline, 2, pool_best=4.0)["verdict"] == verdict
    mixed = [run("x", seed, 1.0, 2.0 * factor) for seed, factor in enumerate((1.1, 0.9, 1.2, 0.8, 1.0))]
    assert compare_arms(mixed, baseline, 2, pool_best=4.0)["verdict"] == "no difference shown"


def test_a_baseline_that_found_nothing_cannot_be_matched() -> None:
    flat = [run("baseline", 0, 1.0, 1.0)]
    assert (
        compare_arms([run("x", 0, 1.0, 2.0)], flat, 2, pool_best=2.0)["measurements_to_match_ratio"] is None
    )


def test_an_arm_that_never_reaches_the_baseline_has_no_ratio() -> None:
    found = compare_arms([run("x", 0, 1.0, 1.0)], [run("baseline", 0, 1.0, 2.0)], 2, pool_best=2.0)
    assert found["measurements_to_match_ratio"] is None
    assert found["ci95"] is None and "too few seeds" in found["verdict"]


def test_the_summary_keeps_the_contract() -> None:
    runs = {"baseline": [run("baseline", 0, 1.0, 2.0)], "random": [run("random", 0, 1.0, 1.5)]}
    summary = summarise(runs, task="t", host="h", budget=2, pool_best=2.0)
    assert {"task", "host", "budget", "seeds", "pool_best_speedup", "arms", "comparison"} <= set(summary)
    assert summary["arms"]["random"] == {
        "best_speedup": [1.5],
        "measurements_used": [2],
        "curve": [[1.0, 1.5]],
        "candidates_considered": [2],
        "gpu_seconds": [0.0],
        "forecast_gpu_seconds": [0.0],
    }
    wanted = {"share_of_pool_best", "measurements_to_match_ratio", "worse_than_2pct_share", "ci95"}
    assert wanted <= set(summary["comparison"]["random"])


@pytest.mark.parametrize("name", ["baseline", "surrogate", "random", "oracle"])
def test_every_arm_spends_exactly_the_budget(pool: RecordedPool, tmp_path: Path, name: str) -> None:
    arms = {arm.name: arm for arm in build_arms([name], pool, SurrogateConfig(), tmp_path)}
    found = InProcessHost().run(pool, arms[name], 3, 25, tmp_path / "run")
    assert found.measurements_used == 25
    assert found.curve[0] == 1.0 and list(found.curve) == sorted(found.curve)
    assert found.candidates_considered >= 25


COUNTING = SurrogateConfig(budget=BudgetConfig(gpu_seconds=20.0, count_forecasting=True))


def paid_forecaster(*_: Any, **__: Any) -> ScriptedForecaster:
    """A forecaster at an eighth of a GPU-second for each candidate."""
    cost = ForecastCost(gpu_seconds=0.125)
    return ScriptedForecaster(lambda _: Forecast.from_weights([1.0] * 8, cost=cost))


def test_every_arm_gets_the_same_gpu_seconds_where_forecasting_counts(
    pool: RecordedPool, tmp_path: Path
) -> None:
    names = ["surrogate", "random"]
    arms = build_arms(names, pool, COUNTING, tmp_path, measurement_seconds=1.0)
    with patch("gpu_forecasters_plugin.compare.replay.build_forecaster", paid_forecaster):
        found = {arm.name: InProcessHost().run(pool, arm, 0, 40, tmp_path / arm.name) for arm in arms}
    assert (found["baseline"].gpu_seconds, found["baseline"].forecast_gpu_seconds) == (20.0, 0.0)
    for name in names:
        spent = found[name].gpu_seconds + found[name].forecast_gpu_seconds
        assert found[name].forecast_gpu_seconds >= 4.0 and 20.0 <= spent < 21.0
        assert found[name].measurements_used == found[name].gpu_seconds


def test_forecasting_that_counts_is_in_the_summary(pool: RecordedPool, tmp_path: Path, capsys: Any) -> None:
    setting: dict[str, Any] = {"host": "inprocess", "budget": 12, "seeds": 1, "arms": ["surrogate"]}
    summary = run_comparison(
        pool.source, surrogate=COUNTING, out=tmp_path, measurement_seconds=2.0, **setting
    )
    assert summary["budget_gpu_seconds"] == 20.0
    assert [arm["gpu_seconds"] for arm in summary["arms"].values()] == [[20.0], [20.0]]
    print_result(summary, tmp_path)
    assert "GPU-seconds of 20, measuring + forecasting, means: baseline 20 + 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"host": "openevolve", "surrogate": COUNTING}, "--host inprocess"),
        ({"measurement_seconds": 0.0}, "--measurement-seconds"),
        ({"measurement_seconds": float("nan")}, "--measurement-seconds"),
    ],
)
def test_seconds_that_mean_nothing_are_refused(
    pool: RecordedPool, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    setting = {"host": "inprocess", "budget": 12, "seeds": 1, "arms": [], "surrogate": SurrogateConfig()}
    with pytest.raises(ConfigError, match=says):
        run_comparison(pool.source, out=tmp_path, **(setting | change))


def test_a_filtered_search_is_told_device_and_shapes(pool: RecordedPool) -> None:
    shaped = replace(pool, shapes="rows=4")
    config = Arm("surrogate", SurrogateConfig()).seeded(0, 9, shaped)
    assert config is not None and (config.device, config.shapes) == ("none", "rows=4")
    own = Arm("surrogate", SurrogateConfig(device="H100", shapes="rows=5")).seeded(0, 9, shaped)
    assert own is not None and (own.device, own.shapes) == ("H100", "rows=5")


def test_a_search_is_the_same_for_the_same_seed_and_differs_for_another(
    pool: RecordedPool, tmp_path: Path
) -> None:
    arm = Arm("surrogate", SurrogateConfig())
    found = [InProcessHost().run(pool, arm, s, 30, tmp_path / str(i)) for i, s in enumerate([5, 5, 6])]
    assert found[0] == found[1]
    assert found[0].curve != found[2].curve


def test_the_oracle_arm_is_the_limit(pool: RecordedPool, tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in build_arms(["oracle"], pool, SurrogateConfig(), tmp_path)}
    runs = [InProcessHost().run(pool, arms["oracle"], s, 17, tmp_path / f"o{s}") for s in range(6)]
    plain = [InProcessHost().run(pool, arms["baseline"], s, 17, tmp_path / f"b{s}") for s in range(6)]
    assert sum(r.best_speedup for r in runs) > sum(r.best_speedup for r in plain)


def test_an_unknown_arm_host_task_or_budget_is_refused_in_one_line(tmp_path: Path) -> None:
    source = write_pool(tmp_path / "pool.jsonl")
    common: dict[str, Any] = {"seeds": 1, "surrogate": SurrogateConfig(), "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match="unknown arm 'magic'"):
        run_comparison(source, host="inprocess", budget=5, arms=["magic"], **common)
    with pytest.raises(ConfigError, match="no host 'nowhere'"):
        run_comparison(source, host="nowhere", budget=5, arms=["random"], **common)
    with pytest.raises(ConfigError, match="--budget is 2 to"):
        run_comparison(source, host="inprocess", budget=100_000, arms=["random"], **common)
    with pytest.raises(PoolFileError, match="no recorded task"):
        run_comparison("rmsnom", host="inprocess", budget=5, arms=["random"], **common)


@pytest.mark.slow
@pytest.mark.parametrize("name", recorded_task_names()[:: times(6, 1)])
def test_nothing_reads_a_time_of_a_recorded_task_before_it_was_paid_for(name: str, tmp_path: Path) -> None:
    task = load_task(name)
    first = decided(task, tmp_path / "as measured", budget=9)
    assert first == decided(scrambled(task), tmp_path / "scrambled", budget=9)
    assert any(score is not None for *_, score in first), "the forecaster must have had its say"


@pytest.mark.parametrize("name", recorded_task_names())
def test_a_recorded_task_is_what_it_promises(name: str) -> None:
    task = load_task(name)
    measured = [c for c in task.candidates.values() if c.outcome is Outcome.OK]
    speedups = [task.speedup(c.id) or 0.0 for c in measured]
    assert len(task.candidates) >= 150
    assert sum(s < 1.0 for s in speedups) / len(speedups) >= 1 / 3 - 0.01
    assert max(speedups) > 1.6  # over 2.5 but where the reference is a good one
    outcomes = {c.outcome for c in task.candidates.values()}
    assert {Outcome.INCORRECT, Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR} <= outcomes
    assert task.header["repeats"] >= 20 and task.header["agreement"]["spearman"] > 0.95
    assert "triton" in task.header["language_counts"]


def test_the_papers_operations_and_others_are_recorded_some_of_them_on_two_devices() -> None:
    tasks = {name: load_task(name) for name in recorded_names()}
    gated_delta_net = {"gdn_chunk_h", "gdn_chunk_o", "gdn_recompute_w_u"}
    assert {"trimul", "cross_entropy", "fp8_quant", *gated_delta_net} <= set(tasks)
    assert {"matmul_gelu", "attention_forward", "causal_conv1d", "row_cumsum"} <= set(tasks)
    assert sum(task.header["language_counts"].get("cuda", 0) > 30 for task in tasks.values()) >= 9
    for name in ("cross_entropy", "gdn_chunk_o"):
        here, there = tasks[name], tasks[f"{name}@h200"]
        assert here.device != there.device and here.reference.key == there.reference.key
        assert len(here.candidates.keys() & there.candidates.keys()) > 200


# -- an interrupted comparison ------------------------------------------------------------------------------------


def compare(pool: RecordedPool, out: Path, ended_after: int = 99, **change: Any) -> list[tuple[str, int]]:
    """Arms and seeds that are searched when a comparison is ended after so many searches."""
    searched: list[tuple[str, int]] = []

    def searches(host: str, source: Any, wanted: Any, budget: int, folder: Path, on_finished: Any) -> None:
        for arm, seed in wanted:
            if len(searched) == ended_after:
                raise KeyboardInterrupt
            searched.append((arm.name, seed))
            on_finished(ArmRun(arm.name, seed, (1.0,) * budget, budget, 1.5))

    setting = {"host": "inprocess", "budget": 5, "seeds": 2, "arms": ["random"]} | change
    surrogate = setting.pop("surrogate", SurrogateConfig())
    with patch("gpu_forecasters_plugin.compare.runner.run_searches", searches):
        with suppress(KeyboardInterrupt):
            run_comparison(pool.source, surrogate=surrogate, out=out, **setting)
    return searched


def test_the_same_command_goes_on_where_it_was_interrupted(pool: RecordedPool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert compare(pool, out, ended_after=1) == [("baseline", 0)]
    assert not (out / "summary.json").exists()
    assert compare(pool, out, ended_after=1) == [("random", 0)]
    assert compare(pool, out, seeds=3) == [("baseline", 1), ("random", 1), ("baseline", 2), ("random", 2)]
    arms = json.loads((out / "summary.json").read_text())["arms"]
    assert [arm["gpu_seconds"] for arm in arms.values()] == [[1.5] * 3] * 2
    assert sorted(path.name for path in out.iterdir()) == [".lock", "curves.png", "summary.json"]
    assert len(compare(pool, out, seeds=3)) == 6, "a comparison that has ended is no interrupted one"


@pytest.mark.parametrize("change", [{"budget": 6}, {"seeds": 1}])
def test_a_comparison_that_has_ended_is_not_overwritten_by_another(
    pool: RecordedPool, tmp_path: Path, change: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    compare(pool, out)
    before = (out / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=f"holds a finished comparison with {next(iter(change))}"):
        compare(pool, out, **change)
    assert (out / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [{"budget": 6}, {"surrogate": SurrogateConfig(keep_fraction=0.5)}, {"pool": True}, {"torn": True}],
)
def test_another_command_does_not_take_over_what_was_kept(
    pool: RecordedPool, tmp_path: Path, change: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    compare(pool, out, ended_after=2)
    if change.pop("pool", False):
        text = Path(pool.source).read_text()
        Path(pool.source).write_text(text.replace('"wrong sum"', '"wrong"').replace("40.0", "41.0"))
    if change.pop("torn", False):
        for kept in (out / "unfinished").iterdir():
            kept.write_text(kept.read_text()[:40])
    assert ("random", 0) in compare(load_pool(pool.source), out, **change)


# -- names and numbers that nobody expects ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "[bold]x[/bold]",
        "[/oops]",
        "$\\frac{",
        "a$_$b",
        ":smile:",
        "\u65e5\u672c \U0001f600",
        "\x1b[31m\ud800\n",
        "x" * 5000,
    ],
)
def test_a_task_may_be_named_anything(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"baseline": [run("baseline", 0, 1.0, 2.0)], "random": [run("random", 0, 1.0, 1.5)]}
    summary = summarise(runs, task=name, host="h", budget=2, pool_best=2.0)
    print_result(summary, tmp_path / name[:9])
    assert printable(name[:9]) in capsys.readouterr().out
    assert curves_image(runs, summary).startswith(b"\x89PNG")


def changed_pool(folder: Path, device: str, times: Sequence[float]) -> RecordedPool:
    """The toy task with another device, and these times in turn for all but the reference."""
    path = write_pool(folder / "pool.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["pool"]["device"] = device
    for index, row in enumerate(row for row in rows[2:] if row["outcome"] == "ok"):
        row["time_us"] = times[index % len(times)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_pool(path)


def test_extreme_times_are_compared_like_others(tmp_path: Path) -> None:
    pool = changed_pool(tmp_path, "none", [1e-6, 1e12])
    runs = {
        arm.name: [InProcessHost().run(pool, arm, 0, 20, tmp_path / arm.name)]
        for arm in build_arms(ARM_NAMES, pool, SurrogateConfig(), tmp_path)
    }
    summary = summarise(runs, task="t", host="h", budget=20, pool_best=pool.best_speedup)
    print_result(summary, tmp_path)
    assert curves_image(runs, summary).startswith(b"\x89PNG")


def test_a_device_may_be_named_anything(tmp_path: Path) -> None:
    pool = changed_pool(tmp_path, 'GPU """\\', [1.0])
    task = write_openevolve_task(pool.source, tmp_path / "task", api_base="http://x")
    compile(task.evaluator.read_text(), "evaluator.py", "exec")


def test_a_ledger_remembers_which_arm_it_served(pool: RecordedPool, tmp_path: Path) -> None:
    decided(pool, tmp_path / "run", budget=9)
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite3")
    identity = RunIdentity("toy", pool.reference.key, device=pool.device, forecaster="hedged-learned", seed=0)
    assert ledger.begin_run(replace(identity, task=pool.operation))
