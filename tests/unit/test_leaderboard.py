from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks import leaderboard
from benchmarks.report import provenance
from benchmarks.search import correct_together, figures
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.statistics import summarise


def search_rows(task: str, **factors: float) -> list[dict[str, Any]]:
    """What a search benchmark has of a task: twelve seeds, arms so many times as fast as the baseline."""
    runs = {
        arm: [ArmRun(arm, seed, (1.0, 2.0 * factor), 2, 0.0) for seed in range(12)]
        for arm, factor in {"baseline": 1.0, **factors}.items()
    }
    return figures(summarise(runs, task=task, host="h", budget=2, pool_best=5.0), [2])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        *search_rows("a", weak=0.9, strong=1.5, oracle=2.0),
        *search_rows("b", weak=1.1, strong=1.2, oracle=2.0),
    ]
    correct_together(rows)
    document = {"host": "h", "seeds": 12, "budget": 2, "made": provenance(), "rows": rows}
    (tmp_path / "search_h.json").write_text(json.dumps(document))
    return tmp_path


def test_arms_stand_in_the_order_of_their_mean_ratio_over_all_tasks(results: Path) -> None:
    (board,) = leaderboard.boards(leaderboard.load_results(results)[0][0])
    assert [arm["arm"] for arm in board["arms"]] == ["oracle", "strong", "baseline", "weak"]
    strong = board["arms"][1]
    assert strong["mean_ratio"] == pytest.approx((1.5 * 1.2) ** 0.5)
    assert strong["smallest_mean_ratio"] == pytest.approx(1.2)
    assert strong["gap_closed"] == pytest.approx(math.log(1.5 * 1.2) / math.log(2.0 * 2.0))
    assert (strong["better"], strong["worse"]) == (["a", "b"], [])
    assert (board["arms"][3]["better"], board["arms"][3]["worse"]) == (["b"], ["a"])
    assert board["arms"][3]["measurements_to_match_ratio"] is None


def test_the_table_says_where_and_with_what_it_was_made(results: Path, tmp_path: Path) -> None:
    with patch("benchmarks.report.RESULTS", tmp_path / "out"):
        leaderboard.main(["--results", str(results)])
    text = (tmp_path / "out" / "leaderboard.md").read_text()
    made = provenance()
    assert f"Made {made['date']} on {made['machine']}, commit {made['commit']}" in text
    assert "| 1 | oracle | 2.000 |" in text and "python 3." in text
    assert json.loads((tmp_path / "out" / "leaderboard.json").read_text())[0]["host"] == "h"


def test_tests_of_one_budget_are_one_family() -> None:
    rows = [*search_rows("a", x=1.5, y=1.5), *search_rows("b", x=1.5, y=1.5)]
    correct_together(rows)
    assert {row["p_value_holm"] for row in rows if row["arm"] != "baseline"} == {4 * 2 / 2**12}


def test_results_that_do_not_say_where_they_were_made_are_left_out_and_named(
    results: Path, tmp_path: Path
) -> None:
    (results / "search_old.json").write_text("[]")
    found, left_out = leaderboard.load_results(results)
    assert len(found) == 1 and left_out == ["search_old.json"]
    with patch("benchmarks.report.RESULTS", tmp_path / "out"):
        leaderboard.main(["--results", str(results)])
    assert (
        "not say where they were made: search_old.json." in (tmp_path / "out" / "leaderboard.md").read_text()
    )


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run benchmarks.search first"):
        leaderboard.load_results(tmp_path)
    (tmp_path / "search_old.json").write_text("[]")
    with pytest.raises(SystemExit, match="run benchmarks.search first"):
        leaderboard.load_results(tmp_path)
