"""From a question about a kernel to the text that a language model reads.

Everything before the candidate is byte for byte the same for all candidates of a pool, so that a server computes
it once: instructions, bins, what to weigh, GPU, task, baseline, and the candidate last.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme
from gpu_forecasters_plugin.device import UNKNOWN_DEVICE
from gpu_forecasters_plugin.forecast import Query
from gpu_forecasters_plugin.forecasters.language_model.hardware import PRESETS, hardware_facts
from gpu_forecasters_plugin.forecasters.language_model.inert import InertText, delimited, make_inert
from gpu_forecasters_plugin.forecasters.language_model.parsing import VERBALIZED_SCHEMA
from gpu_forecasters_plugin.forecasters.language_model.trimming import (
    CHARACTERS_PER_TOKEN,
    MIN_KERNEL_TOKENS,
    trim,
)
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.screen.beside import PROPERTY_NAMES, Property, properties_beside

if TYPE_CHECKING:
    import jinja2

    from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings

__all__ = ["Order", "Prompt", "PromptWriter", "Readout"]

Readout = Literal["verbalized", "logprobs", "samples"]
Order = Literal["candidate_last", "candidate_first"]

_TEMPLATES = Path(__file__).with_name("templates")
_ANSWER_TEMPLATES: dict[Readout, str] = {
    "verbalized": "answer_verbalized.jinja",
    "logprobs": "answer_label.jinja",
    "samples": "answer_label.jinja",
}


@dataclass(frozen=True)
class Prompt:
    """What a model is asked.

    Attributes:
        system: instructions, the same for a whole run.
        user: the question.
        suspicions: why an answer about this candidate must not be trusted (see :mod:`.inert`).
        trimmed_tokens: estimated tokens of kernels that were left out, marked in the text; 0 when none were.
    """

    system: str
    user: str
    suspicions: tuple[str, ...] = ()
    trimmed_tokens: int = 0

    @property
    def messages(self) -> list[dict[str, str]]:
        """Messages of a chat completion."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


class PromptWriter:
    """Writes the prompts of a run.

    Suspicions are the candidate's alone: the baseline is made just as inert, but it is the user's own kernel or
    one that has been measured, and to distrust every forecast for its sake would end the forecasting.

    Args:
        readout: how the answer will be read, which decides what is asked for.
        reasoning: whether the model may think before it answers.
        max_kernel_tokens: budget of each kernel, estimated (see :mod:`.trimming`); a longer one loses its middle.
        order: ``candidate_first`` gives up the shared prefix; it is there to measure what that costs.
        bins: the bins to forecast.
        static_profile: put what a compiler made of both kernels beside the candidate, where the question holds it.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        readout: Readout,
        *,
        reasoning: bool,
        max_kernel_tokens: int,
        order: Order = "candidate_last",
        bins: BinScheme = BINS,
        static_profile: bool = True,
    ) -> None:
        if readout not in _ANSWER_TEMPLATES:
            raise ValueError(f"unknown readout {readout!r}; known: {', '.join(_ANSWER_TEMPLATES)}")
        if order not in ("candidate_last", "candidate_first"):
            raise ValueError(f"unknown order {order!r}; known: candidate_last, candidate_first")
        if max_kernel_tokens < MIN_KERNEL_TOKENS:
            raise ValueError(f"max_kernel_tokens is at least {MIN_KERNEL_TOKENS}, got {max_kernel_tokens}")
        self._readout = readout
        self._max_kernel_tokens = max_kernel_tokens
        self._order = order
        self._static_profile = static_profile
        environment = _environment()
        self._user = environment.get_template("user.jinja")
        self._system = (
            environment.get_template("system.jinja")
            .render(
                bins=_bin_table(bins),
                answer_template=_ANSWER_TEMPLATES[readout],
                reasoning=reasoning,
                static_profile=static_profile,
            )
            .rstrip()
        )
        self.hash = self._hash()

    @classmethod
    def from_settings(cls, settings: LanguageModelSettings) -> PromptWriter:
        """The writer that a forecaster's settings describe."""
        return cls(
            settings.readout,
            reasoning=settings.reasoning,
            max_kernel_tokens=settings.max_kernel_tokens,
            static_profile=settings.static_profile,
        )

    def write(self, query: Query) -> Prompt:
        """The prompt of one question."""
        candidate, trimmed = _kernel(query.candidate_code, self._max_kernel_tokens)
        baseline, baseline_trimmed = _kernel(query.anchor_code, self._max_kernel_tokens)
        user = self._user.render(
            candidate=delimited(candidate),
            baseline=delimited(baseline),
            baseline_is_reference=query.anchor_code == query.reference_code,
            anchor_speedup=query.anchor_speedup,
            baseline_time=_baseline_time(query),
            device="" if query.device == UNKNOWN_DEVICE else _line(query.device),
            facts=hardware_facts(query.device),
            task=_line(query.task),
            shapes=_line(query.shapes),
            readout=self._readout,
            candidate_first=self._order == "candidate_first",
            properties=_properties(query) if self._static_profile else [],
        )
        return Prompt(self._system, user.rstrip(), candidate.suspicions, trimmed + baseline_trimmed)

    def _hash(self) -> str:
        """Identity of all that decides how a question becomes a prompt, 32 hexadecimal digits."""
        parts = [
            self._system,
            (_TEMPLATES / "user.jinja").read_text(encoding="utf-8"),
            json.dumps(VERBALIZED_SCHEMA) if self._readout == "verbalized" else self._readout,
            f"{self._max_kernel_tokens} tokens of {CHARACTERS_PER_TOKEN} characters",
            self._order,
            repr(PRESETS),
            repr(PROPERTY_NAMES if self._static_profile else ()),
        ]
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(  # plain text, not HTML; a kernel is a value and never a template
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


def _baseline_time(query: Query) -> str | None:
    """Measured time of the kernel that the bins are relative to, if that of the reference is known."""
    if query.reference_time_us is None:
        return None
    time_us = query.reference_time_us / query.anchor_speedup
    return f"{time_us:.0f} us" if time_us >= 100 else f"{time_us:.3g} us"


def _properties(query: Query) -> list[Property]:
    """What a compiler made of baseline and candidate; nothing where the candidate was not compiled."""
    return [] if query.profile is None else properties_beside([query.anchor_profile, query.profile])


def _bin_table(bins: BinScheme) -> list[dict[str, Any]]:
    return [
        {"index": index, "label": bins.labels[index - 1], "interval": bins.describe(index)}
        for index in range(1, N_BINS + 1)
    ]


@lru_cache(maxsize=64)  # the baseline is the same for a whole pool
def _kernel(source: str, max_tokens: int) -> tuple[InertText, int]:
    """A source ready for a prompt, and how many tokens were left out of it."""
    inert = make_inert(source)
    text, trimmed = trim(inert.text, max_tokens)
    return InertText(text, inert.suspicions), trimmed


def _line(text: str) -> str:
    """A name or a description on one line."""
    return printable(make_inert(" ".join(text.split())).text)
