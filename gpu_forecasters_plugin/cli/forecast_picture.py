"""A forecast on the terminal: eight bars, and what a run would make of them."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.forecast import Forecast, ForecastCost
from gpu_forecasters_plugin.look import Look
from gpu_forecasters_plugin.printable import printable

__all__ = ["draw"]

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def draw(look: Look) -> None:
    """Draw what was forecast; of a failure, only what was asked and what it cost."""
    # A pipe has no width: wide enough that no line is folded.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    device = look.query.device
    model = f", model {look.model}" if look.model else ""
    console.print(printable(f"forecaster {look.forecaster}{model}, device {device}"), soft_wrap=True)
    console.print(printable(f"based on: {look.basis}"), soft_wrap=True)
    if isinstance(look.outcome, Forecast):
        console.print()
        for bar in _bars(look.outcome, _takes_blocks(console)):
            console.print(bar, soft_wrap=True)
        console.print()
        for line in _findings(look, look.outcome):
            console.print(printable(line), soft_wrap=True)
    if look.verdict is not None:
        console.print(printable(f"compiler    {look.verdict.headline()}"), soft_wrap=True)
    console.print(f"cost        {_cost(look.outcome.cost)}", soft_wrap=True)


def _takes_blocks(console: Console) -> bool:
    try:
        _EIGHTHS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _bars(forecast: Forecast, takes_blocks: bool) -> list[Text]:
    names = max(len(label) for label in BINS.labels)
    intervals = max(len(BINS.describe(number)) for number in range(1, N_BINS + 1))
    lines = []
    for number, (label, probability) in enumerate(
        zip(BINS.labels, forecast.probabilities, strict=True), start=1
    ):
        is_predicted = number == forecast.predicted_bin
        bar = _blocks(probability) if takes_blocks else "#" * round(probability * _BAR_WIDTH)
        line = (
            f"{number}  {label:<{names}}  {BINS.describe(number):<{intervals}}  {probability:6.1%}  {bar}"
            f"{'  <- predicted' if is_predicted else ''}"
        )
        lines.append(Text(line.rstrip(), style="bold" if is_predicted else ""))
    return lines


def _blocks(probability: float) -> str:
    """A bar in eighths of a character, :data:`_BAR_WIDTH` characters for certainty."""
    full, eighths = divmod(round(probability * _BAR_WIDTH * 8), 8)
    return _EIGHTHS[8] * full + _EIGHTHS[eighths].strip()


def _findings(look: Look, forecast: Forecast) -> list[str]:
    number = forecast.predicted_bin
    reason = look.deferred_because
    lines = [
        f"predicted   bin {number}, {BINS.labels[number - 1]} ({BINS.describe(number)})",
        f"confidence  {look.confidence:.2f} ({look.deferral.confidence})",
        f"expected    {2 ** forecast.expected_log2():.3g}x",
        f"deferred    {'no' if reason is None else f'yes, to the GPU: {reason}'}",
    ]
    if forecast.p_ok is not None:
        lines.append(
            f"runs right  {forecast.p_ok:.0%}; does not build or run {forecast.p_invalid or 0.0:.0%}, "
            f"wrong results {forecast.p_incorrect or 0.0:.0%}"
        )
    if forecast.covered_mass is not None:
        lines.append(f"labels      have {forecast.covered_mass:.1%} of the model's probability")
    if forecast.disagrees:
        lines.append("note        the model named another bin than the one it gave the largest probability")
    return lines


def _cost(cost: ForecastCost) -> str:
    parts = [f"{cost.seconds:.2f} s" if cost.seconds >= 1 else f"{cost.seconds * 1000:.0f} ms"]
    if cost.prompt_tokens or cost.completion_tokens:
        parts.append(f"{cost.prompt_tokens} prompt tokens ({cost.cached_tokens} cached)")
        parts.append(f"{cost.completion_tokens} completion tokens ({cost.reasoning_tokens} of reasoning)")
    if cost.gpu_seconds:
        parts.append(f"{cost.gpu_seconds:.3g} GPU-seconds")
    return ", ".join(parts)
