"""Readouts and prompt orders on one real vLLM server: the small model on this machine's processor.

How long a forecast takes is the sum of two things: computing the part of its prompt that is not in the server's cache,
and writing its answer. A processor is slow at both, a GPU much faster at the first; so the figures are taken for
candidates that the server has not seen (their prompts still to be computed) and for ones that it has (answers alone).

The small model writes short answers. One that thinks first writes hundreds or thousands of tokens: it is stood in for
by answers of a set length, written freely by the same model, which cost what a thought of that length does.
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
READOUTS: tuple[Readout, ...] = ("logprobs", "verbalized")
CACHE_GIB = 4
"""Holds a pool with the longest answers."""
THOUGHTS = (512, 2048)
"""Lengths of the answers that stand in for a thought, in tokens."""


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
        pool: number of the pool.
        thought: length that the answers were given, in tokens; ``None``: the model's own.
    """

    readout: Readout
    order: Order
    seen: str
    seconds: float
    forecasts: int
    prompt_tokens: float
    cached_share: float
    answer_tokens: float
    pool: int
    thought: int | None

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


def _forecaster(
    server: LocalVllm, readout: Readout, order: Order, thought: int | None = None
) -> OpenAIServerForecaster:
    section: dict[str, Any] = {
        "kind": "openai_server",
        "base_url": server.base_url,
        "model": MODEL_NAME,
        "readout": readout,
        "deadline_s": 3600.0,
        "max_kernel_tokens": MAX_KERNEL_TOKENS,
    }
    if thought is not None:
        section["max_tokens"] = thought
        section["extra_body"] = {"response_format": {"type": "text"}, "ignore_eos": True}
    settings = parse_surrogate_config({"forecaster": section}).forecaster
    writer = PromptWriter(readout, reasoning=False, max_kernel_tokens=MAX_KERNEL_TOKENS, order=order)
    return OpenAIServerForecaster(settings, writer=writer)


class _Bench:
    """One server and the pools that it is asked about."""

    def __init__(self, server: LocalVllm, pools: Sequence[Sequence[Query]]) -> None:
        self._server = server
        self._pools = pools
        self.found: list[PoolFigures] = []

    def warm_up(self) -> None:
        """A server's first requests wait for its kernels to be compiled, whatever they ask; no prefix is shared."""
        for readout in READOUTS:
            _forecaster(self._server, readout, "candidate_first").forecast(self._pools[0][:1])

    def measure(
        self,
        readout: Readout,
        seen: str,
        pool: int,
        *,
        order: Order = "candidate_last",
        thought: int | None = None,
    ) -> None:
        """Forecast one pool at once."""
        forecaster = _forecaster(self._server, readout, order, thought)
        started = time.perf_counter()
        outcomes = forecaster.forecast(self._pools[pool])
        seconds = time.perf_counter() - started
        forecaster.close()
        cost = sum((outcome.cost for outcome in outcomes), ForecastCost())
        figures = PoolFigures(
            readout,
            order,
            seen,
            seconds,
            sum(isinstance(outcome, Forecast) for outcome in outcomes),
            cost.prompt_tokens / POOL,
            cost.cached_tokens / max(1, cost.prompt_tokens),
            cost.completion_tokens / POOL,
            pool,
            thought,
        )
        self.found.append(figures)


def measure_readouts() -> list[PoolFigures]:
    """Figures of every readout and order, all on one server in one run."""
    pools = _pools(3 + len(THOUGHTS))
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalVllm(Path(folder) / "server.log", cache_gib=CACHE_GIB) as server,
    ):
        bench = _Bench(server, pools)
        bench.warm_up()
        for readout in READOUTS:
            bench.measure(readout, "nothing", 1)
        for readout in READOUTS:
            bench.measure(readout, "prefix", 2)
        for readout in READOUTS:
            bench.measure(readout, "all", 2)
        for pool in (1, 2):
            bench.measure("logprobs", "prefix", pool, order="candidate_first")
        for pool, thought in enumerate(THOUGHTS, start=3):
            bench.measure("logprobs", "prefix", pool)
            bench.measure("verbalized", "prefix", pool, thought=thought)
    return bench.found


