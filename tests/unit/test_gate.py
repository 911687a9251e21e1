from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import (
    by_number,
    candidate,
    failed,
    measure_all,
    measured,
    number_of,
    open_gate,
    source,
    surrogate,
)

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.decision import Decision, Outcome, Reason
from gpu_forecasters_plugin.errors import (
    GateError,
    LedgerIdentityError,
    UnknownDecisionError,
)
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters import Forecaster, InvertedForecaster, ScriptedForecaster
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity, Worker

FOLLOW = {"audit_fraction": 0.0, "guard": {"enabled": False}}
GREEDY = surrogate(**FOLLOW, deferral={"threshold": None})


def pool(start: int, size: int = 8) -> list[Candidate]:
    return [candidate(number) for number in range(start, start + size)]


def reasons(decisions: Sequence[Decision]) -> dict[str, Reason]:
    return {decision.candidate_id: decision.reason for decision in decisions}


# -- ask ----------------------------------------------------------------------------------------------------


def test_the_best_by_forecast_are_measured_in_the_order_of_asking(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=GREEDY)
    decisions = gate.ask(pool(8))
    assert [decision.candidate_id for decision in decisions] == [f"c{number}" for number in range(8, 16)]
    assert [decision.candidate_id for decision in decisions if decision.measure] == ["c14", "c15"]
    assert {d.reason for d in decisions} == {Reason.TOP_FRACTION, Reason.NOT_SELECTED}


def test_decisions_are_in_the_ledger_with_everything_they_rest_on(ledger: Ledger) -> None:
    decisions = open_gate(ledger, config=GREEDY).ask(pool(8))
    rows = {row["id"]: row for row in ledger.decisions()}
    for decision in decisions:
        row = rows[decision.id]
        assert (row["candidate_id"], row["candidate_key"], row["pool_id"]) == (
            decision.candidate_id,
            decision.candidate_key,
            decision.pool_id,
        )
        assert (row["action"], row["reason"], row["score"]) == (
            decision.action.value,
            decision.reason.value,
            decision.score,
        )
        assert isinstance(decision.forecast, Forecast)
        assert decision.confidence == decision.forecast.confidence("max_prob")


