"""Three ways to read eight probabilities out of a language model: what it is asked, and how its answer is read.

With ``reasoning``, each asks once and lets the model think first: the server holds the answer to its form after
the thought (vLLM does with a ``--reasoning-parser``), so that one request serves for any endpoint, and the thought
need not be sent back in a form that only some chat templates take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import ChatRequest, Choice
from gpu_forecasters_plugin.forecasters.language_model.label_logprobs import (
    LABELS,
    label_token,
    read_label_logprobs,
)
from gpu_forecasters_plugin.forecasters.language_model.parsing import (
    VERBALIZED_SCHEMA,
    ReadFailure,
    read_label,
    read_verbalized,
)
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["LogprobsReadout", "Readout", "SamplesReadout", "VerbalizedReadout", "readout"]

_TOP_LOGPROBS = 20
"""The most that vLLM and OpenAI give unless told otherwise."""


class Readout(ABC):
    """What a model is asked for, and how its answers are read.

    Attributes:
        wanted: how many answers one forecast is read from.
    """

    wanted: int = 1

    def __init__(self, settings: LanguageModelSettings) -> None:
        self._settings = settings

    @abstractmethod
    def request(self, messages: Sequence[Mapping[str, Any]], seed: int, answered: int = 0) -> ChatRequest:
        """The request for the answers still missing when ``answered`` of them are there."""

    @abstractmethod
    def read(self, choices: Sequence[Choice]) -> Forecast | ForecastFailure:
        """The forecast in ``wanted`` answers, or in as many as there are; at least one."""


class VerbalizedReadout(Readout):
    """Eight numbers that the model writes, as one JSON object."""

    def request(self, messages: Sequence[Mapping[str, Any]], seed: int, answered: int = 0) -> ChatRequest:
        settings = self._settings
        return ChatRequest(
            messages,
            settings.answer_tokens,
            temperature=settings.answer_temperature,
            seed=seed,
            schema=VERBALIZED_SCHEMA,
        )

    def read(self, choices: Sequence[Choice]) -> Forecast | ForecastFailure:
        reading = read_verbalized(choices[0].answer)
        if isinstance(reading, ReadFailure):
            return ForecastFailure(reading.kind, reading.detail)
        return Forecast(reading.probabilities, reading.raw_sum, disagrees=reading.disagrees)


class LogprobsReadout(Readout):
    """The model's own probabilities of the eight labels, at the place where it names one.

    Without a thought only one token is asked for, and whatever it is, its alternatives are the forecast. After
    a thought the answer must be a label, and its last token that reads as it is the place.
    """

    def request(self, messages: Sequence[Mapping[str, Any]], seed: int, answered: int = 0) -> ChatRequest:
        settings = self._settings
        return ChatRequest(
            messages,
            settings.answer_tokens,
            temperature=settings.answer_temperature,
            seed=seed,
            choice=LABELS,
            top_logprobs=_TOP_LOGPROBS,
        )

    def read(self, choices: Sequence[Choice]) -> Forecast | ForecastFailure:
        choice, label = choices[0], None
        if self._settings.reasoning:
            reading = read_label(choice.answer)
            if isinstance(reading, ReadFailure):
                return ForecastFailure(reading.kind, reading.detail)
            label = str(reading.bin)
        elif (choice.answer.finish_reason or "") == "content_filter" or choice.answer.refusal:
            return ForecastFailure(FailureKind.REFUSED, "the model refused to answer")
        token = label_token(choice.tokens, label)
        if token is None:
            return ForecastFailure(FailureKind.INVALID, "the endpoint gives no log-probabilities")
        return read_label_logprobs(token.alternatives, self._settings.min_label_mass)


class SamplesReadout(Readout):
    """How often the model names which bin.

    Answers that name none are left out; when they are more than half, there is no forecast.
    """

    def __init__(self, settings: LanguageModelSettings) -> None:
        super().__init__(settings)
        self.wanted = settings.samples

    def request(self, messages: Sequence[Mapping[str, Any]], seed: int, answered: int = 0) -> ChatRequest:
        settings = self._settings
        return ChatRequest(
            messages,
            settings.answer_tokens,
            n=self.wanted - answered,
            temperature=settings.answer_temperature,
            seed=seed
            + answered,  # an endpoint that answers one at a time must not answer the same every time
            choice=LABELS,
        )

    def read(self, choices: Sequence[Choice]) -> Forecast | ForecastFailure:
        readings = [read_label(choice.answer) for choice in choices[: self.wanted]]
        failures = [reading for reading in readings if isinstance(reading, ReadFailure)]
        counts = Counter(reading.bin for reading in readings if not isinstance(reading, ReadFailure))
        usable = counts.total()
        if 2 * usable < self.wanted:
            if not failures:
                detail = f"only {len(readings)} of {self.wanted} answers came"
                return ForecastFailure(FailureKind.EMPTY, detail)
            kind, _ = Counter(failure.kind for failure in failures).most_common(1)[0]
            detail = next(failure.detail for failure in failures if failure.kind is kind)
            return ForecastFailure(kind, f"{usable} of {self.wanted} answers name a bin; others: {detail}")
        return Forecast.from_weights([counts[number] / self.wanted for number in range(1, N_BINS + 1)])


def readout(settings: LanguageModelSettings) -> Readout:
    """The readout that the settings name."""
    kinds: dict[str, type[Readout]] = {
        "verbalized": VerbalizedReadout,
        "logprobs": LogprobsReadout,
        "samples": SamplesReadout,
    }
    return kinds[settings.readout](settings)