def _ratio(figures: Sequence[PoolFigures], seen: str, thought: int | None = None) -> float:
    """Answers per second of ``logprobs`` over those of ``verbalized``, on the same pool."""
    last = [f for f in figures if f.seen == seen and f.order == "candidate_last"]
    written = next(f for f in last if f.readout == "verbalized" and f.thought == thought)
    read = next(f for f in last if f.readout == "logprobs" and f.pool == written.pool)
    return read.answers_per_second / written.answers_per_second


def comparison(figures: Sequence[PoolFigures]) -> dict[str, float]:
    """What the figures say together."""
    new = [f for f in figures if f.seen == "prefix" and f.order == "candidate_last"]
    own = next(f for f in new if f.readout == "verbalized" and f.thought is None)
    last = [f.cached_share for f in new if f.readout == "logprobs"]
    first = [f.cached_share for f in figures if f.order == "candidate_first"]
    ratios = {
        f"rate_ratio_new_candidates_{thought}_tokens": _ratio(figures, "prefix", thought)
        for thought in THOUGHTS
    }
    return {
        "rate_ratio_new_candidates": _ratio(figures, "prefix"),
        **ratios,
        "rate_ratio_answers_alone": _ratio(figures, "all"),
        "answer_token_ratio": own.answer_tokens,
        "cached_share_candidate_last": sum(last) / len(last),
        "cached_share_candidate_first": sum(first) / len(first),
    }


def readouts_table(figures: Sequence[PoolFigures]) -> tuple[dict[str, Any], str]:
    """The figures for scripts and for people."""
    together = comparison(figures)
    seen = {"nothing": "nothing", "prefix": "an earlier pool", "all": "this pool"}
    rows = "".join(
        f"| {f.pool} | {f.readout}{f', {f.thought} tokens' if f.thought else ''} | {f.order.replace('_', ' ')} "
        f"| {seen[f.seen]} | {f.seconds:.1f} | {f.answers_per_second:.2f} | {f.prompt_tokens:.0f} "
        f"| {100 * f.cached_share:.0f} % | {f.answer_tokens:.0f} | {f.forecasts} of {POOL} |\n"
        for f in figures
    )
    thoughts = "".join(
        f"| answers per second, new candidates, answers of {thought} tokens "
        f"| {together[f'rate_ratio_new_candidates_{thought}_tokens']:.1f} |\n"
        for thought in THOUGHTS
    )
    text = (
        f"Pools of {POOL} kernels of the recorded task {TASK}; SmolLM2-135M in float32 behind vLLM on the processor.\n"
        "The model is far too small to forecast: of interest is what a forecast costs, not what it says. Answers of a\n"
        "set length stand in for a model that thinks before it answers; nothing is read out of them.\n\n"
        "| pool | readout | prompt | server has seen | seconds | answers/s | prompt tokens | from cache "
        "| answer tokens | forecasts |\n|---|---|---|---|---|---|---|---|---|---|\n"
        f"{rows}\n"
        "| `logprobs` against `verbalized` | times |\n|---|---|\n"
        f"| answers per second, new candidates (the prompt's rest is still to be computed), the model's own answers "
        f"| {together['rate_ratio_new_candidates']:.1f} |\n"
        f"{thoughts}"
        f"| answers per second, prompts computed before | {together['rate_ratio_answers_alone']:.1f} |\n"
        f"| fewer answer tokens, the model's own answers | {together['answer_token_ratio']:.0f} |\n\n"
        f"With the candidate last, {100 * together['cached_share_candidate_last']:.0f} % of a pool's prompt tokens "
        f"come from the prefix cache; with the candidate first, "
        f"{100 * together['cached_share_candidate_first']:.0f} %.\n"
    )
    return {"pools": [asdict(f) for f in figures], "comparison": together}, text
