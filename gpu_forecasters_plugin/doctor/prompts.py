"""Checks of how an endpoint takes long prompts: whether it shares their prefixes, and whether they fit."""

from __future__ import annotations

import secrets
import time

from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.doctor.endpoint import EndpointProbe, failed
from gpu_forecasters_plugin.doctor.samples import SAMPLE_TASK, sample_kernels
from gpu_forecasters_plugin.forecast import ForecastCost, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters.language_model.prompting import Prompt, PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.trimming import (
    CHARACTERS_PER_TOKEN,
    MIN_KERNEL_TOKENS,
    estimated_tokens,
)

__all__ = ["check_context", "check_prefix_caching", "judge_prefix_caching", "sample_prompt"]

_PREFIX_CACHING = "prefix caching"
_CLEARLY_FASTER, _LEAST_GAIN_S = 0.6, 0.05
"""A repeated prompt that takes less than this share of its first time, and this much less, was not computed again."""


def check_prefix_caching(probe: EndpointProbe) -> CheckResult:
    """Whether a prompt that was seen before is cheaper the second time: by its token count, else by its time."""
    prompt = sample_prompt(probe)
    # Nobody has asked this before, so the first time is the price of a new prompt.
    text = f"Probe {secrets.token_hex(16)}.\n{prompt.system}\n{prompt.user}"
    seconds: list[float] = []
    cost = ForecastCost()
    for _ in range(2):
        started = time.monotonic()
        reply = probe.ask_text(text, 1)
        seconds.append(time.monotonic() - started)
        if isinstance(reply, ForecastFailure):
            return failed(_PREFIX_CACHING, reply, Status.WARN)
        cost = reply.cost
    return judge_prefix_caching(cost, *seconds)


def judge_prefix_caching(second: ForecastCost, first_s: float, second_s: float) -> CheckResult:
    """What a repeated prompt says.

    Args:
        second: what the second answer cost.
        first_s: seconds that the first answer took.
        second_s: seconds that the second one took.
    """
    name = _PREFIX_CACHING
    if second.cached_tokens:
        seen = f"{second.cached_tokens} of {second.prompt_tokens} prompt tokens came from it"
        return CheckResult(name, Status.OK, seen)
    times = f"{first_s:.2f} s for a new prompt, {second_s:.2f} s for the same again"
    if first_s - second_s > _LEAST_GAIN_S and second_s < _CLEARLY_FASTER * first_s:
        advice = "vLLM: --enable-prompt-tokens-details lets the ledger record cached tokens"
        seen = f"seems to be on, though no cached tokens are reported: {times}"
        return CheckResult(name, Status.OK, seen, advice)
    advice = "vLLM: --enable-prefix-caching, and --enable-prompt-tokens-details to have it reported"
    return CheckResult(name, Status.WARN, f"no sign of it: {times}", advice)


def check_context(probe: EndpointProbe) -> CheckResult:
    """Whether the longest prompt that the settings allow, and its answer, fit into the model's context."""
    name, settings = "context length", probe.settings
    fixed = _prompt_without_kernels(probe) + settings.answer_tokens
    needed = fixed + 2 * settings.max_kernel_tokens
    listed = probe.models
    context = listed.get(settings.model or "") if isinstance(listed, dict) else None
    if context is None:
        return _try_context(probe, needed)
    seen = f"{context} tokens; the longest prompt and its answer take up to {needed} (estimated)"
    if context >= needed:
        return CheckResult(name, Status.OK, seen)
    room = (context - fixed) // 2
    if room < MIN_KERNEL_TOKENS:
        return CheckResult(
            name, Status.FAIL, seen, "use a model with a longer context, or a smaller max_tokens"
        )
    return CheckResult(
        name, Status.WARN, seen, f"set max_kernel_tokens: {room}, or vLLM: --max-model-len {needed}"
    )


def _try_context(probe: EndpointProbe, needed: int) -> CheckResult:
    """Of an endpoint that does not say: whether it takes a prompt of that length."""
    name = "context length"
    filler = "x = tl.load(pointer)\n"
    prompt = filler * int((needed - probe.settings.answer_tokens) * CHARACTERS_PER_TOKEN / len(filler))
    reply = probe.ask_text(prompt, 1)
    if isinstance(reply, ForecastFailure):
        found = failed(name, reply, Status.WARN)
        return CheckResult(name, found.status, found.seen, "lower max_kernel_tokens", hung=found.hung)
    tokens = reply.cost.prompt_tokens
    return CheckResult(name, Status.OK, f"takes the longest prompt{f', {tokens} tokens' if tokens else ''}")


def sample_prompt(probe: EndpointProbe) -> Prompt:
    """What a run would ask about a recorded kernel."""
    reference, candidate = sample_kernels()
    query = Query(candidate.key, candidate.code, reference.code, reference.code, task=SAMPLE_TASK)
    return _writer(probe).write(query)


def _prompt_without_kernels(probe: EndpointProbe) -> int:
    """Estimated tokens of everything but the two kernels."""
    prompt = _writer(probe).write(Query("", "", "", ""))
    return estimated_tokens(prompt.system) + estimated_tokens(prompt.user)


def _writer(probe: EndpointProbe) -> PromptWriter:
    settings = probe.settings
    return PromptWriter(
        "logprobs", reasoning=settings.reasoning, max_kernel_tokens=settings.max_kernel_tokens
    )
