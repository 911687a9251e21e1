"""Checks of a language model behind an endpoint: does it do what its readout needs, and what would make it better."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.doctor.endpoint import EndpointProbe, failed
from gpu_forecasters_plugin.doctor.prompts import sample_prompt
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatRequest
from gpu_forecasters_plugin.forecasters.language_model.label_logprobs import LABELS
from gpu_forecasters_plugin.forecasters.language_model.model_names import same_model
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer, ReadLabel, read_label
from gpu_forecasters_plugin.forecasters.language_model.readouts import LogprobsReadout
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import listed

__all__ = [
    "check_chat",
    "check_logprobs",
    "check_models",
    "check_reasoning",
    "check_served_model",
    "check_structured_output",
]

_UNREACHED = (FailureKind.UNREACHABLE, FailureKind.TIMEOUT)
_EASY_PROSE = "Write one sentence about the sea."
_SIDES = ("left", "right")
_SIDE_SCHEMA = {
    "type": "object",
    "properties": {"side": {"type": "string", "enum": list(_SIDES)}},
    "required": ["side"],
    "additionalProperties": False,
}
_SHORT_ANSWER = 64


def check_models(probe: EndpointProbe) -> CheckResult:
    """Whether the endpoint can be reached and lists the model."""
    name, served, model = "models", probe.models, probe.settings.model or ""
    if isinstance(served, ForecastFailure):
        if served.kind in _UNREACHED:
            return failed(name, served)
        return CheckResult(name, Status.WARN, f"lists no models: {served.detail}")
    if model in served:
        context = served[model]
        return CheckResult(name, Status.OK, f"{model}, {context or 'an unknown number of'} tokens of context")
    near = difflib.get_close_matches(model, served, n=1)
    advice = f"did you mean {near[0]!r}?" if near else "set forecaster.model to one that is listed"
    seen = f"{model!r} is not listed; there are: {listed(served) or 'none'}"
    return CheckResult(name, Status.WARN, seen, advice)


def check_chat(probe: EndpointProbe) -> CheckResult:
    """Whether the model answers at all."""
    reply = probe.first_reply
    if isinstance(reply, ForecastFailure):
        return failed("chat", reply)
    tokens = reply.cost.completion_tokens
    return CheckResult("chat", Status.OK, f"answers{f' in {tokens} tokens' if tokens else ''}")


def check_served_model(probe: EndpointProbe) -> CheckResult:
    """Whether the answers come from the model that was asked for, as far as they say."""
    name, reply, model = "served model", probe.first_reply, probe.settings.model or ""
    if isinstance(reply, ForecastFailure):
        return failed(name, reply)
    if not reply.model:
        return CheckResult(name, Status.OK, "answers name no model")
    if same_model(model, reply.model):
        return CheckResult(name, Status.OK, f"answers come from {reply.model}")
    advice = "if it is not the one that you mean, mend forecaster.model or forecaster.base_url"
    return CheckResult(name, Status.WARN, f"{model!r} is asked, {reply.model!r} answers", advice)


def check_reasoning(probe: EndpointProbe) -> CheckResult:
    """Whether the model thinks exactly where the settings say so, and its thought is kept out of its answer."""
    name, reply, expected = "reasoning", probe.first_reply, probe.settings.reasoning
    if isinstance(reply, ForecastFailure):
        return failed(name, reply)
    answer = reply.choices[0].answer
    if "<think" in (answer.content or ""):
        advice = (
            "vLLM: --reasoning-parser NAME keeps it apart (for instance qwen3, deepseek_r1, openai_gptoss)"
        )
        return CheckResult(name, Status.FAIL, "the thought is part of the answer", advice)
    thinks = bool(answer.reasoning) or reply.cost.reasoning_tokens > 0
    if thinks and not expected:
        advice = "set reasoning: true, or switch it off: chat_template_kwargs: {enable_thinking: false}"
        return CheckResult(name, Status.FAIL, "the model thinks before it answers", advice)
    if expected and not thinks:
        advice = "set reasoning: false if it never does; vLLM shows a thought with --reasoning-parser NAME"
        return CheckResult(name, Status.WARN, "no thought came with the answer", advice)
    return CheckResult(name, Status.OK, "thinks, apart from its answer" if thinks else "answers at once")


def check_structured_output(probe: EndpointProbe) -> CheckResult:
    """Whether an answer is held to the form that the readout asks for, against what the question asks for."""
    name, settings = "structured output", probe.settings
    verbalized = settings.readout == "verbalized"
    if settings.constraint == "none" and not verbalized:
        return CheckResult(name, Status.SKIPPED, "constraint is none: answers are held to nothing")
    reply = probe.ask_text(
        _EASY_PROSE,
        settings.answer_tokens if settings.reasoning else _SHORT_ANSWER,
        schema=_SIDE_SCHEMA if verbalized else None,
        choice=() if verbalized else LABELS,
    )
    if isinstance(reply, ForecastFailure):
        return failed(name, reply)
    if verbalized:
        advice = "prefer readout: logprobs, or a server that honours response_format, as vLLM does"
        return _judge_form("JSON schema", _follows_schema(reply.choices[0].answer), advice)
    advice = (
        "vLLM before 0.11: set constraint: guided_choice; elsewhere the model has to name a bin by itself"
    )
    is_label = isinstance(read_label(reply.choices[0].answer), ReadLabel)
    return _judge_form("choice of eight labels", is_label, advice)


def _judge_form(form: str, honoured: bool, advice: str) -> CheckResult:
    if honoured:
        return CheckResult("structured output", Status.OK, f"honours a {form}")
    return CheckResult("structured output", Status.WARN, f"ignores a {form}", advice)


def _follows_schema(answer: Answer) -> bool:
    try:
        found = json.loads(answer.content or "")
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and list(found) == ["side"] and found["side"] in _SIDES


def check_logprobs(probe: EndpointProbe) -> CheckResult:
    """Whether log-probabilities come, and how much of the model's probability the eight labels have."""
    name, settings = "logprobs", probe.settings
    needed = settings.readout == "logprobs"
    update: dict[str, Any] = {"readout": "logprobs", "min_label_mass": 0.0}
    if not needed:
        update["max_tokens"] = None  # it was meant for another readout
    reader = LogprobsReadout(settings.model_copy(update=update))
    request = reader.request(sample_prompt(probe).messages, 0)
    outcome = _label_forecast(probe, reader, request)
    if isinstance(outcome, ForecastFailure):
        advice = "vLLM: --max-logprobs 20; where an endpoint has none, use readout: samples"
        found = failed(name, outcome, Status.FAIL if needed else Status.SKIPPED)
        return replace(found, advice=advice if needed else "")
    observed = sum(p > 0 for p in outcome.probabilities)
    mass, held = outcome.covered_mass, ""
    if mass is None and not settings.reasoning:
        # The answer was held to the labels, which hides what the model thinks of them.
        free = _label_forecast(probe, reader, replace(request, choice=()))
        mass = free.covered_mass if isinstance(free, Forecast) else None
        held = " when it is not held to them"
    share = "an unknown share" if mass is None else f"{mass:.1%}"
    seen = f"{observed} of {N_BINS} labels observed; they have {share} of the model's probability{held}"
    return replace(_judge_labels(observed, mass, held != "", settings), seen=seen)


def _judge_labels(
    observed: int, mass: float | None, held: bool, settings: LanguageModelSettings
) -> CheckResult:
    """How good the labels' log-probabilities are, and what to do."""
    status, advice = Status.OK, ""
    if mass is not None and mass < settings.min_label_mass:
        status = Status.FAIL if settings.readout == "logprobs" and not held else Status.WARN
        advice = f"try a model that names a bin by itself (min_label_mass is {settings.min_label_mass:g})"
    elif settings.readout != "logprobs":
        advice = "readout: logprobs would need one token per forecast"
    elif observed < N_BINS:
        status = Status.WARN
        advice = "labels beyond the endpoint's top tokens count as impossible; vLLM: --max-logprobs 20"
    return CheckResult("logprobs", status, "", advice)


def _label_forecast(
    probe: EndpointProbe, reader: LogprobsReadout, request: ChatRequest
) -> Forecast | ForecastFailure:
    reply = probe.ask(request)
    return reply if isinstance(reply, ForecastFailure) else reader.read(reply.choices)
