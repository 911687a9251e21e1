from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import write_pool
from typer.testing import CliRunner

from gpu_forecasters_plugin.cli.app import app
from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.compare.arms import build_arms
from gpu_forecasters_plugin.compare.inprocess import InProcessHost
from gpu_forecasters_plugin.compare.kept import KeptRuns
from gpu_forecasters_plugin.compare.presets import PRESETS, check_arm_names, presets_for
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.decision import Reason
from gpu_forecasters_plugin.errors import ConfigError, ForecasterError
from gpu_forecasters_plugin.forecast import Forecast, Observation, Query
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.frozen import FrozenForecaster
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool

CONFIGURED = parse_surrogate_config(
    {
        "forecaster": {
            "kind": "mixture",
            "experts": [
                {"kind": "random"},
                {"kind": "recalibrated", "forecaster": {"kind": "random", "learn": False}},
            ],
        },
        "keep_fraction": 0.5,
        "audit_fraction": 0.5,
        "deferral": {"threshold": 0.6},
    }
)


@pytest.fixture
def pool(tmp_path: Path) -> RecordedPool:
    return load_pool(write_pool(tmp_path / "pool.jsonl"))


def section(name: str, pool: RecordedPool, folder: Path, **more: Any) -> SurrogateConfig:
    """The configuration of one arm."""
    (arm,) = (arm for arm in build_arms([name], pool, CONFIGURED, folder, **more) if arm.name == name)
    assert arm.config is not None
    return arm.config


def reasons(name: str, pool: RecordedPool, folder: Path) -> set[str]:
    """Why candidates were measured in a search of an arm, the reference apart."""
    (arm,) = (arm for arm in build_arms([name], pool, CONFIGURED, folder) if arm.name == name)
    InProcessHost().run(pool, arm, 0, 17, folder / "run")
    ledger = LedgerReader(folder / "run" / "ledger.sqlite3")
    ledger.follow_run(1)
    rows = ledger.decisions()[1:]
    ledger.close()
    return {row["reason"] for row in rows if row["action"] == "measure"}


