"""Readouts and prompt orders on one real vLLM server: the small model on this machine's processor.

How long a forecast takes is the sum of two things: computing the part of its prompt that is not in the server's cache,
and writing its answer. A processor is slow at both, a GPU much faster at the first; so the figures are taken for
candidates that the server has not seen (their prompts still to be computed) and for ones that it has (answers alone).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.local_vllm import MODEL_NAME, LocalVllm
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import Forecast, ForecastCost, Query
from gpu_forecasters_plugin.forecasters.language_model.prompting import Order, PromptWriter, Readout
from gpu_forecasters_plugin.forecasters.language_model.server import OpenAIServerForecaster
from gpu_forecasters_plugin.recorded.pool import load_task

__all__ = ["measure_readouts", "readouts_table"]

POOL = 16
TASK = "rmsnorm"
MAX_KERNEL_TOKENS = 1500


@dataclass(frozen=True)
class PoolFigures:
    """One pool, forecast at once.

    Attributes:
        readout: how the probabilities were read.
        order: where the candidate stood in the prompt.
        seen: what the server had in its cache: ``nothing``, the ``prefix`` (from an earlier pool), or ``all``.
        seconds: from the question to the last answer.
        forecasts: how many of the answers were forecasts.
        prompt_tokens: per candidate.
        cached_share: part of the prompts' tokens that came from the server's cache.
        answer_tokens: per candidate.
    """

    readout: Readout
    order: Order
    seen: str
    seconds: float
    forecasts: int
    prompt_tokens: float
    cached_share: float
    answer_tokens: float

    @property
    def answers_per_second(self) -> float:
        """Answers that are no forecasts count as well."""
        return POOL / self.seconds


def _pools(number: int) -> list[list[Query]]:
    """Disjoint pools of real kernels, each spread over the whole recorded task."""
    task = load_task(TASK)
    anchor = task.reference.code
    kernels = [c for c in sorted(task.candidates.values(), key=lambda c: c.id) if c.id != task.reference_id]
    step = len(kernels) // POOL
    return [
        [
            Query(c.key, c.code, anchor, anchor, task=task.task, device=task.device)
            for c in kernels[start::step][:POOL]
        ]
        for start in range(number)
    ]


def _forecaster(server: LocalVllm, readout: Readout, order: Order) -> OpenAIServerForecaster:
    section = {
        "kind": "openai_server",
        "base_url": server.base_url,
        "model": MODEL_NAME,
        "readout": readout,
        "deadline_s": 3600.0,
        "max_kernel_tokens": MAX_KERNEL_TOKENS,
    }
    settings = parse_surrogate_config({"forecaster": section}).forecaster
    writer = PromptWriter(readout, reasoning=False, max_kernel_tokens=MAX_KERNEL_TOKENS, order=order)
    return OpenAIServerForecaster(settings, writer=writer)


def _measure(
    server: LocalVllm, readout: Readout, order: Order, seen: str, pool: Sequence[Query]
) -> PoolFigures:
    forecaster = _forecaster(server, readout, order)
    started = time.perf_counter()
    outcomes = forecaster.forecast(pool)
    seconds = time.perf_counter() - started
    forecaster.close()
    cost = sum((outcome.cost for outcome in outcomes), ForecastCost())
    return PoolFigures(
        readout,
        order,
        seen,
        seconds,
        sum(isinstance(outcome, Forecast) for outcome in outcomes),
        cost.prompt_tokens / POOL,
        cost.cached_tokens / max(1, cost.prompt_tokens),
        cost.completion_tokens / POOL,
    )


def measure_readouts() -> list[PoolFigures]:
    """Figures of every readout and order, all on one server in one run."""
    warm_up, *pools = _pools(3)
    found = []
    with tempfile.TemporaryDirectory() as folder, LocalVllm(Path(folder) / "server.log") as server:
        # A server's first requests wait for its kernels to be compiled, whatever they ask; these share no prefix.
        for readout in ("logprobs", "verbalized"):
            _forecaster(server, readout, "candidate_first").forecast(warm_up[:1])
        for readout in ("logprobs", "verbalized"):
            for seen, pool in (("nothing", pools[0]), ("prefix", pools[1]), ("all", pools[1])):
                found.append(_measure(server, readout, "candidate_last", seen, pool))
        for pool in pools:
            found.append(_measure(server, "logprobs", "candidate_first", "prefix", pool))
    return found


def _ratio(figures: Sequence[PoolFigures], seen: str) -> float:
    rate = {
        f.readout: f.answers_per_second for f in figures if f.seen == seen and f.order == "candidate_last"
    }
    return rate["logprobs"] / rate["verbalized"]


def comparison(figures: Sequence[PoolFigures]) -> dict[str, float]:
    """What the figures say together."""
    new = {f.readout: f for f in figures if f.seen == "prefix" and f.order == "candidate_last"}
    first = [f.cached_share for f in figures if f.order == "candidate_first"]
    return {
        "rate_ratio_new_candidates": _ratio(figures, "prefix"),
        "rate_ratio_answers_alone": _ratio(figures, "all"),
        "answer_token_ratio": new["verbalized"].answer_tokens / new["logprobs"].answer_tokens,
        "cached_share_candidate_last": new["logprobs"].cached_share,
        "cached_share_candidate_first": sum(first) / len(first),
    }


def readouts_table(figures: Sequence[PoolFigures]) -> tuple[dict[str, Any], str]:
    """The figures for scripts and for people."""
    together = comparison(figures)
    seen = {"nothing": "first pool", "prefix": "later pool", "all": "the same pool again"}
    rows = "".join(
        f"| {f.readout} | {f.order.replace('_', ' ')} | {seen[f.seen]} | {f.seconds:.1f} | {f.answers_per_second:.2f} "
        f"| {f.prompt_tokens:.0f} | {100 * f.cached_share:.0f} % | {f.answer_tokens:.0f} | {f.forecasts} of {POOL} |\n"
        for f in figures
    )
    text = (
        f"Pools of {POOL} kernels of the recorded task {TASK}; SmolLM2-135M in float32 behind vLLM on the processor.\n"
        "The model is far too small to forecast: of interest is what a forecast costs, not what it says.\n\n"
        "| readout | prompt | server has seen | seconds | answers/s | prompt tokens | from cache | answer tokens "
        "| forecasts |\n|---|---|---|---|---|---|---|---|---|\n"
        f"{rows}\n"
        "| `logprobs` against `verbalized` | times |\n|---|---|\n"
        f"| answers per second, new candidates (the prompt's rest is still to be computed) "
        f"| {together['rate_ratio_new_candidates']:.1f} |\n"
        f"| answers per second, prompts computed before | {together['rate_ratio_answers_alone']:.1f} |\n"
        f"| fewer answer tokens | {together['answer_token_ratio']:.0f} |\n\n"
        f"With the candidate last, {100 * together['cached_share_candidate_last']:.0f} % of a pool's prompt tokens "
        f"come from the prefix cache; with the candidate first, "
        f"{100 * together['cached_share_candidate_first']:.0f} %.\n"
    )
    return {"pools": [asdict(f) for f in figures], "comparison": together}, text
