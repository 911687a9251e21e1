"""What every ledger keeps, whatever database it is in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.errors import LedgerIdentityError, UnknownDecisionError
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
)
from gpu_forecasters_plugin.ledger import DecisionDraft, Ledger, PoolDraft, RunIdentity, Worker
from gpu_forecasters_plugin.ledger.records import forecast_from_row
from gpu_forecasters_plugin.testing.samples import kernel

__all__ = ["LedgerContract"]

_IDENTITY = RunIdentity("sum", kernel(0).key, device="H100", forecaster="sample", seed=3)
_OK = Measurement(Outcome.OK, time_us=50.0, speedup=2.0, gpu_seconds=0.5, payload='{"a": 1}', value=2.0)


def _decide(
    ledger: Ledger, numbers: range, outcome: ForecastOutcome | None = None, action: Action = Action.MEASURE
) -> list[Decision]:
    """One pool of decisions."""
    candidates = [kernel(number) for number in numbers]
    drafts = [DecisionDraft(c.id, c.key, action, Reason.AUDIT, 0.5, 0.25, outcome, 0.125) for c in candidates]
    return ledger.record_pool(PoolDraft(len(candidates)), drafts, candidates)


class LedgerContract:
    """Override :meth:`open_ledger`.

    Attributes:
        password: the password in the database's URL; empty where there is none.
    """

    password = ""

    @pytest.fixture
    def open_ledger(self) -> Callable[[], Ledger]:
        """A function that opens the test's own database, which is new at the start of the test."""
        raise NotImplementedError("override the fixture open_ledger")

    @pytest.fixture
    def run(self, open_ledger: Callable[[], Ledger]) -> Ledger:
        """A ledger in which a run was begun."""
        ledger = open_ledger()
        ledger.begin_run(_IDENTITY)
        return ledger

    def test_a_run_is_begun_once_and_then_resumed(self, open_ledger: Callable[[], Ledger]) -> None:
        assert not open_ledger().begin_run(_IDENTITY, config={"seed": 3})
        assert open_ledger().begin_run(_IDENTITY, config={"seed": 3})
        assert [run["name"] for run in open_ledger().runs()] == ["run"]

    @pytest.mark.parametrize(
        "field", ["task", "reference_key", "device", "forecaster", "model", "prompt_hash", "seed"]
    )
    def test_a_resume_whose_identity_differs_names_the_field(
        self, run: Ledger, open_ledger: Callable[[], Ledger], field: str
    ) -> None:
        values = asdict(_IDENTITY) | {field: 4 if field == "seed" else "another"}
        with pytest.raises(LedgerIdentityError, match=field):
            open_ledger().begin_run(RunIdentity(**values))

    def test_no_password_is_shown_or_stored(self, run: Ledger) -> None:
        assert not self.password or self.password not in f"{run.url} {run.runs()}"

    def test_decisions_come_back_in_order_with_their_forecasts(self, run: Ledger) -> None:
        cost = ForecastCost(0.5, 100, 50, 7, 3, 0.25)
        forecast = Forecast.from_weights([1, 2, 3, 4, 4, 3, 2, 1], source="sample", cost=cost)
        failure = ForecastFailure(FailureKind.TIMEOUT, "a \x00 of \ud800 trouble", "sample", cost)
        decisions = [
            *_decide(run, range(1, 4), forecast),
            *_decide(run, range(4, 6), failure, Action.SKIP),
            *_decide(run, range(6, 7)),
        ]
        rows = run.decisions()
        assert [row["id"] for row in rows] == sorted(decision.id for decision in decisions)
        assert [row["pool_number"] for row in rows] == [0, 0, 0, 1, 1, 2]
        assert [forecast_from_row(row) for row in rows] == [*[forecast] * 3, *[failure] * 2, None]
        assert {(row["score"], row["confidence"], row["sampling_probability"]) for row in rows} == {
            (0.5, 0.25, 0.125)
        }
        assert run.pools() == 3

    def test_what_one_writes_another_reads(self, run: Ledger, open_ledger: Callable[[], Ledger]) -> None:
        other = open_ledger()
        other.follow_run(run.run_id)
        first, second = _decide(run, range(1, 3))
        assert run.charge(first.id, Worker.current())
        assert [charge.decision_id for charge in other.open_charges()] == [first.id]
        assert other.record_result(first.id, _OK) and not run.record_result(first.id, _OK)
        assert other.charge(second.id, Worker.current())
        assert run.budget_use().measurements == 2 and run.budget_use().open == 1
        (result,) = run.results_since(0)
        assert result.measurement == replace(_OK, payload=None)
        assert run.payload(first.id) == _OK.payload

    def test_sources_come_back_to_the_byte(self, run: Ledger) -> None:
        codes = [
            "x = '\x00'\n",
            "y = '\ud800'\n",
            "z = '\U0001f680 \u2028'\r\n",
            "\ufffejson:{}",
            "long = 1\n" * 20_000,
        ]
        candidates = [Candidate(f"c{index}", code) for index, code in enumerate(codes)]
        drafts = [DecisionDraft(c.id, c.key, Action.MEASURE, Reason.AUDIT) for c in candidates]
        for decision in run.record_pool(PoolDraft(len(codes)), drafts, candidates):
            run.charge(decision.id, Worker.current())
            run.record_result(decision.id, _OK)
        observed = [result.observation for result in run.results_since(0)]
        assert [seen.candidate_code for seen in observed if seen is not None] == codes

    def test_results_come_in_the_order_in_which_they_were_written(self, run: Ledger) -> None:
        decisions = _decide(run, range(1, 6))
        for decision in decisions:
            run.charge(decision.id, Worker.current())
        for decision in reversed(decisions):
            run.record_result(decision.id, _OK)
        results = run.results_since(0)
        assert [result.decision_id for result in results] == [d.id for d in reversed(decisions)]
        assert [result.revision for result in results] == [1, 2, 3, 4, 5]
        assert [result.revision for result in run.results_since(3)] == [4, 5]

    def test_competing_threads_never_charge_beyond_the_limit(
        self, run: Ledger, open_ledger: Callable[[], Ledger]
    ) -> None:
        ids = [decision.id for decision in _decide(run, range(1, 25))]
        charged: list[int] = []

        def compete(ledger: Ledger) -> None:
            ledger.follow_run(run.run_id)
            charged.extend(i for i in ids if ledger.charge(i, Worker.current(), limit=10))

        threads = [threading.Thread(target=compete, args=(open_ledger(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(charged) == len(set(charged)) == run.budget_use().measurements == 10

    def test_a_source_is_paid_for_once(self, run: Ledger) -> None:
        (first,) = _decide(run, range(1, 2))
        (again,) = _decide(run, range(1, 2))
        assert run.charge(first.id, Worker.current())
        assert not run.charge(first.id, Worker.current()) and not run.charge(again.id, Worker.current())
        run.record_result(first.id, _OK)
        assert not run.charge(again.id, Worker.current())
        assert run.budget_use().measurements == 1

    def test_only_decisions_to_measure_of_this_run_are_charged(self, run: Ledger) -> None:
        (skipped,) = _decide(run, range(1, 2), action=Action.SKIP)
        (measured,) = _decide(run, range(2, 3))
        for unknown in (skipped.id, measured.id + 1000):
            with pytest.raises(UnknownDecisionError):
                run.charge(unknown, Worker.current())
        with pytest.raises(UnknownDecisionError):
            run.record_result(measured.id, _OK)

    def test_a_provisional_result_is_replaced_and_a_late_one_has_no_time(self, run: Ledger) -> None:
        staged, overdue = _decide(run, range(1, 3))
        for decision in (staged, overdue):
            run.charge(decision.id, Worker.current())
        run.record_result(staged.id, _OK, provisional=True)
        assert run.record_result(staged.id, replace(_OK, speedup=3.0))
        run.record_result(overdue.id, Measurement(Outcome.TIMEOUT, gpu_seconds=9.0))
        assert run.record_result(overdue.id, _OK) and not run.record_result(overdue.id, _OK)
        found = {result.decision_id: result.measurement for result in run.results_since(0)}
        assert (found[staged.id].speedup, found[staged.id].gpu_seconds) == (3.0, 1.0)
        assert (found[overdue.id].outcome, found[overdue.id].time_us) == (Outcome.LATE, None)

    def test_two_runs_in_one_database_are_strangers(
        self, run: Ledger, open_ledger: Callable[[], Ledger]
    ) -> None:
        other = open_ledger()
        assert not other.begin_run(replace(_IDENTITY, task="another"), name="second")
        (decision,) = _decide(run, range(1, 2))
        run.charge(decision.id, Worker.current())
        run.record_result(decision.id, _OK)
        assert other.decisions() == [] and other.results_since(0) == [] and other.pools() == 0
        assert other.budget_use().measurements == 0
        with pytest.raises(UnknownDecisionError):
            other.charge(decision.id, Worker.current())
