from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from helpers import write_pool

from gpu_forecasters_plugin.compare.output import print_result, print_results
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.several import run_comparisons
from gpu_forecasters_plugin.compare.significance import LEVEL as FALSE_CLAIMS
from gpu_forecasters_plugin.compare.significance import fewest_pairs, holm, sign_flip_p_value
from gpu_forecasters_plugin.compare.statistics import gap_closed, summarise
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.recorded.pool import load_pool


def by_hand(differences: list[float]) -> float:
    """The test's definition, sign pattern by sign pattern."""
    found = abs(sum(differences))
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [abs(sum(s * d for s, d in zip(p, differences, strict=True))) for p in patterns]
    return sum(value >= found - 1e-12 for value in sums) / len(patterns)


@pytest.mark.parametrize("pairs", [1, 2, 5, 9])
def test_the_p_value_of_few_pairs_is_exact(pairs: int) -> None:
    chance = random.Random(pairs)
    differences = [chance.gauss(0.3, 1.0) for _ in range(pairs)]
    assert sign_flip_p_value(differences) == pytest.approx(by_hand(differences))


def test_the_p_value_of_many_pairs_agrees_with_the_exact_one() -> None:
    chance = random.Random(4)
    differences = [chance.gauss(0.35, 1.0) for _ in range(15)]  # one more than are tried exhaustively
    assert sign_flip_p_value(differences) == pytest.approx(by_hand(differences), abs=0.01)


def test_agreement_of_all_seeds_gives_the_smallest_p_value_and_no_difference_gives_one() -> None:
    assert sign_flip_p_value([0.1, 0.2, 0.3, 0.4, 0.5]) == 2 / 2**5
    assert sign_flip_p_value([-0.1] * 40) == 1 / 20_000
    assert sign_flip_p_value([0.0] * 30) == sign_flip_p_value([]) == 1.0
    assert sign_flip_p_value([0.2, -0.2]) == 1.0


def test_the_test_is_wrong_as_often_as_it_says() -> None:
    chance = random.Random(1)
    p_values = [sign_flip_p_value([chance.gauss(0.0, 1.0) for _ in range(10)]) for _ in range(400)]
    assert 0.02 < sum(p <= 0.05 for p in p_values) / 400 < 0.09


def test_holm_corrects_for_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001]) == pytest.approx([0.5, 0.002])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("tests", [1, 3, 20])
def test_so_many_seeds_are_needed_for_any_claim(tests: int) -> None:
    needed = fewest_pairs(tests)
    assert tests * sign_flip_p_value([1.0] * needed) <= FALSE_CLAIMS
    assert tests * sign_flip_p_value([1.0] * (needed - 1)) > FALSE_CLAIMS


def runs_of(name: str, factors: list[float]) -> list[ArmRun]:
    return [ArmRun(name, seed, (1.0, 2.0 * factor), 2, 0.0) for seed, factor in enumerate(factors)]


def summary_of(task: str, **arms: list[float]) -> dict[str, Any]:
    runs = {name: runs_of(name, factors) for name, factors in arms.items()}
    return summarise(runs, task=task, host="h", budget=2, pool_best=4.0)


LEVEL = [1.0] * 12
UP = [1.1 + 0.01 * seed for seed in range(12)]


def test_a_summary_has_the_corrected_test_beside_the_interval() -> None:
    found = summary_of("t", baseline=LEVEL, surrogate=UP, random=LEVEL, oracle=[2.0] * 12)["comparison"]
    assert found["surrogate"]["p_value"] == 2 / 2**12
    assert found["surrogate"]["p_value_holm"] == 3 * 2 / 2**12
    assert found["random"]["p_value_holm"] == 1.0
    assert found["surrogate"]["gap_closed"] == pytest.approx(0.155) and found["oracle"]["gap_closed"] == 1.0


def test_there_is_no_gap_to_close_without_an_oracle_or_beyond_it() -> None:
    runs = {"baseline": runs_of("baseline", LEVEL), "surrogate": runs_of("surrogate", UP)}
    assert gap_closed(runs, "surrogate") is None
    assert gap_closed(runs | {"oracle": runs_of("oracle", LEVEL)}, "surrogate") is None