def test_a_query_says_what_the_candidate_is_compared_with(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    identity = RunIdentity("softmax", candidate(0).key, device="H100")
    gate = open_gate(ledger, forecaster, config=surrogate(anchor="incumbent"), identity=identity)
    measure_all(gate, gate.ask([candidate(3)]), speedup=2.0)
    gate.ask([Candidate("child", source(4), parent_code=source(3))])
    first, second = forecaster.queries
    assert (first.anchor_code, first.anchor_speedup, first.reference_code) == (source(0), 1.0, source(0))
    assert (second.anchor_code, second.anchor_speedup, second.reference_code) == (source(3), 2.0, source(0))
    assert (second.task, second.device, second.parent_code) == ("softmax", "H100", source(3))


def test_a_query_says_what_the_times_are_of_and_how_long_the_reference_takes(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster, config=surrogate(shapes="rows=4096"))
    measure_all(gate, gate.ask([candidate(1), candidate(0)]))
    gate.ask([candidate(2)])
    first, second = forecaster.queries
    assert (first.shapes, first.reference_time_us) == ("rows=4096", None)
    assert (second.shapes, second.reference_time_us) == ("rows=4096", 100.0)


def test_a_run_is_known_by_its_forecasters_model_and_prompts(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    forecaster.model, forecaster.prompt_hash = "small", "abc"
    identity = open_gate(ledger, forecaster, config=surrogate(device="H100")).identity
    assert (identity.forecaster, identity.model, identity.prompt_hash) == ("scripted", "small", "abc")
    assert identity.device == "H100"


def test_nothing_to_decide_is_no_pool(ledger: Ledger) -> None:
    assert open_gate(ledger).ask([]) == []
    assert ledger.pools() == 0


def test_ids_within_a_pool_are_distinct(ledger: Ledger) -> None:
    with pytest.raises(GateError, match="same id"):
        open_gate(ledger).ask([candidate(1, "x"), candidate(2, "x")])


def test_the_reference_is_measured_first_and_never_forecast(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster, config=surrogate(budget={"measurements": 1}))
    decisions = gate.ask([*pool(1, 4), candidate(0)])
    assert [d.candidate_id for d in decisions if d.measure] == ["c0"]
    assert decisions[-1].reason is Reason.WARM_UP and decisions[-1].forecast is None
    assert forecaster.queries == []
    assert gate.reference_measurement() is None
    measure_all(gate, decisions)
    assert gate.reference_measurement() == measured(1.0)


@pytest.mark.parametrize("code", ["", "# nothing\n", "x = '\ud800'", "x" * 600_000])
def test_what_cannot_be_a_kernel_is_neither_forecast_nor_measured(ledger: Ledger, code: str) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    decisions = gate.ask([Candidate("bad", code), *pool(1, 3)])
    assert decisions[0].reason is Reason.INVALID_SOURCE and not decisions[0].measure
    assert len(forecaster.queries) == 3
    assert len([d for d in decisions if d.measure]) == 1


def test_programs_that_the_search_starts_from_are_all_measured(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster, config=surrogate(budget={"measurements": 5}))
    found = reasons(gate.ask([candidate(0), *pool(1, 6)], measure_all=True))
    assert Counter(found.values()) == {Reason.WARM_UP: 5, Reason.BUDGET_SPENT: 2}
    assert found["c0"] is Reason.WARM_UP and forecaster.queries == []


def test_forecasts_are_not_followed_before_the_warm_up_is_measured(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(**FOLLOW, warm_up=2))
    decisions = gate.ask(pool(8))
    assert {d.reason for d in decisions if d.measure} == {Reason.WARM_UP}
    measure_all(gate, decisions)
    assert {d.reason for d in gate.ask(pool(16)) if d.measure} == {Reason.TOP_FRACTION}


def test_the_confidence_is_the_configured_one(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(deferral={"confidence": "top2_margin", "threshold": 0.95}))
    decision = gate.ask([candidate(5)])[0]
    assert isinstance(decision.forecast, Forecast)
    assert decision.confidence == decision.forecast.confidence("top2_margin")


# -- duplicates -----------------------------------------------------------------------------------------------


def test_a_source_is_decided_once_within_a_pool(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    twin = Candidate("twin", source(5) + "\n# the same\n")
    found = gate.ask([candidate(5), twin])
    assert [decision.reason for decision in found].count(Reason.DUPLICATE) == 1
    assert len(forecaster.queries) == 1
    assert len([decision for decision in found if decision.measure]) == 1


def test_a_source_in_flight_is_not_measured_again(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    first = gate.ask([candidate(5)])[0]
    reserved = gate.ask([candidate(5, "later")])[0]
    gate.start(first.id)
    running = gate.ask([candidate(5, "latest")])[0]
    for duplicate in (reserved, running):
        assert (duplicate.reason, duplicate.measure, duplicate.answer) == (Reason.DUPLICATE, False, None)
    assert gate.in_flight(first.candidate_key)
    gate.tell(first.id, measured(1.5))
    assert not gate.in_flight(first.candidate_key)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.OK, Outcome.INFRASTRUCTURE}))
def test_an_earlier_failure_answers_for_the_same_source(ledger: Ledger, outcome: Outcome) -> None:
    gate = open_gate(ledger)
    gate.tell(gate.ask([candidate(5)])[0].id, failed(outcome))
    again = gate.ask([candidate(5, "again")])[0]
    assert again.reason is Reason.DUPLICATE and again.answer == failed(outcome)


def test_an_earlier_measurement_answers_with_its_payload(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    gate.tell(gate.ask([candidate(5)])[0].id, replace(measured(1.5), payload='{"evaluate": 1}'))
    again = gate.ask([candidate(5, "again")])[0]
    assert again.answer is not None and again.answer.payload == '{"evaluate": 1}'
    assert gate.answer(again.candidate_key) == again.answer
    assert ledger.budget_use().measurements == 1


def test_after_an_infrastructure_failure_a_source_is_measured_again(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    first = gate.ask([candidate(5)])[0]
    gate.tell(first.id, failed(Outcome.INFRASTRUCTURE))
    second = gate.ask([candidate(5, "again")])[0]
    assert second.measure
    gate.tell(second.id, measured(1.5))
    gate.tell(first.id, measured(3.0))  # the one given up answers after all
    assert gate.answer(second.candidate_key) == measured(1.5)
    assert gate.best_speedup == 1.5


# -- budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["within_quota", "on_top"])
@pytest.mark.parametrize("budget", [1, 3, 10])
def test_the_budget_in_measurements_is_spent_exactly(ledger: Ledger, mode: str, budget: int) -> None:
    forecaster = ScriptedForecaster(lambda query: [1.0] * 8)
    config = surrogate(budget={"measurements": budget}, deferral={"mode": mode, "threshold": 1.0})
    gate = open_gate(ledger, forecaster, config=config)
    for round_ in range(8):
        measure_all(gate, gate.ask(pool(1 + 8 * round_)))
    assert ledger.budget_use().measurements == budget
    assert gate.budget_spent() and gate.remaining() == 0
    asked = len(forecaster.queries)
    assert set(reasons(gate.ask(pool(500))).values()) == {Reason.BUDGET_SPENT}
    assert len(forecaster.queries) == asked


@pytest.mark.parametrize(("seconds", "calls"), [(5.0, 5), (4.5, 5), (0.5, 1)])
def test_the_budget_in_gpu_seconds_is_spent_exactly(ledger: Ledger, seconds: float, calls: int) -> None:
    gate = open_gate(ledger, config=surrogate(keep_fraction=1.0, budget={"gpu_seconds": seconds}))
    for round_ in range(4):
        measure_all(gate, gate.ask(pool(1 + 8 * round_)))
    assert ledger.budget_use().measurements == calls


def paid(query: Query) -> Forecast:
    return Forecast.from_weights(by_number(query), cost=ForecastCost(gpu_seconds=0.25))


def test_forecasting_is_paid_from_the_same_budget_where_it_counts(ledger: Ledger) -> None:
    budget = {"gpu_seconds": 20.0, "count_forecasting": True}
    gate = open_gate(ledger, ScriptedForecaster(paid), config=surrogate(budget=budget))
    measure_all(gate, gate.ask([candidate(0)]))
    number = 1
    while not gate.budget_spent():
        measure_all(gate, gate.ask(pool(number, 8)))
        number += 8
    use = ledger.budget_use(forecasts=True)
    # Every pool of eight costs two seconds of forecasting and two of measuring.
    assert (use.gpu_seconds, use.forecast_gpu_seconds) == (10.0, 10.0)


def test_a_pool_whose_forecasts_took_the_rest_of_the_budget_is_not_measured(ledger: Ledger) -> None:
    budget = {"gpu_seconds": 3.0, "count_forecasting": True}
    gate = open_gate(ledger, ScriptedForecaster(paid), config=surrogate(budget=budget))
    measure_all(gate, gate.ask([candidate(0)]))
    decisions = gate.ask(pool(1, 8))
    assert {decision.reason for decision in decisions} == {Reason.BUDGET_SPENT} and gate.budget_spent()


def test_decisions_to_measure_reserve_their_place(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(keep_fraction=1.0, budget={"measurements": 10}))
    gate.ask(pool(1, 8))
    assert gate.remaining() == 2
    assert Counter(reasons(gate.ask(pool(100, 8))).values())[Reason.BUDGET_SPENT] == 0
    assert gate.budget_spent()


def test_a_released_decision_gives_its_place_back(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 1}))
    decision = gate.ask([candidate(5)])[0]
    assert gate.budget_spent() and gate.in_flight(decision.candidate_key)
    gate.release(decision.id)
    assert gate.remaining() == 1 and not gate.in_flight(decision.candidate_key)
    assert gate.ask([candidate(5, "again")])[0].measure


def test_a_decision_is_started_once(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    assert gate.start(decision.id) and not gate.start(decision.id)
    assert ledger.budget_use().measurements == 1


def test_no_start_goes_beyond_the_budget(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 1}))
    first = gate.ask([candidate(5)])[0]
    gate.release(first.id)
    second = gate.ask([candidate(6)])[0]
    assert [gate.start(second.id), gate.start(first.id)] == [True, False]


