"""All readouts against a real vLLM server with a real, small model.

A model this small forecasts nothing useful: what counts is that every number is real, typed and reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.local_vllm import MODEL_NAME, LocalVllm
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import Forecaster
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.recorded.pool import load_task

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SAMPLES = 8
READOUTS = ["logprobs", "samples", "verbalized"]
Answers = Callable[[str], list[ForecastOutcome]]


def pool_of_real_kernels(size: int = 16) -> list[Query]:
    """Kernels of a recorded task, short ones: each token costs a processor milliseconds."""
    task = load_task("rmsnorm")
    others = (c for c in task.candidates.values() if c.id != task.reference_id and len(c.code) > 500)
    chosen = sorted(others, key=lambda c: (len(c.code), c.id))[:size]
    anchor = task.reference.code
    return [
        Query(c.key, c.code, anchor, anchor, task=task.task, device=task.device, reference_time_us=40.0)
        for c in chosen
    ]


def asking(server: LocalVllm, readout: str, seed: int = 7) -> Forecaster:
    section = {
        "kind": "openai_server",
        "base_url": server.base_url,
        "model": MODEL_NAME,
        "readout": readout,
        "samples": SAMPLES,
        "max_tokens": 160 if readout == "verbalized" else None,
        "max_kernel_tokens": 1500,
        "deadline_s": 400.0,
        "hedge": False,
    }
    return build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster, seed=seed)


@pytest.fixture(scope="module")
def answers(server: LocalVllm) -> Answers:
    """What the model says about the whole pool, asked once for each readout."""
    return cache(lambda readout: asking(server, readout).forecast(pool_of_real_kernels()))


@pytest.mark.parametrize("readout", READOUTS)
def test_every_answer_is_a_real_distribution_or_a_typed_failure(answers: Answers, readout: str) -> None:
    outcomes = answers(readout)
    assert len(outcomes) == 16
    for outcome in outcomes:
        if isinstance(outcome, Forecast):
            assert len(outcome.probabilities) == 8
            assert all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in outcome.probabilities)
            assert math.fsum(outcome.probabilities) == pytest.approx(1.0)
            assert not outcome.suspicions
        else:
            # Of what may befall a readout only this is the model's own doing.
            assert readout == "verbalized"
            assert outcome.kind in (FailureKind.INVALID, FailureKind.TRUNCATED), outcome


def test_logprobs_differ_between_kernels_and_see_all_eight_bins(answers: Answers) -> None:
    forecasts = [outcome for outcome in answers("logprobs") if isinstance(outcome, Forecast)]
    assert len({forecast.probabilities for forecast in forecasts}) == 16
    assert all(min(forecast.probabilities) > 0.0 for forecast in forecasts)


def test_samples_are_shares_of_the_answers(answers: Answers) -> None:
    for outcome in answers("samples"):
        assert isinstance(outcome, Forecast)
        assert all((p * SAMPLES).is_integer() for p in outcome.probabilities)


@pytest.mark.parametrize("readout", READOUTS)
def test_tokens_are_counted(answers: Answers, readout: str) -> None:
    for outcome in answers(readout):
        cost = outcome.cost
        assert cost.seconds > 0.0
        assert 0 <= cost.cached_tokens < cost.prompt_tokens < 4096
        match readout:
            case "logprobs":
                assert cost.completion_tokens == 1
            case "samples":
                assert SAMPLES <= cost.completion_tokens <= 2 * SAMPLES
            case _:
                assert 8 < cost.completion_tokens <= 160


@pytest.mark.parametrize("readout", READOUTS)
def test_the_same_seed_gives_the_same_answers(server: LocalVllm, answers: Answers, readout: str) -> None:
    """Asked again in another company: a quarter of the pool, with its prompts in the cache by now.

    A server promises this only nearly: requests that are computed together, and prefixes that come from the
    cache, change the order of sums. In float32 that is 1e-5 of a log-probability (in bfloat16 0.1), so that samples
    and greedy texts come out the same, short of a tie.
    """
    before = answers(readout)[:4]
    again = asking(server, readout).forecast(pool_of_real_kernels()[:4])
    for first, second in zip(before, again, strict=True):
        assert type(first) is type(second)
        if isinstance(first, Forecast) and isinstance(second, Forecast):
            assert second.probabilities == pytest.approx(first.probabilities, abs=1e-3)
        assert second.cost.completion_tokens == first.cost.completion_tokens


def test_another_seed_draws_other_samples(server: LocalVllm, answers: Answers) -> None:
    again = asking(server, "samples", seed=8).forecast(pool_of_real_kernels()[:4])
    assert [o.probabilities for o in again if isinstance(o, Forecast)] != [
        o.probabilities for o in answers("samples")[:4] if isinstance(o, Forecast)
    ]


def test_a_pool_shares_all_of_its_prompts_but_the_candidates(answers: Answers) -> None:
    outcomes = answers("logprobs")
    prompt = sum(outcome.cost.prompt_tokens for outcome in outcomes)
    cached = sum(outcome.cost.cached_tokens for outcome in outcomes)
    # Whichever comes first may find nothing; every other one finds what stands before its candidate.
    assert sum(outcome.cost.cached_tokens > 0 for outcome in outcomes) >= 15
    assert cached / prompt > 0.7