def test_an_interval_that_the_corrected_test_does_not_bear_out_is_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(summary_of("t", baseline=LEVEL[:5], surrogate=UP[:5], random=UP[:5]), tmp_path)
    said = capsys.readouterr().out
    assert "better by its interval, but not by the paired test at 5% (corrected p 0.125)" in said
    assert "surrogate against random: no difference shown (ratio 1.000, paired test p 1.000)" in said
    assert (
        "note: with 5 seeds the paired test, corrected for 2 of them, cannot be passed at 5%, even if all agree; it "
        "takes 7" in " ".join(said.split())
    )
    print_result(summary_of("t", baseline=LEVEL[:5], surrogate=UP[:5], random=LEVEL[:5]), tmp_path)
    said = capsys.readouterr().out
    assert (
        "surrogate against random: better by its interval, but not by the paired test at 5% (ratio 1.120"
        in said
    )
    print_result(summary_of("t", baseline=LEVEL, surrogate=UP), tmp_path)
    assert "surrogate against baseline: better (corrected p <0.001)" in capsys.readouterr().out


# -- several tasks ----------------------------------------------------------------------------------------------------


def compared(tasks: list[str], out: Path, **arms: Any) -> dict[str, Any]:
    """Several toy tasks compared, each with the given factors per arm."""
    pool = load_pool(write_pool(out.parent / "pool.jsonl"))

    def one(task: str, **_: Any) -> dict[str, Any]:
        return summary_of(task, **{name: factors[tasks.index(task)] for name, factors in arms.items()})

    setting: dict[str, Any] = {"host": "inprocess", "budget": 9, "seeds": 12, "arms": list(arms)}
    with (
        patch("gpu_forecasters_plugin.compare.several.open_pool", lambda name: replace(pool, source=name)),
        patch("gpu_forecasters_plugin.compare.several.run_comparison", one),
    ):
        return run_comparisons(tasks, surrogate=SurrogateConfig(), out=out, **setting)


def test_several_tasks_are_one_family_of_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    down = [1 / factor for factor in UP]
    found = compared(
        ["a", "b"], tmp_path / "out", baseline=[LEVEL, LEVEL], surrogate=[UP, down], random=[LEVEL, LEVEL]
    )
    assert found["comparison"]["a"]["surrogate"]["p_value_holm"] == 4 * 2 / 2**12
    assert found["comparison"]["b"]["surrogate"]["significant"] == "worse"
    assert found["comparison"]["b"]["random"]["significant"] == "no"
    overall = found["across_tasks"]["surrogate"]
    assert (overall["better"], overall["worse"]) == (["a"], ["b"])
    assert overall["mean_ratio"] == pytest.approx(1.0) and overall["mean_at_least_baseline"] == ["a"]
    assert overall["measurements_to_match_ratio"] is None
    assert overall["gap_closed"] is None
    print_results(found, tmp_path)
    said = capsys.readouterr().out
    assert "2 tasks through inprocess" in said and "+1 -1 of 2" in said


def test_over_tasks_the_gap_is_that_of_the_logarithms_which_no_task_without_one_can_dominate(
    tmp_path: Path,
) -> None:
    twice, hardly = [2.0] * 12, [1.001] * 12
    found = compared(
        ["a", "b"],
        tmp_path / "out",
        baseline=[LEVEL, LEVEL],
        surrogate=[twice, [0.99] * 12],
        oracle=[twice, hardly],
    )
    assert found["comparison"]["b"]["surrogate"]["gap_closed"] == pytest.approx(-10.0)
    closed = math.log(2.0 * 0.99) / math.log(2.0 * 1.001)
    assert found["across_tasks"]["surrogate"]["gap_closed"] == pytest.approx(closed)
    assert found["across_tasks"]["oracle"]["gap_closed"] == 1.0


def test_what_cannot_be_compared_is_refused_before_the_first_task_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--task names a task twice: a, a"):
        compared(["a", "a"], tmp_path / "out", baseline=[LEVEL, LEVEL])
    with pytest.raises(ConfigError, match="unknown arm 'surogate'; did you mean 'surrogate'"):
        compared(["a", "b"], tmp_path / "out", surogate=[LEVEL, LEVEL])
    assert not (tmp_path / "out").exists()
