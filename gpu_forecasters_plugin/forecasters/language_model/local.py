"""A language model in this process, by ``vllm.LLM``: the prompts and readouts of the server, without one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.errors import MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, ForecastCost, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import (
    LAST_TOKENS,
    ChatReply,
    ChatRequest,
    Choice,
    TokenLogprobs,
)
from gpu_forecasters_plugin.forecasters.language_model.in_process import InProcessForecaster
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

__all__ = ["VllmLocalForecaster"]

_THOUGHT_ENDS = ("</think>", "<|channel|>final<|message|>")
"""What stands between a thought and its answer: most reasoning models, and gpt-oss."""


def _import_vllm() -> Any:
    try:
        import vllm
    except ImportError:
        raise MissingExtraError("vllm", "vllm") from None
    return vllm


class VllmLocalForecaster(InProcessForecaster):
    """Asks a model that vLLM runs.

    The model is loaded when the forecaster is built, so that a wrong name shows before anything runs.

    Args:
        settings: which model, adapter and engine arguments, and how to ask. A reasoning model needs vLLM's
            ``reasoning_parser`` among the engine arguments for its answer to be held to its form after the thought.
        seed: the run's seed.
        writer: of prompts; the one that the settings describe when left out.

    Raises:
        MissingExtraError: ``vllm`` is not installed.
    """

    def __init__(
        self,
        settings: LanguageModelSettings,
        *,
        seed: int = 0,
        writer: PromptWriter | None = None,
    ) -> None:
        vllm = _import_vllm()
        super().__init__("vllm_local", settings, seed=seed, writer=writer)
        self._vllm = vllm
        arguments: dict[str, Any] = {"model": settings.model, "seed": seed % 2**31} | settings.engine
        self._lora = None
        if settings.lora is not None:
            from vllm.lora.request import LoRARequest

            arguments["enable_lora"] = True
            self._lora = LoRARequest("forecaster", 1, settings.lora)
        self._model = vllm.LLM(**arguments)

    def _gpus(self) -> float:
        return float(self.settings.engine.get("tensor_parallel_size", 1))

    def _complete(self, requests: Sequence[ChatRequest]) -> list[Any]:
        """The engine's outputs; a request that it refuses, such as one that is too long, fails alone."""
        if not requests:
            return []
        try:
            outputs: list[Any] = self._model.chat(
                [list(request.messages) for request in requests],
                [self._sampling(request) for request in requests],
                use_tqdm=False,
                lora_request=self._lora,
                chat_template_kwargs=self.settings.chat_template_kwargs or None,
            )
        except Exception as error:  # vLLM's own, of a base that differs between versions
            if len(requests) > 1:
                return [output for request in requests for output in self._complete([request])]
            detail = printable(" ".join(f"{type(error).__name__}: {error}".split())[:300])
            return [ForecastFailure(FailureKind.INVALID, f"the engine refuses the prompt: {detail}")]
        return outputs

    def _sampling(self, request: ChatRequest) -> Any:
        from vllm.sampling_params import StructuredOutputsParams

        more: dict[str, Any] = {}
        if request.temperature is not None:
            more["temperature"] = request.temperature
        if request.top_logprobs:
            more["logprobs"] = request.top_logprobs
        held = not self.settings.reasoning or "reasoning_parser" in self.settings.engine
        if held and self.settings.constraint != "none":
            if request.schema is not None:
                more["structured_outputs"] = StructuredOutputsParams(json=dict(request.schema))
            elif request.choice:
                more["structured_outputs"] = StructuredOutputsParams(choice=list(request.choice))
        return self._vllm.SamplingParams(
            n=request.n,
            max_tokens=request.max_tokens,
            seed=request.seed,
            # The mark between thought and answer may be a special token.
            skip_special_tokens=not self.settings.reasoning,
            **more,
        )

    def _reply(self, output: Any) -> ChatReply:
        parts = [_split(completion.text) for completion in output.outputs]
        cost = ForecastCost(
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
            completion_tokens=sum(len(completion.token_ids) for completion in output.outputs),
        )
        choices = tuple(
            Choice(
                Answer(part.answer, reasoning=part.thought, finish_reason=completion.finish_reason),
                tuple(_token(step) for step in (completion.logprobs or ())[-LAST_TOKENS:]),
            )
            for part, completion in zip(parts, output.outputs, strict=True)
        )
        return ChatReply(choices, cost)


@dataclass(frozen=True)
class _Parts:
    thought: str | None
    answer: str


def _split(text: str) -> _Parts:
    """Thought and answer of a generated text; special tokens that end it are left out."""
    for mark in _THOUGHT_ENDS:
        thought, found, answer = text.rpartition(mark)
        if found:
            return _Parts(thought, answer.partition("<|")[0])
    return _Parts(None, text)


def _token(step: Mapping[int, Any]) -> TokenLogprobs:
    """One step's log-probabilities; vLLM puts the token that was chosen first."""
    texts = {entry.decoded_token or "": float(entry.logprob) for entry in step.values()}
    alternatives = {text: logprob for text, logprob in texts.items() if math.isfinite(logprob)}
    return TokenLogprobs(next(iter(texts), ""), alternatives)
