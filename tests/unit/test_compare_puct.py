from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers import write_pool

from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.compare.arms import Arm, build_arms
from gpu_forecasters_plugin.compare.inprocess import InProcessHost
from gpu_forecasters_plugin.compare.puct import MaxRewardPuct, PuctHost
from gpu_forecasters_plugin.compare.records import ArmRun, CompareHost
from gpu_forecasters_plugin.compare.replay import Archive
from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.decision import Action
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_pool
from gpu_forecasters_plugin.recorded.proposer import RecordedProposer

SECTION = SurrogateConfig(forecaster=ForecasterConfig(kind="climatology"))


@pytest.fixture
def pool(tmp_path: Path) -> RecordedPool:
    return load_pool(write_pool(tmp_path / "pool.jsonl"))


def archive(**measured: float | None) -> Archive:
    """What was measured, the first one first; names below are children of the one that they begin with."""
    found = Archive()
    for name, speedup in measured.items():
        found.measured[name] = speedup
        if len(name) > 1:
            found.parent_of[name] = name[:-1]
    return found


# -- the formula ------------------------------------------------------------------------------------------------------


def test_the_score_is_that_of_the_formula() -> None:
    puct = MaxRewardPuct()
    seen = archive(a=1.0, ab=3.0, ac=2.0, ad=None)
    puct.visits.update({"a": 2, "ab": 1})
    puct.expansions = 3
    # scale 2, sqrt(1 + 3) = 2; priors 3/6, 2/6, 1/6 by rank: ab, ac, a
    assert puct.scores(seen) == pytest.approx(
        {"ab": 3.0 + 2 * 2 * 3 / 6 / 2, "ac": 2.0 + 2 * 2 * 2 / 6 / 1, "a": 3.0 + 2 * 2 * 1 / 6 / 3}
    )


def test_a_visit_counts_for_all_that_a_kernel_descends_from() -> None:
    puct = MaxRewardPuct()
    assert puct.parents(archive(a=1.0, ab=2.0, abc=4.0), 0) == ["abc", "ab"]
    assert puct.visits == Counter(a=2, ab=2, abc=1) and puct.expansions == 2


def test_a_kernel_without_offspring_loses_to_others_as_it_is_tried_again() -> None:
    puct = MaxRewardPuct(exploration=5.0)
    seen = archive(a=1.0, b=1.1, c=1.2)
    chosen = [name for step in range(6) for name in puct.parents(seen, step)]
    assert set(chosen) == {"a", "b", "c"} and chosen[0] == "c"


def test_the_only_kernel_is_the_only_parent_and_failures_are_none() -> None:
    assert MaxRewardPuct().parents(archive(a=1.0, ab=None), 0) == ["a"]


# -- the host ---------------------------------------------------------------------------------------------------------


def search(pool: RecordedPool, folder: Path, name: str, budget: int) -> tuple[ArmRun, list[list[str]]]:
    """A search, and the parents of its steps."""
    (arm,) = (arm for arm in build_arms([name], pool, SECTION, folder) if arm.name == name)
    steps: list[list[str]] = []
    parents = MaxRewardPuct.parents

    def noting(self: MaxRewardPuct, archive: Archive, step: int) -> list[str]:
        steps.append(parents(self, archive, step))
        return steps[-1]

    with patch.object(MaxRewardPuct, "parents", noting):
        found = PuctHost().run(pool, arm, 2, budget, folder / name)
    return found, steps


@pytest.mark.parametrize("name", ["baseline", "surrogate", "paper", "random", "oracle"])
def test_a_step_measures_exactly_four_children_of_each_parent(
    name: str, pool: RecordedPool, tmp_path: Path
) -> None:
    found, steps = search(pool, tmp_path, name, budget=1 + 4 + 2 * 8)
    assert [len(step) for step in steps] == [1, 2, 2]  # at first there is the reference alone
    assert found.measurements_used == 21
    if name != "baseline":
        ledger = LedgerReader(tmp_path / name / "ledger.sqlite3")
        ledger.follow_run(1)
        rows = [row for row in ledger.decisions() if row["parent_key"] is not None]
        measured = [row for row in rows if row["action"] == Action.MEASURE]
        wanted = [pool.candidates[parent].key for step in steps for parent in step]
        assert set(Counter(row["parent_key"] for row in measured).values()) <= {4, 8, 12}
        assert Counter(row["parent_key"] for row in measured) == Counter(wanted * 4)
        assert len(rows) == 5 * 16


def test_a_budget_that_ends_within_a_step_is_spent_exactly(pool: RecordedPool, tmp_path: Path) -> None:
    for name in ("baseline", "surrogate"):
        assert search(pool, tmp_path, name, budget=11)[0].measurements_used == 11


def test_what_was_not_measured_is_no_parent_and_nothing_is_measured_twice(
    pool: RecordedPool, tmp_path: Path
) -> None:
    _, steps = search(pool, tmp_path, "surrogate", budget=29)
    ledger = LedgerReader(tmp_path / "surrogate" / "ledger.sqlite3")
    ledger.follow_run(1)
    measured = [row["candidate_key"] for row in ledger.decisions() if row["outcome"] is not None]
    assert len(measured) == len(set(measured)) == 29
    assert {pool.candidates[name].key for step in steps for name in step} <= set(measured)


def test_the_papers_search_is_a_host_by_its_name(pool: RecordedPool, tmp_path: Path) -> None:
    setting = {"host": "puct", "budget": 13, "seeds": 2, "arms": ["paper"], "surrogate": SECTION}
    summary = run_comparison(pool.source, out=tmp_path / "out", **setting)  # type: ignore[arg-type]
    assert summary["host"] == "puct"
    assert summary["arms"]["paper"]["measurements_used"] == [13, 13]


# -- the same proposals for every arm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [InProcessHost(), PuctHost()], ids=["inprocess", "puct"])
def test_arms_with_the_same_seed_are_offered_the_same_stream_of_each_parent(
    host: CompareHost, pool: RecordedPool, tmp_path: Path
) -> None:
    streams: dict[str, dict[str, list[str]]] = {}
    offer = RecordedProposer.next_child
    for arm in build_arms(["surrogate", "random"], pool, SECTION, tmp_path):
        offered = streams.setdefault(arm.name, {})

        def noting(self: RecordedProposer, parent: str, seen: dict[str, list[str]] = offered) -> str:
            child = offer(self, parent)
            seen.setdefault(parent, []).append(child)
            return child

        with patch.object(RecordedProposer, "next_child", noting):
            host.run(pool, arm, 3, 25, tmp_path / arm.name, lambda done: None)
    shared = set()
    for one, other in combinations(streams.values(), 2):
        for parent in one.keys() & other.keys():
            shared.add(parent)
            length = min(len(one[parent]), len(other[parent]))
            assert one[parent][:length] == other[parent][:length]
    assert pool.reference_id in shared and len(shared) > 1


def test_another_seed_is_another_stream(pool: RecordedPool, tmp_path: Path) -> None:
    arm = Arm("baseline", None)
    curves = {PuctHost().run(pool, arm, seed, 20, tmp_path).curve for seed in range(4)}
    assert len(curves) > 1
