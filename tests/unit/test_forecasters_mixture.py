"""The mixture trusts experts as far as the run bears them out."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.forecast import (
    FailureKind,
    Forecast,
    ForecastCost,
    ForecastFailure,
    ForecastOutcome,
    Observation,
    Query,
)
from gpu_forecasters_plugin.forecasters import (
    ClimatologyForecaster,
    Forecaster,
    InvertedForecaster,
    MixtureForecaster,
    OracleForecaster,
    RandomForecaster,
    RecalibratedForecaster,
    ScriptedForecaster,
)
from gpu_forecasters_plugin.forecasters.stacking import fit_weights, log_pool

REFERENCE = "BLOCK = 1\n"
POOLS, POOL = 12, 8


def queries(keys: Sequence[str]) -> list[Query]:
    return [Query(key, f"BLOCK = {key}\n", REFERENCE, REFERENCE) for key in keys]


def truth() -> dict[str, float | None]:
    generator = random.Random(5)
    return {str(i): 2.0 ** generator.gauss(0.0, 0.9) for i in range(POOLS * POOL)}


def run(forecaster: Forecaster, speedups: dict[str, float | None]) -> list[Observation]:
    """Forecast pool by pool, measure everything, learn."""
    rows: list[Observation] = []
    keys = list(speedups)
    for start in range(0, len(keys), POOL):
        pool = queries(keys[start : start + POOL])
        forecaster.observe(rows)
        for query, outcome in zip(pool, forecaster.forecast(pool), strict=True):
            speedup = speedups[query.candidate_key]
            assert speedup is not None
            forecast = outcome if isinstance(outcome, Forecast) else None
            rows.append(Observation(query.candidate_key, query.candidate_code, speedup, 0, forecast))
    forecaster.observe(rows)
    return rows


def log_score(rows: Sequence[Observation], name: str | None = None) -> float:
    """Mean log score of the mixture, or of one of its experts."""
    total = 0.0
    for row in rows:
        assert row.forecast is not None
        p = row.forecast.components[name] if name else row.forecast.probabilities
        total += float(np.log(max(p[BINS.index(row.relative_speedup) - 1], 1e-6)))
    return total / len(rows)


def test_climatology_is_always_among_the_experts() -> None:
    mixture = MixtureForecaster([RandomForecaster(0)])
    assert set(mixture.weights) == {"random", "climatology"}
    assert set(MixtureForecaster([ClimatologyForecaster(), RandomForecaster(0)]).weights) == set(
        mixture.weights
    )


def test_a_good_expert_gains_weight() -> None:
    speedups = truth()
    mixture = MixtureForecaster([OracleForecaster(speedups, 0.8)])
    before = mixture.weights
    rows = run(mixture, speedups)
    assert mixture.weights["oracle"] >= before["oracle"]
    assert log_score(rows) > log_score(rows, "climatology") + 0.5


@pytest.mark.parametrize("kind", ["inverted", "random"])
def test_a_useless_expert_falls_back_to_climatology(kind: str) -> None:
    speedups = truth()
    oracle = OracleForecaster(speedups, 0.8)
    expert: Forecaster = InvertedForecaster(oracle) if kind == "inverted" else RandomForecaster(3)
    mixture = MixtureForecaster([expert])
    rows = run(mixture, speedups)
    assert mixture.weights[expert.name] < 0.25
    late = rows[len(rows) // 2 :]
    assert log_score(late) > log_score(late, "climatology") - 0.1


def test_an_inverted_expert_loses_all_weight_so_that_candidates_look_alike() -> None:
    speedups = truth()
    mixture = MixtureForecaster([InvertedForecaster(OracleForecaster(speedups, 0.9))])
    run(mixture, speedups)
    assert mixture.weights["inverted-oracle"] == 0.0
    outcomes = mixture.forecast(queries(list(speedups)[:POOL]))
    assert len({outcome.probabilities for outcome in outcomes if isinstance(outcome, Forecast)}) == 1


def test_the_better_of_two_experts_prevails() -> None:
    speedups = truth()
    mixture = MixtureForecaster([OracleForecaster(speedups, 0.7), RandomForecaster(1)])
    run(mixture, speedups)
    assert mixture.weights["oracle"] > 2 * mixture.weights["random"]


def test_components_hold_every_expert_and_costs_add_up() -> None:
    paid = Forecast((0.125,) * 8, cost=ForecastCost(1.0, 10, 2, 3, 1))
    mixture = MixtureForecaster([ScriptedForecaster(lambda _: paid), RandomForecaster(0)])
    (outcome,) = mixture.forecast(queries(["a"]))
    assert isinstance(outcome, Forecast)
    assert set(outcome.components) == {"scripted", "random", "climatology"}
    assert outcome.source == "mixture"
    assert outcome.cost == ForecastCost(1.0, 10, 2, 3, 1)


def test_an_expert_that_fails_is_left_out_for_that_query() -> None:
    def script(query: Query) -> ForecastOutcome | list[float]:
        return ForecastFailure(FailureKind.TIMEOUT) if query.candidate_key == "a" else [1.0] * 8

    mixture = MixtureForecaster([ScriptedForecaster(script), RandomForecaster(0)])
    left_out, both = mixture.forecast(queries(["a", "b"]))
    assert isinstance(left_out, Forecast)
    assert isinstance(both, Forecast)
    assert set(left_out.components) == {"random", "climatology"}
    assert set(both.components) == {"scripted", "random", "climatology"}


def test_an_expert_that_raises_leaves_the_others_their_say(caplog: pytest.LogCaptureFixture) -> None:
    mixture = MixtureForecaster([ScriptedForecaster([]), RandomForecaster(0)])
    for _ in range(2):
        (outcome,) = mixture.forecast(queries(["a"]))
        assert isinstance(outcome, Forecast) and set(outcome.components) == {"random", "climatology"}
    assert len([r for r in caplog.records if "'scripted' raised ForecasterError" in r.message]) == 1


def test_when_all_informed_experts_fail_the_first_failure_is_the_answer() -> None:
    cost = ForecastCost(seconds=2.0)
    first = ForecastFailure(FailureKind.UNREACHABLE, "refused", "llm", cost)
    second = ForecastFailure(FailureKind.EMPTY)
    mixture = MixtureForecaster(
        [
            ScriptedForecaster(lambda _: first, name="one"),
            ScriptedForecaster(lambda _: second, name="two"),
        ]
    )
    (outcome,) = mixture.forecast(queries(["a"]))
    assert outcome == first


def test_what_speaks_against_one_expert_speaks_against_the_mixture() -> None:
    doubted = Forecast((0.125,) * 8, covered_mass=0.7, suspicions=("tokens", "talks"), disagrees=True)
    refused = ForecastFailure(
        FailureKind.REFUSED, cost=ForecastCost(gpu_seconds=2.0), suspicions=("talks", "fence")
    )
    sure = Forecast((0.125,) * 8, cost=ForecastCost(gpu_seconds=1.0), covered_mass=0.9)
    experts = [ScriptedForecaster([o], name=f"e{i}") for i, o in enumerate((doubted, refused, sure))]
    (outcome,) = MixtureForecaster(experts).forecast(queries(["a"]))
    assert isinstance(outcome, Forecast)
    assert outcome.suspicions == ("tokens", "talks", "fence")
    assert (outcome.covered_mass, outcome.disagrees) == (0.7, True)
    assert outcome.cost == ForecastCost(gpu_seconds=3.0)
    (failure,) = MixtureForecaster([ScriptedForecaster([refused])]).forecast(queries(["a"]))
    assert isinstance(failure, ForecastFailure) and failure.suspicions == ("talks", "fence")
    (plain,) = MixtureForecaster([RandomForecaster(0)]).forecast(queries(["a"]))
    assert isinstance(plain, Forecast)
    assert (plain.covered_mass, plain.suspicions, plain.disagrees) == (None, (), False)


def test_a_mixture_is_known_by_its_experts_models_and_prompts() -> None:
    one, two = ScriptedForecaster([], name="one"), ScriptedForecaster([], name="two")
    one.model, one.prompt_hash = "small", "abc"
    assert (MixtureForecaster([one, two]).model, MixtureForecaster([one, two]).prompt_hash) == (
        "small",
        "abc",
    )
    two.model, two.prompt_hash = "large", "def"
    both = MixtureForecaster([one, two])
    assert both.model == "small+large" and both.prompt_hash not in ("", "abc", "def")
    assert MixtureForecaster([RandomForecaster(0)]).prompt_hash == ""


class Waiting(Forecaster):
    """Answers when its partner is asked too, or when it is closed."""

    waits = True

    def __init__(self, name: str, partner: threading.Barrier) -> None:
        self.name = name
        self._partner = partner

    def forecast(self, queries: Sequence[Query]) -> list[ForecastOutcome]:
        try:
            self._partner.wait(30)
        except threading.BrokenBarrierError:
            return [ForecastFailure(FailureKind.TIMEOUT, "alone", self.name) for _ in queries]
        weights = [float(len(self.name))] + [1.0] * 7
        return [Forecast.from_weights(weights) for _ in queries]

    def close(self) -> None:
        self._partner.abort()


def test_experts_that_wait_are_asked_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    mixture = MixtureForecaster([Waiting("one", meeting), RandomForecaster(0), Waiting("other", meeting)])
    assert mixture.waits and not MixtureForecaster([RandomForecaster(0)]).waits
    first, again = (mixture.forecast(queries(["a", "b"])) for _ in range(2))
    assert first == again
    for outcome in first:
        assert isinstance(outcome, Forecast)
        assert list(outcome.components) == ["one", "random", "other", "climatology"]
        assert outcome.components["one"][0] < outcome.components["other"][0]


def test_an_interrupted_mixture_leaves_nobody_waiting() -> None:
    def interrupt(query: Query) -> list[float]:
        raise KeyboardInterrupt

    meeting = threading.Barrier(3)
    experts = [ScriptedForecaster(interrupt), Waiting("one", meeting), Waiting("other", meeting)]
    with pytest.raises(KeyboardInterrupt):
        MixtureForecaster(experts).forecast(queries(["a"]))
    assert meeting.broken


def test_a_closed_mixture_gives_up_its_experts_through_whatever_is_around_them() -> None:
    meeting = threading.Barrier(2)
    inner = RecalibratedForecaster(MixtureForecaster([Waiting("one", meeting)]))
    mixture = MixtureForecaster([inner])
    outcomes: list[ForecastOutcome] = []
    asking = threading.Thread(target=lambda: outcomes.extend(mixture.forecast(queries(["a"]))))
    asking.start()
    mixture.close()
    asking.join(30)
    assert isinstance(outcomes[0], ForecastFailure) and outcomes[0].detail == "alone"


def test_climatology_alone_is_a_mixture_too() -> None:
    (outcome,) = MixtureForecaster([ClimatologyForecaster()]).forecast(queries(["a"]))
    assert isinstance(outcome, Forecast)


def test_rows_without_a_forecast_teach_no_weights() -> None:
    mixture = MixtureForecaster([RandomForecaster(0)])
    before = mixture.weights
    other = Forecast((0.125,) * 8, components={"unknown": (0.125,) * 8})
    mixture.observe([Observation("a", "x", 1.5), Observation("b", "y", 1.5, 0, other)])
    assert mixture.weights == before


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one expert"):
        MixtureForecaster([])
    with pytest.raises(ValueError, match="names of their own"):
        MixtureForecaster([RandomForecaster(0), RandomForecaster(1)])
    with pytest.raises(ValueError, match="unknown experts"):
        MixtureForecaster([RandomForecaster(0)], weights={"rnadom": 1.0})
    with pytest.raises(ValueError, match="at least 0"):
        MixtureForecaster([RandomForecaster(0)], weights={"random": -1.0})
    with pytest.raises(ValueError, match="positive"):
        MixtureForecaster([RandomForecaster(0)], prior_rows=0.0)


def test_fitted_weights_are_the_optimum() -> None:
    generator = np.random.default_rng(0)
    logs = np.log(generator.dirichlet(np.ones(8), size=(60, 3)))
    labels = generator.integers(0, 8, size=60)
    prior, ones = np.array([0.8, 0.3, 0.5]), np.ones(60)

    def objective(weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        pooled = log_pool(logs, weights)
        return float(np.log(pooled[np.arange(60), labels]).sum() - 2.0 * ((weights - prior) ** 2).sum())

    best = fit_weights(logs, labels, ones, prior, 4.0)
    assert (best >= 0).all()
    for _ in range(200):
        other = np.clip(best + generator.normal(0, 0.1, 3), 0.0, 3.0)
        assert objective(other) <= objective(best) + 1e-6
