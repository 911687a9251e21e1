"""Foreseeing failure: what is learned, how it is ranked by, and how it is scored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import peaked
from static_profiles import profile_of_bytes

from gpu_forecasters_plugin.calibration.foresight import foresight
from gpu_forecasters_plugin.forecast import Attempt, Ending, Forecast, Query
from gpu_forecasters_plugin.forecasters import (
    InvertedForecaster,
    LearnedForecaster,
    MixtureForecaster,
    RandomForecaster,
    RecalibratedForecaster,
    WarmStartTask,
)
from gpu_forecasters_plugin.policies.ranking import (
    ExpectedLog2,
    ProbabilityBetter,
    RankingContext,
    RankingRule,
    Thompson,
    UpperQuantile,
)
from gpu_forecasters_plugin.testing.samples import kernel, query

REFERENCE = profile_of_bytes(64)
CONTEXT = RankingContext(seed=0, pool_id=0)


def attempt(number: int, ending: Ending, screened: str | None = None) -> Attempt:
    compiled = None if screened in (None, "invalid") else profile_of_bytes(64)
    return Attempt(kernel(number).key, kernel(number).code, ending, compiled, screened)


def asked(number: int, screened: str | None = None) -> Query:
    compiled = attempt(number, Ending.OK, screened).profile
    reference = None if screened is None else REFERENCE
    return replace(query(kernel(number)), profile=compiled, reference_profile=reference, screened=screened)


def forecast(forecaster: LearnedForecaster | MixtureForecaster, question: Query) -> Forecast:
    (outcome,) = forecaster.forecast([question])
    assert isinstance(outcome, Forecast)
    return outcome


def p_ok(forecaster: LearnedForecaster, question: Query) -> float:
    found = forecast(forecaster, question).p_ok
    assert found is not None
    return found


# -- what is learned ------------------------------------------------------------------------------------------------


def test_before_anything_is_measured_each_question_is_even() -> None:
    found = forecast(LearnedForecaster(), asked(1))
    assert (found.p_invalid, found.p_incorrect) == (pytest.approx(0.5), pytest.approx(0.25))


def test_few_rows_that_tell_nothing_apart_give_the_smoothed_base_rate() -> None:
    forecaster = LearnedForecaster()
    # The same source as the reference, as far as features go: seven of eight ran, six of these were right.
    endings = [Ending.OK] * 6 + [Ending.INCORRECT, Ending.INVALID]
    forecaster.observe_attempts(
        [replace(attempt(0, ending), candidate_key=str(n)) for n, ending in enumerate(endings)]
    )
    found = forecast(forecaster, asked(0))
    assert found.p_invalid == pytest.approx(1 - 8 / 10, abs=0.01)
    assert found.p_incorrect == pytest.approx(8 / 10 * (1 - 7 / 9), abs=0.01)


def test_the_compilers_verdict_is_believed_as_far_as_measurements_bear_it_out() -> None:
    trusted, refuted = LearnedForecaster(), LearnedForecaster()
    valid = [attempt(number, Ending.OK, "valid") for number in range(1, 13)]
    trusted.observe_attempts([*valid, *(attempt(n, Ending.INVALID, "invalid") for n in range(13, 21))])
    refuted.observe_attempts([*valid, *(attempt(n, Ending.OK, "invalid") for n in range(13, 21))])
    assert p_ok(trusted, asked(30, "invalid")) < 0.3 < 0.7 < p_ok(trusted, asked(30, "valid"))
    assert p_ok(refuted, asked(30, "invalid")) > 0.6


def test_other_tasks_teach_what_a_verdict_means() -> None:
    attempts = tuple(
        attempt(n, Ending.INVALID if n % 3 == 0 else Ending.OK, "invalid" if n % 3 == 0 else "valid")
        for n in range(1, 40)
    )
    others = WarmStartTask("other", kernel(0).code, (), (), (), REFERENCE, attempts)
    warm = LearnedForecaster(warm_start=[others])
    assert p_ok(warm, asked(50, "invalid")) < 0.4 < 0.8 < p_ok(warm, asked(50, "valid"))
    assert p_ok(warm, asked(50)) == pytest.approx(2 / 3, abs=0.1)  # without a verdict, the others' share


def test_wrappers_pass_on_attempts_and_risks() -> None:
    attempts = [attempt(number, Ending.INCORRECT) for number in range(1, 20)]
    inner = LearnedForecaster()
    inner.observe_attempts(attempts)
    expected = forecast(inner, asked(30))
    for wrap in (
        lambda f: MixtureForecaster([f, RandomForecaster(1)]),
        RecalibratedForecaster,
        InvertedForecaster,
    ):
        wrapped = wrap(LearnedForecaster())
        assert wrapped.foresees_failure
        wrapped.observe_attempts(attempts)
        found = forecast(wrapped, asked(30))
        assert (found.p_invalid, found.p_incorrect) == (expected.p_invalid, expected.p_incorrect)
    assert not RandomForecaster(1).foresees_failure


def bins(number: int) -> tuple[float, ...]:
    return tuple(peaked(number))


# -- how it is ranked by ----------------------------------------------------------------------------------------------


def risky(ok: float, bin_number: int = 6) -> Forecast:
    return Forecast(bins(bin_number), p_invalid=(1 - ok) / 2, p_incorrect=(1 - ok) / 2)


def test_the_lottery_moves_what_may_fail_to_the_slowest_bin() -> None:
    certain, even = Forecast(bins(6)), risky(0.5)
    assert certain.as_lottery() is certain
    lottery = even.as_lottery()
    assert lottery.probabilities[0] == pytest.approx(0.5 + 0.5 * even.probabilities[0])
    assert lottery.probabilities[1:] == pytest.approx([p / 2 for p in even.probabilities[1:]])
    assert even.expected_log2() == certain.expected_log2()  # the bins stay as they are, given that it runs


@pytest.mark.parametrize("rule", [ExpectedLog2(), ProbabilityBetter(), UpperQuantile(), Thompson()])
@pytest.mark.parametrize("bin_number", [1, 3, 8])
def test_no_rule_ranks_a_candidate_higher_for_failing_more(rule: RankingRule, bin_number: int) -> None:
    scores = [
        rule.score(risky(ok, bin_number).as_lottery(), "key", CONTEXT) for ok in (1.0, 0.7, 0.4, 0.01, 0.0)
    ]
    assert scores == sorted(scores, reverse=True)
    if bin_number == 8:
        assert scores[-1] < scores[0]


def test_p_better_is_p_ok_times_p_better() -> None:
    rule = ProbabilityBetter()
    whole = rule.score(risky(1.0), "key", CONTEXT)
    assert rule.score(risky(0.3).as_lottery(), "key", CONTEXT) == pytest.approx(0.3 * whole)


def test_a_risk_that_all_share_changes_nothing() -> None:
    shared = risky(0.4)
    assert shared.as_lottery(safest=0.4).probabilities == pytest.approx(shared.probabilities)


@pytest.mark.parametrize(("invalid", "incorrect"), [(-0.1, 0.1), (0.7, 0.7), (0.5, None)])
def test_impossible_risks_are_refused(invalid: float, incorrect: float | None) -> None:
    with pytest.raises(ValueError, match="p_invalid and p_incorrect"):
        Forecast(bins(4), p_invalid=invalid, p_incorrect=incorrect)


# -- how it is scored --------------------------------------------------------------------------------------------------


def test_scores_of_known_foresight() -> None:
    perfect = foresight([0.9, 0.8, 0.2], [True, True, False])
    inverted = foresight([0.1, 0.2, 0.8], [True, True, False])
    constant = foresight([2 / 3] * 3, [True, True, False])
    assert perfect is not None and inverted is not None and constant is not None
    assert (perfect.auc, inverted.auc, constant.auc) == (1.0, 0.0, 0.5)
    assert perfect.brier == pytest.approx((0.01 + 0.04 + 0.04) / 3)
    assert constant.brier_skill == pytest.approx(0.0) and (inverted.brier_skill or 0.0) < 0
    assert (perfect.n, perfect.failed) == (3, 1)


def test_no_data_and_no_contrast_give_undefined_rather_than_zero() -> None:
    assert foresight([], []) is None
    alike = foresight([0.7, 0.9], [True, True])
    assert alike is not None and alike.auc is None and alike.brier_skill is None