def test_concurrent_hosts_spend_the_budget_exactly(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=surrogate(budget={"measurements": 9}))
    started: list[int] = []

    def host(first: int) -> None:
        for number in range(first, first + 3):
            started.extend(d.id for d in measure_all(gate, gate.ask(pool(number * 10, 4))))

    threads = [threading.Thread(target=host, args=(1 + 3 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(started)) == len(started) == ledger.budget_use().measurements == 9


def test_results_come_in_while_the_forecaster_is_asked(ledger: Ledger) -> None:
    asked, answered = threading.Event(), threading.Event()

    class Slow(ScriptedForecaster):
        def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
            asked.set()
            assert answered.wait(120)
            return super().forecast(queries)

    gate = open_gate(ledger, forecaster=Slow(by_number))
    first = gate.ask([candidate(1)], measure_all=True)[0]
    later: list[Decision] = []
    asking = threading.Thread(target=lambda: later.extend(gate.ask(pool(10))))
    asking.start()
    assert asked.wait(120)
    told = threading.Thread(target=lambda: (gate.tell(first.id, measured(2.0)), answered.set()))
    told.daemon = True
    told.start()
    told.join(60)
    was_told = not told.is_alive()
    answered.set()
    asking.join(120)
    assert was_told and len(later) == 8
    assert gate.best_speedup == 2.0


# -- tell -------------------------------------------------------------------------------------------------------


def test_telling_starts_what_the_host_did_not(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    assert gate.tell(decision.id, measured(2.0))
    assert (ledger.budget_use().measurements, gate.best_speedup) == (1, 2.0)


def test_a_final_result_stands(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    assert gate.tell(decision.id, failed(Outcome.INCORRECT))
    assert not gate.tell(decision.id, measured(2.0))
    assert gate.answer(decision.candidate_key) == failed(Outcome.INCORRECT) and gate.best_speedup is None


def test_only_a_decision_to_measure_can_be_closed(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=GREEDY)
    skipped = next(d for d in gate.ask(pool(8)) if not d.measure)
    for use in (lambda: gate.tell(skipped.id, measured(1.0)), lambda: gate.start(skipped.id)):
        with pytest.raises(UnknownDecisionError, match=str(skipped.id)):
            use()
    with pytest.raises(UnknownDecisionError):
        gate.tell(999, measured(1.0))


def test_a_time_that_comes_after_the_timeout_is_not_used(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    decision = gate.ask([candidate(5)])[0]
    gate.tell(decision.id, failed(Outcome.TIMEOUT))
    assert gate.tell(decision.id, measured(50.0))
    answer = gate.answer(decision.candidate_key)
    assert answer is not None and answer.outcome is Outcome.LATE and gate.best_speedup is None
    gate.ask([candidate(6)])
    assert forecaster.observed[-1] == []


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.OK}))
def test_no_failure_is_learned_from_or_best(ledger: Ledger, outcome: Outcome) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    gate.tell(gate.ask([candidate(5)])[0].id, failed(outcome))
    gate.ask([candidate(6)])
    assert forecaster.observed == [[]] and gate.best_speedup is None


def test_a_forecaster_learns_every_measurement_whoever_looked_first(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    decision = gate.ask([candidate(5)])[0]
    gate.tell(decision.id, measured(2.0))
    assert (gate.best_speedup, gate.reference_measurement()) == (2.0, None)
    gate.ask([candidate(6)])
    (observation,) = forecaster.observed[-1]
    assert (observation.candidate_code, observation.speedup) == (source(5), 2.0)
    assert observation.forecast == decision.forecast


def test_nothing_new_is_nothing_to_learn(ledger: Ledger) -> None:
    forecaster = ScriptedForecaster(by_number)
    gate = open_gate(ledger, forecaster)
    measure_all(gate, gate.ask([candidate(5)]))
    gate.ask([candidate(6)])
    gate.ask([candidate(7)])
    assert len(forecaster.observed) == 1


# -- stages of a cascade ------------------------------------------------------------------------------------------


def test_while_a_stage_may_follow_duplicates_wait(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.tell(decision.id, failed(Outcome.INCORRECT), provisional=True)
    assert gate.partial_answer(decision.id) == failed(Outcome.INCORRECT)
    assert gate.answer(decision.candidate_key) is None
    duplicate = gate.ask([candidate(5, "again")])[0]
    assert (duplicate.reason, duplicate.answer) == (Reason.DUPLICATE, None)
    assert gate.in_flight(decision.candidate_key)


def test_the_last_stage_replaces_the_ones_before_and_adds_its_seconds(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.tell(decision.id, failed(Outcome.INCORRECT, gpu_seconds=2.0), provisional=True)
    gate.tell(decision.id, measured(3.0, gpu_seconds=5.0))
    assert gate.answer(decision.candidate_key) == measured(3.0, gpu_seconds=7.0)
    use = ledger.budget_use()
    assert (use.measurements, use.open, use.gpu_seconds) == (1, 0, 7.0)
    assert gate.partial_answer(decision.id) is None


def test_a_cascade_that_stopped_answers_with_its_last_stage(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.tell(decision.id, failed(Outcome.INCORRECT, gpu_seconds=2.0), provisional=True)
    assert gate.settle(decision.id) and not gate.settle(decision.id)
    assert not gate.in_flight(decision.candidate_key)
    assert gate.ask([candidate(5, "again")])[0].answer == failed(Outcome.INCORRECT, gpu_seconds=2.0)


# -- resume -------------------------------------------------------------------------------------------------------


def ended_process() -> Worker:
    with subprocess.Popen(["sleep", "60"]) as process:
        worker = replace(Worker.current(), pid=process.pid)
        process.kill()
    return worker


def test_the_ledger_holds_the_configuration_that_a_run_was_resumed_with(ledger: Ledger) -> None:
    for measurements in (8, 13):
        open_gate(ledger, config=surrogate(budget={"measurements": measurements}))
        (run,) = ledger.runs()
        assert run["config"]["budget"]["measurements"] == measurements
    with pytest.raises(LedgerIdentityError):
        open_gate(ledger, config=surrogate(seed=1, budget={"measurements": 99}))
    assert ledger.runs() == [run]


def test_a_resumed_gate_knows_what_the_last_one_did(ledger: Ledger) -> None:
    gate = open_gate(ledger, config=GREEDY)
    decisions = gate.ask([candidate(0), *pool(8)])
    measure_all(gate, decisions, speedup=1.5)
    forecaster = ScriptedForecaster(by_number)
    resumed = open_gate(ledger, forecaster, config=GREEDY)
    assert (gate.resumed, resumed.resumed) == (False, True)
    assert resumed.best_speedup == 1.5 and resumed.reference_measurement() == measured(1.5)
    resumed.ask(pool(16))
    assert [o.candidate_key for o in forecaster.observed[0]] == sorted(
        d.candidate_key for d in decisions if d.measure
    )
    again = [
        Candidate(f"again-{d.candidate_id}", source(int(d.candidate_id[1:]))) for d in decisions if d.measure
    ]
    assert set(reasons(resumed.ask(again)).values()) == {Reason.DUPLICATE}


def test_a_resumed_run_decides_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    config = surrogate(audit_fraction=0.5, ranking="thompson", anchor="incumbent")

    def play(folder: str, *, interrupt: bool) -> list[dict[str, Reason]]:
        ledger = Ledger(tmp_path / folder / "ledger.sqlite3")
        gate, found = open_gate(ledger, config=config), []
        for round_ in range(4):
            decisions = gate.ask(pool(1 + 8 * round_))
            measure_all(gate, decisions, speedup=1.0 + round_)
            found.append(reasons(decisions))
            if interrupt:
                gate = open_gate(ledger, config=config)
        return found

    assert play("whole", interrupt=False) == play("pieces", interrupt=True)


def test_reservations_do_not_outlive_their_gate(ledger: Ledger) -> None:
    config = surrogate(keep_fraction=1.0, budget={"measurements": 8})
    gate = open_gate(ledger, config=config)
    decisions = gate.ask(pool(1, 6))
    gate.tell(decisions[0].id, measured(1.0))
    assert gate.remaining() == 2
    resumed = open_gate(ledger, config=config)
    assert resumed.remaining() == 7
    assert resumed.ask([candidate(2, "again")])[0].measure


def test_a_measurement_whose_process_ended_is_closed_and_stays_paid(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.start(decision.id, ended_process())
    resumed = open_gate(ledger)
    assert resumed.close_interrupted() == 1
    (row,) = ledger.decisions()
    assert row["outcome"] == Outcome.INFRASTRUCTURE and ledger.budget_use().measurements == 1
    assert resumed.ask([candidate(5, "again")])[0].measure


def test_a_process_that_nobody_has_collected_yet_has_ended(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    with subprocess.Popen(["sleep", "600"]) as process:
        started_at = psutil.Process(process.pid).create_time()
        worker = replace(Worker.current(), pid=process.pid, started_at=started_at)
        gate.start(gate.ask([candidate(5)])[0].id, worker)
        assert gate.close_interrupted() == 0
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert gate.close_interrupted() == 1


def test_a_process_that_has_another_ones_number_has_ended(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    current = Worker.current()
    gate.start(gate.ask([candidate(5)])[0].id, replace(current, started_at=current.started_at - 1000))
    assert gate.close_interrupted() == 1


@pytest.mark.parametrize(
    "worker", [Worker.current(), Worker("another-host", 1, 0.0)], ids=["here", "elsewhere"]
)
def test_a_measurement_that_may_still_run_is_left_open(ledger: Ledger, worker: Worker) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.start(decision.id, worker)
    resumed = open_gate(ledger)
    assert resumed.close_interrupted() == 0
    assert resumed.ask([candidate(5, "again")])[0].reason is Reason.DUPLICATE
    assert resumed.tell(decision.id, measured(1.5)) and resumed.best_speedup == 1.5


def test_a_cascade_whose_process_ended_between_stages_is_closed(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    decision = gate.ask([candidate(5)])[0]
    gate.start(decision.id, ended_process())
    gate.tell(decision.id, failed(Outcome.INCORRECT), provisional=True)
    assert gate.close_interrupted() == 1 and gate.close_interrupted() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"task": "other"},
        {"reference_key": "f" * 32},
        {"evaluator_hash": "b"},
        {"device": "A100"},
        {"driver": "2"},
        {"bin_scheme": "published_labels"},
        {"forecaster": "random"},
        {"model": "larger"},
        {"prompt_hash": "b"},
        {"seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_resume_with_another_identity_names_the_field(ledger: Ledger, change: dict[str, object]) -> None:
    identity = RunIdentity("task", candidate(0).key, "a", "H100", "1", forecaster="scripted", model="small")
    open_gate(ledger, identity=identity)
    name, value = next(iter(change.items()))
    with pytest.raises(LedgerIdentityError) as caught:
        open_gate(ledger, identity=replace(identity, **change))  # type: ignore[arg-type]
    message = str(caught.value)
    assert name in message and "\n" not in message
    assert f" was {getattr(identity, name)!r} and is now {value!r}" in message
    assert open_gate(ledger, identity=identity).resumed


@pytest.mark.parametrize("old", ["x [16, 16]", None])
def test_a_resume_with_other_shapes_names_the_setting(ledger: Ledger, old: str | None) -> None:
    open_gate(ledger, config=surrogate(shapes=old))
    with pytest.raises(LedgerIdentityError) as caught:
        open_gate(ledger, config=surrogate(shapes="x [4096]"))
    assert f"surrogate.shapes was {old!r} and is now 'x [4096]'" in str(caught.value)
    assert open_gate(ledger, config=surrogate(shapes=old)).resumed


def test_a_ledger_that_does_not_say_its_shapes_is_resumed(ledger: Ledger) -> None:
    identity = open_gate(ledger, config=surrogate()).identity
    stored = {key: value for key, value in ledger.runs()[0]["config"].items() if key != "shapes"}
    ledger.begin_run(identity, config=stored)
    assert open_gate(ledger, config=surrogate(shapes="x [16, 16]")).resumed


def test_runs_of_other_names_share_a_ledger_and_nothing_else(ledger: Ledger) -> None:
    one = open_gate(ledger, run_name="one")
    measure_all(one, one.ask([candidate(5)]), speedup=3.0)
    two = open_gate(Ledger(ledger.target), run_name="two", config=surrogate(seed=5))
    assert not two.resumed and two.best_speedup is None
    assert two.ask([candidate(5)])[0].measure
    assert ledger.budget_use().measurements == 1


# -- forecasters that fail ----------------------------------------------------------------------------------------

DOWN = ForecastFailure(FailureKind.UNREACHABLE, "connection refused")


def test_in_an_outage_the_quota_is_measured_by_chance_and_said_once(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    forecaster = ScriptedForecaster(lambda query: DOWN)
    config = surrogate(budget={"measurements": 9}, deferral={"mode": "on_top"})
    gate = open_gate(ledger, forecaster, config=config)
    for round_ in range(6):
        decisions = gate.ask(pool(1 + 8 * round_))
        wanted = [decision for decision in decisions if decision.measure]
        assert {decision.reason for decision in wanted} <= {Reason.FALLBACK}
        assert len(wanted) == min(2, 9 - 2 * round_) or round_ > 4
        measure_all(gate, decisions)
    assert ledger.budget_use().measurements == 9
    assert [record.message for record in caplog.records if "forecaster is down" in record.message] == [
        "forecaster is down (unreachable: connection refused): candidates are measured at random within the quota"
    ]
    assert 3 <= len(forecaster.batches) < 5  # paused after the third pool without a forecast


def test_forecasts_are_followed_again_after_an_outage(ledger: Ledger) -> None:
    up = [False]
    forecaster = ScriptedForecaster(lambda query: by_number(query) if up[0] else DOWN)
    gate = open_gate(ledger, forecaster, config=GREEDY)
    gate.ask(pool(8))
    up[0] = True
    assert {d.reason for d in gate.ask(pool(16)) if d.measure} == {Reason.TOP_FRACTION}


def test_a_failed_forecast_is_kept_and_its_candidate_deferred(ledger: Ledger) -> None:
    bad = ForecastFailure(FailureKind.REFUSED, "\x00 not \ud800 this one")
    forecaster = ScriptedForecaster(
        lambda query: bad if number_of(query.candidate_code) == 8 else by_number(query)
    )
    gate = open_gate(ledger, forecaster, config=surrogate(**FOLLOW, deferral={"share": 0.5}))
    decision = gate.ask(pool(8))[0]
    assert (decision.reason, decision.measure, decision.score) == (Reason.NO_FORECAST, True, None)
    gate.tell(decision.id, measured(1.0))
    row = ledger.decisions()[0]
    assert (row["failure"], row["probabilities"]) == ("refused", None)


class Faulty(Forecaster):
    """Does what it is given in place of forecasting or of learning."""

    name = "faulty"

    def __init__(self, forecast: Any = None, observe: Any = None) -> None:
        self._forecast, self._observe = forecast, observe

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        right = [Forecast.from_weights(by_number(query)) for query in queries]
        return right if self._forecast is None else self._forecast(right)

    def observe(self, observations: Sequence[Observation]) -> None:
        if self._observe is not None:
            self._observe(observations)


def broken(*arguments: Any) -> Any:
    raise ZeroDivisionError("over\nzero")


@pytest.mark.parametrize(
    ("forecast", "problem"),
    [
        (broken, "ZeroDivisionError: over zero"),
        (lambda right: right[1:], "ValueError: 3 answers to 4 queries"),
        (lambda right: [*right, right[0]], "ValueError: 5 answers to 4 queries"),
        (lambda right: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda right: [[1 / 8] * 8] * 4, "TypeError: an answer is list, neither a forecast nor a failure"),
    ],
)
def test_whatever_a_forecaster_does_costs_it_its_pool_and_not_the_run(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, forecast: Any, problem: str
) -> None:
    gate = open_gate(ledger, Faulty(forecast), config=surrogate(budget={"measurements": 2}))
    for start in (1, 5, 9):
        measure_all(gate, gate.ask(pool(start, 4)))
    assert ledger.budget_use().measurements == 2
    rows = [row for row in ledger.decisions() if row["reason"] in ("fallback", "not_selected")]
    assert {(row["failure"], row["failure_detail"]) for row in rows} == {("invalid", problem)}
    loud = [record.message for record in caplog.records if "'faulty' raised" in record.message]
    assert len(loud) == 1 and problem in loud[0]


def test_a_forecaster_that_cannot_learn_is_not_asked_until_it_can(ledger: Ledger) -> None:
    learn = [broken]
    gate = open_gate(ledger, Faulty(observe=lambda observations: learn[0]()), config=GREEDY)
    measure_all(gate, gate.ask(pool(1, 4)))
    (chosen,) = (decision for decision in gate.ask(pool(8, 4)) if decision.measure)
    assert chosen.reason is Reason.FALLBACK
    learn[0] = lambda: None
    measure_all(gate, [chosen])
    assert {d.reason for d in gate.ask(pool(16, 4)) if d.measure} == {Reason.TOP_FRACTION}


@pytest.mark.parametrize("where", ["forecast", "observe"])
def test_ctrl_c_goes_through_a_forecaster(ledger: Ledger, where: str) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    gate = open_gate(ledger, Faulty(**{where: interrupted}))
    with pytest.raises(KeyboardInterrupt):
        for start in (1, 5):
            measure_all(gate, gate.ask(pool(start, 4)))


@pytest.mark.parametrize(
    ("inverted", "ranking"), [(False, "expected_log2"), (True, "expected_log2"), (False, "random")]
)
def test_a_forecaster_keeps_its_slots_only_while_it_orders_rightly(
    ledger: Ledger, inverted: bool, ranking: str
) -> None:
    forecaster: Forecaster = ScriptedForecaster(by_number)
    if inverted:
        forecaster = InvertedForecaster(forecaster)
    config = surrogate(keep_fraction=0.5, audit_fraction=0.0, deferral={"threshold": None}, ranking=ranking)
    gate = open_gate(ledger, forecaster, config=config)
    last: list[Decision] = []
    for round_ in range(10):
        last = [decision for decision in gate.ask(pool(8 * round_ + 8)) if decision.measure]
        for decision in last:
            gate.tell(decision.id, measured(1.0 + int(decision.candidate_id[1:]) % 8))
    assert {decision.reason for decision in last} == {Reason.AUDIT if inverted else Reason.TOP_FRACTION}
