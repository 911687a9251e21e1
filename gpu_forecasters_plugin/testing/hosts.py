"""What every adapter of a host keeps."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.decision import Action, Reason
from gpu_forecasters_plugin.ledger.reader import LedgerReader
from gpu_forecasters_plugin.recorded.evaluator import CALL_LOG_VARIABLE
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.testing.samples import write_sample_pool

__all__ = ["HostContract", "HostHarness"]

Row = dict[str, Any]


class HostHarness(ABC):
    """Runs a host with the filter on a recorded task, as its users would."""

    @abstractmethod
    def run(self, folder: Path, pool: Path, config: SurrogateConfig) -> None:
        """Run the host until the budget is spent; a second call in the same folder resumes the run.

        The evaluator is :func:`~gpu_forecasters_plugin.recorded.evaluator.evaluate_program_file`, wherever the host
        runs evaluators; it logs its calls by itself where the environment variable says so, which has to reach it.

        Args:
            folder: the run's own folder, which exists.
            pool: pool file of the recorded task; its reference is the initial program.
            config: the ``surrogate:`` section, budget included.
        """

    @abstractmethod
    def ledger(self, folder: Path) -> str | Path:
        """Where the run's ledger is."""

    @abstractmethod
    def population(self, folder: Path) -> Iterable[str]:
        """Source of every program that the host has kept: parents of today and of tomorrow."""


@dataclass(frozen=True)
class _Seen:
    """What a run has left behind.

    Attributes:
        calls: the evaluator's own log, first call first.
        decisions: the ledger's.
        charged_at: when the budget was charged, by candidate key.
        population: keys of the host's programs.
        events: what an observer was told, by this run and those before it.
    """

    calls: list[Row]
    decisions: list[Row]
    charged_at: dict[str, float]
    population: set[str]
    events: list[Row]


class HostContract:
    """Set ``harness``. The host runs twice, in all: with a budget, and again with a larger one.

    Attributes:
        harness: the host.
        budget: measurements of the first run, the initial program's included.
        larger_budget: of the second.
    """

    harness: HostHarness
    budget = 8
    larger_budget = 11

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[_Seen, _Seen]:
        """What the first and the second run have left behind."""
        folder = tmp_path_factory.mktemp("host")
        pool = write_sample_pool(folder / "pool.jsonl")
        calls = folder / "calls.jsonl"
        seen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CALL_LOG_VARIABLE, str(calls))
            for budget in (cls.budget, cls.larger_budget):
                cls.harness.run(folder, pool, cls._config(budget, folder / "events.jsonl"))
                seen.append(cls._look(folder, calls))
        return seen[0], seen[1]

    @pytest.fixture(scope="class")
    @classmethod
    def pool_outcomes(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        """Recorded outcome by candidate key."""
        pool = load_pool(write_sample_pool(tmp_path_factory.mktemp("pool") / "pool.jsonl"))
        return {candidate.key: str(candidate.outcome) for candidate in pool.candidates.values()}

    @staticmethod
    def _config(budget: int, events: Path) -> SurrogateConfig:
        section: dict[str, Any] = {
            "forecaster": {"kind": "random"},
            "budget": {"measurements": budget},
            "device": "none",
        }
        section["observers"] = [{"kind": "jsonl", "path": str(events)}]
        # Long enough for full pools on a slow machine: of smaller ones, more would be measured.
        return parse_surrogate_config({**section, "pool": {"max_wait_s": 60.0}, "seed": 5})

    @classmethod
    def _look(cls, folder: Path, calls: Path) -> _Seen:
        reader = LedgerReader(cls.harness.ledger(folder))
        (run,) = reader.runs()
        reader.follow_run(run["id"])
        assert reader.open_charges() == [], "a measurement was begun and never ended"
        decisions = reader.decisions()
        reader.close()
        rows = [json.loads(line) for line in calls.read_text().splitlines()]
        measured = [row for row in decisions if row["outcome"] is not None]
        charged = {row["candidate_key"]: row["created_at"] for row in measured}
        population = {source_key(code) for code in cls.harness.population(folder)}
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        return _Seen(rows, decisions, charged, population, events)

    def test_the_budget_is_spent_exactly(self, runs: tuple[_Seen, _Seen]) -> None:
        for seen, budget in zip(runs, (self.budget, self.larger_budget), strict=True):
            assert len(seen.calls) == budget
            assert sum(row["outcome"] is not None for row in seen.decisions) == budget

    def test_every_decision_is_in_the_ledger_before_its_dispatch(self, runs: tuple[_Seen, _Seen]) -> None:
        for seen in runs:
            for call in seen.calls:
                assert seen.charged_at[call["key"]] <= call["time"]
            for row in seen.decisions:
                assert row["outcome"] is None or row["action"] == Action.MEASURE

    def test_more_is_proposed_than_measured(self, runs: tuple[_Seen, _Seen]) -> None:
        assert len(runs[0].decisions) > 2 * self.budget
        assert Counter(row["action"] for row in runs[0].decisions)[Action.SKIP] > self.budget

    def test_what_was_not_measured_is_not_in_the_population(self, runs: tuple[_Seen, _Seen]) -> None:
        for seen in runs:
            assert len(seen.population) > 1
            assert seen.population <= {call["key"] for call in seen.calls}

    def test_no_source_is_measured_twice_nor_after_a_resume(self, runs: tuple[_Seen, _Seen]) -> None:
        first, second = runs
        keys = [call["key"] for call in second.calls]
        assert len(keys) == len(set(keys))
        assert keys[: len(first.calls)] == [call["key"] for call in first.calls]
        assert [row["id"] for row in second.decisions[: len(first.decisions)]] == [
            row["id"] for row in first.decisions
        ]

    def test_duplicates_are_answered_and_not_measured(self, runs: tuple[_Seen, _Seen]) -> None:
        rows = runs[1].decisions
        decided = {row["candidate_key"] for row in rows if row["reason"] != Reason.DUPLICATE}
        for row in rows:
            if row["reason"] == Reason.DUPLICATE:
                assert row["action"] == Action.SKIP and row["outcome"] is None
                assert row["candidate_key"] in decided

    def test_an_observer_is_told_of_every_decision_and_measurement(self, runs: tuple[_Seen, _Seen]) -> None:
        for seen in runs:
            told = Counter(event["event"] for event in seen.events)
            assert told["measurement"] == len(seen.calls) and told["decision"] == len(seen.decisions)
            assert told["run_started"] == told["run_ended"]

    def test_outcomes_are_the_evaluators_own(
        self, runs: tuple[_Seen, _Seen], pool_outcomes: dict[str, str]
    ) -> None:
        for row in runs[1].decisions:
            if row["outcome"] is not None:
                assert row["outcome"] == pool_outcomes[row["candidate_key"]]
                assert (row["time_us"] is not None) == (row["outcome"] == "ok")
