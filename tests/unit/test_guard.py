from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from gpu_forecasters_plugin.config import GuardConfig
from gpu_forecasters_plugin.policies import trust
from gpu_forecasters_plugin.policies.guard import FULL_TRUST, NOISE_LOG2, PRIOR_SHARE

GUARD = GuardConfig()
Pool = list[tuple[float, float]]


def pools(direction: float, count: int, *, noise: float = 0.0, seed: int = 0) -> list[Pool]:
    """Pools of four whose scores follow the truth, by sign and with noise."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        truths = [chance.gauss(0, 1) for _ in range(4)]
        made.append([(direction * truth + noise * chance.gauss(0, 1), truth) for truth in truths])
    return made


def test_a_new_forecaster_is_trusted_half_and_earns_or_loses_the_rest() -> None:
    assert trust([], GUARD) == pytest.approx((PRIOR_SHARE - 0.5) / (FULL_TRUST - 0.5)) == pytest.approx(0.5)
    assert trust(pools(1.0, 1), GUARD) > 0.5 > trust(pools(-1.0, 1), GUARD)


def test_a_good_forecaster_keeps_its_slots() -> None:
    assert trust(pools(1.0, 30, noise=0.5), GUARD) == pytest.approx(1.0)


def test_an_inverted_forecaster_loses_them_all() -> None:
    assert trust(pools(-1.0, 5), GUARD) == pytest.approx(0.0)


def test_a_random_forecaster_loses_most_of_them() -> None:
    verdicts = [trust(pools(0.0, 40, noise=1.0, seed=seed), GUARD) for seed in range(40)]
    assert sum(verdicts) / len(verdicts) < 0.35


def test_pools_of_which_one_candidate_is_measured_are_compared_with_each_other() -> None:
    alone = [[pair] for pool in pools(1.0, 30) for pair in pool]
    assert trust(alone, GUARD) == pytest.approx(1.0)
    assert trust([[(-expected, measured)] for [(expected, measured)] in alone], GUARD) == pytest.approx(0.0)
    assert trust(alone[:1], GUARD) == trust([], GUARD)


def test_trust_comes_back_with_good_forecasts() -> None:
    bad = pools(-1.0, 10)
    after = [trust([*bad, *pools(1.0, more, seed=1)], GUARD) for more in (0, 10, 40)]
    assert after[0] == 0.0 and after[-1] == 1.0 and after == sorted(after)


def test_differences_within_the_noise_of_measuring_are_no_evidence() -> None:
    ties = [[(1.0, 0.0), (0.0, NOISE_LOG2)]] * 50
    assert trust(ties, GUARD) == trust([], GUARD)
    assert trust([[(1.0, 0.0), (0.0, 2 * NOISE_LOG2)]] * 50, GUARD) == pytest.approx(0.0)


def test_equal_scores_are_worth_what_chance_is() -> None:
    tied = [[(0.0, truth) for truth in (0.0, 1.0, 2.0, 3.0)]] * 50
    random_sign = [[(0.0, 0.0), (1.0, 1.0)], [(1.0, 0.0), (0.0, 1.0)]] * 50
    assert trust(tied, GuardConfig(prior_pairs=0.01)) == pytest.approx(0.0, abs=0.01)
    assert trust(random_sign, GuardConfig(prior_pairs=0.01, decay=1.0)) == pytest.approx(0.0, abs=0.01)


def test_pairs_are_compared_within_a_pool_only() -> None:
    slow, fast = [(5.0, -1.0), (4.0, -1.0)], [(-5.0, 1.0), (-4.0, 1.0)]
    assert trust([slow, fast] * 20, GUARD) == trust([], GUARD)


def test_the_pairs_of_a_large_pool_count_less_for_they_depend_on_each_other() -> None:
    patient = GuardConfig(decay=1.0, prior_pairs=0.01)
    misled = [[(-float(place), float(place)) for place in range(8)]]  # 28 pairs, but seven facts
    right = [[(0.0, 0.0), (1.0, 1.0)]] * 30
    assert trust([*misled, *right], patient) == 1.0


def test_pairs_are_counted_as_they_are_defined() -> None:
    chance = random.Random(3)
    for size in (0, 1, 2, 30):
        levels = [chance.randrange(6) * NOISE_LOG2 / 2 for _ in range(size)]
        pool = [(float(chance.randrange(5)), level) for level in levels]
        concordant = discordant = 0.0
        for (score, truth), (other_score, other_truth) in combinations(pool, 2):
            if abs(truth - other_truth) > NOISE_LOG2:
                sign = (score - other_score) * (truth - other_truth)
                concordant += 1.0 if sign > 0 else 0.5 if sign == 0 else 0.0
                discordant += 1.0 if sign < 0 else 0.5 if sign == 0 else 0.0
        share = (2 / max(2, size) * concordant + PRIOR_SHARE) / (
            2 / max(2, size) * (concordant + discordant) + 1
        )
        expected = min(1.0, max(0.0, (share - 0.5) / (FULL_TRUST - 0.5)))
        assert trust([pool], GuardConfig(prior_pairs=1.0)) == pytest.approx(expected)


def test_pools_that_have_decayed_are_not_looked_at_again() -> None:
    class Counted(list[tuple[float, float]]):
        looked_at = 0

        def __iter__(self) -> Iterator[tuple[float, float]]:
            Counted.looked_at += 1
            return super().__iter__()

    many = [Counted(pool) for pool in pools(-1.0, 3000)]
    recent = trust(many, GUARD)
    assert Counted.looked_at < 300 and recent == pytest.approx(trust(many[-1000:], GUARD))


def test_a_guard_that_is_off_trusts_anybody() -> None:
    assert trust(pools(-1.0, 20), GuardConfig(enabled=False)) == 1.0
