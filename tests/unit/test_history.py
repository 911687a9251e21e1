from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from helpers import by_number, candidate, measured, open_gate, surrogate

from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.ledger import Ledger


def test_what_evaluators_said_stays_in_the_ledger_until_a_duplicate_asks(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    for number in (5, 6):
        (decision,) = gate.ask([candidate(number)])
        gate.tell(decision.id, replace(measured(1.5), payload=f"said of {number}"))
    with patch.object(ledger, "payload", wraps=ledger.payload) as asked:
        gate.ask([candidate(7)])
        assert asked.call_count == 0 and gate.best_speedup == 1.5
        (again,) = gate.ask([candidate(6, "again")])
        assert again.answer is not None and again.answer.payload == "said of 6"
        assert asked.call_count == 1
    assert [result.measurement.payload for result in ledger.results_since(0)] == [None, None]


def test_a_stage_gets_what_the_stage_before_said(ledger: Ledger) -> None:
    gate = open_gate(ledger)
    (decision,) = gate.ask([candidate(5)])
    gate.tell(decision.id, replace(measured(1.5), payload="stage 1"), provisional=True)
    partial = gate.partial_answer(decision.id)
    assert partial is not None and partial.payload == "stage 1"


def test_a_suspicious_forecast_is_not_what_a_forecaster_is_judged_by(ledger: Ledger) -> None:
    def script(query: Query) -> Forecast:
        return replace(Forecast.from_weights(by_number(query)), suspicions=("talks to the forecaster",))

    forecaster = ScriptedForecaster(script)
    gate = open_gate(ledger, forecaster, config=surrogate(keep_fraction=1.0))
    for decision in gate.ask([candidate(number) for number in range(1, 9)]):
        gate.tell(decision.id, measured(1.0))
    gate.ask([candidate(9)])
    assert [observation.forecast for observation in forecaster.observed[-1]] == [None] * 8