def forecasts_for(pool: RecordedPool, path: Path) -> Path:
    rows = [{"candidate_key": c.key, "probabilities": [1.0] * 8} for c in pool.candidates.values()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", [name for name in presets_for(CONFIGURED) if name != "replay"])
def test_every_arm_searches(name: str, pool: RecordedPool, tmp_path: Path) -> None:
    (arm,) = (arm for arm in build_arms([name], pool, CONFIGURED, tmp_path) if arm.name == name)
    found = InProcessHost().run(pool, arm, 1, 9, tmp_path / "run")
    assert found.measurements_used == 9


def test_the_papers_policy_is_the_top_quarter_by_expected_bin_and_nothing_else(
    pool: RecordedPool, tmp_path: Path
) -> None:
    paper = section("paper", pool, tmp_path)
    assert (paper.keep_fraction, paper.ranking, paper.anchor, paper.oversample) == (
        0.25,
        "expected_bin",
        "reference",
        4,
    )
    assert paper.forecaster.experts == CONFIGURED.forecaster.experts
    assert not paper.forecaster.hedge and not paper.forecaster.learn
    assert reasons("paper", pool, tmp_path) == {Reason.TOP_FRACTION}


def test_the_top_quarter_ranks_as_configured_and_defers_nothing(pool: RecordedPool, tmp_path: Path) -> None:
    top = section("top_quarter", pool, tmp_path)
    assert (top.keep_fraction, top.ranking, top.forecaster) == (
        0.25,
        CONFIGURED.ranking,
        CONFIGURED.forecaster,
    )
    assert reasons("top_quarter", pool, tmp_path) == {Reason.TOP_FRACTION}


def test_deferral_without_ranking_and_ranking_without_deferral(pool: RecordedPool, tmp_path: Path) -> None:
    deferral = section("deferral_only", pool, tmp_path)
    assert (deferral.ranking, deferral.deferral.share, deferral.deferral.threshold) == ("random", 1.0, 0.6)
    assert Reason.UNCERTAIN in reasons("deferral_only", pool, tmp_path / "only")
    assert Reason.UNCERTAIN not in reasons("no_deferral", pool, tmp_path / "none")


def test_each_ranking_rule_and_each_expert_is_an_arm(pool: RecordedPool, tmp_path: Path) -> None:
    names = presets_for(CONFIGURED)
    assert {"rank_expected_log2", "rank_thompson", "rank_p_better", "rank_upper_quantile"} <= set(names)
    experts = [name for name in names if name.startswith("expert_")]
    assert experts == ["expert_random", "expert_recalibrated", "expert_climatology"]
    alone = section("expert_recalibrated", pool, tmp_path).forecaster
    assert (alone.kind, alone.hedge) == ("recalibrated", False)
    assert section("rank_thompson", pool, tmp_path).ranking == "thompson"


def test_two_experts_of_a_kind_are_two_arms() -> None:
    experts = [{"kind": "replay", "path": "a.jsonl"}, {"kind": "replay", "path": "b.jsonl"}]
    config = parse_surrogate_config({"forecaster": {"kind": "mixture", "experts": experts}})
    assert {"expert_replay", "expert_replay_2"} <= set(presets_for(config))


def test_recorded_forecasts_are_replayed(pool: RecordedPool, tmp_path: Path) -> None:
    path = forecasts_for(pool, tmp_path / "forecasts.jsonl")
    replay = section("replay", pool, tmp_path, forecasts=path)
    assert (replay.forecaster.kind, replay.forecaster.path) == ("replay", str(path))
    assert replay.audit_fraction == CONFIGURED.audit_fraction
    summary = run_comparison(
        pool.source,
        host="inprocess",
        budget=5,
        seeds=1,
        arms=["replay"],
        surrogate=SurrogateConfig(),
        out=tmp_path / "out",
        forecasts=path,
    )
    assert summary["arms"]["replay"]["measurements_used"] == [5]


def test_forecasts_that_cannot_be_replayed_are_refused(pool: RecordedPool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --forecasts FILE"):
        section("replay", pool, tmp_path)
    with pytest.raises(ForecasterError, match="nowhere.jsonl"):
        section("replay", pool, tmp_path, forecasts=tmp_path / "nowhere.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"candidate_key": "x", "probabilities": [1.0] * 8}) + "\n")
    with pytest.raises(ConfigError, match="a forecast for none of the 48 kernels of toy"):
        section("replay", pool, tmp_path, forecasts=other)


def test_searches_with_other_forecasts_are_not_taken_over(pool: RecordedPool, tmp_path: Path) -> None:
    path = forecasts_for(pool, tmp_path / "forecasts.jsonl")
    _, arm = build_arms(["replay"], pool, SurrogateConfig(), tmp_path, forecasts=path)
    found = InProcessHost().run(pool, arm, 0, 5, tmp_path / "run")
    KeptRuns(tmp_path, pool, "inprocess", 5).keep(arm, found)
    assert KeptRuns(tmp_path, pool, "inprocess", 5).find(arm, 0) == found
    path.write_text(path.read_text().replace("[1.0,", "[2.0,"))
    assert KeptRuns(tmp_path, pool, "inprocess", 5).find(arm, 0) is None


def test_a_wrong_name_is_told_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="unknown arm 'papr'; did you mean 'paper'.*rank_thompson"):
        check_arm_names(["baseline", "papr"], SurrogateConfig())


def test_help_lists_every_arm() -> None:
    said = CliRunner().invoke(app, ["compare", "--help"]).output
    assert [preset.name for preset in PRESETS if preset.name not in said] == []
    assert "rank_RULE" in said and "thompson" in said and "expert_KIND" in said


def test_gpu_seconds_limit_every_arm_with_and_without_forecasting(pool: RecordedPool, tmp_path: Path) -> None:
    section = parse_surrogate_config({"budget": {"gpu_seconds": 7.0}})
    arms = build_arms(["random"], pool, section, tmp_path, measurement_seconds=1.0)
    assert [InProcessHost().run(pool, arm, 0, 40, tmp_path / arm.name).gpu_seconds for arm in arms] == [
        7.0,
        7.0,
    ]


def test_a_frozen_forecaster_is_told_of_nothing() -> None:
    told: list[int] = []

    class Noting(ScriptedForecaster):
        def observe(self, observations: Any) -> None:
            told.append(len(observations))

    inner = Noting(lambda _: Forecast.from_weights([1.0] * 8))
    frozen = FrozenForecaster(inner)
    frozen.observe([])
    assert told == [] and frozen.name == f"frozen-{inner.name}"
    assert frozen.forecast([Query("k", "x", "y", "y")]) == inner.forecast([Query("k", "x", "y", "y")])


def test_learn_false_keeps_a_configured_forecaster_from_learning() -> None:
    seen = [Observation(f"k{i}", f"x = {i}\n", 4.0) for i in range(20)]
    query = Query("k", "x", "y", "y")
    answers = []
    for learn in (True, False):
        config = parse_surrogate_config({"forecaster": {"kind": "climatology", "learn": learn}}).forecaster
        forecaster = build_forecaster(config)
        before = forecaster.forecast([query])
        forecaster.observe(seen)
        answers.append(forecaster.forecast([query]) == before)
    assert answers == [False, True]
