"""From the log-probabilities of one token to the probabilities of the eight bins.

The labels are the digits "1" to "8", each one token in the usual vocabularies; a digit with a blank before it
is a token of its own, and both count. A label that the server did not report, or reported with a sentinel, is
unobserved: its probability is below everything reported, and it takes no part in the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpu_forecasters_plugin.bins import N_BINS
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.chat import TokenLogprobs

__all__ = ["LABELS", "label_token", "read_label_logprobs"]

LABELS = tuple(str(number) for number in range(1, N_BINS + 1))

_SENTINEL = -9999.0
"""vLLM's minus infinity, which JSON has not."""
_BLANKS = " \t\r\n\u2581\u0120\u010a"
"""White space, and what vocabularies write for a blank or a line's end."""
_LARGEST_SUM = 1.01
_ALL = 0.999


def label_token(tokens: Sequence[TokenLogprobs], label: str | None = None) -> TokenLogprobs | None:
    """The token that the answer's label is: the last that reads as it; without a label, the first of all."""
    if label is None:
        return tokens[0] if tokens else None
    return next((token for token in reversed(tokens) if token.token.strip(_BLANKS) == label), None)


def read_label_logprobs(
    alternatives: Mapping[str, float], min_label_mass: float
) -> Forecast | ForecastFailure:
    """The forecast in what might have stood at the label's place.

    Args:
        alternatives: log-probability by token text.
        min_label_mass: least probability that the labels together must have.

    Returns:
        The forecast; its covered mass is ``None`` where the server left other tokens no chance.
    """
    masses = [0.0] * N_BINS
    others_observed = False
    for token, logprob in alternatives.items():
        if not (math.isfinite(logprob) and logprob > _SENTINEL):
            continue
        label = token.strip(_BLANKS)
        if label in LABELS:
            masses[int(label) - 1] += math.exp(min(logprob, 1.0))
        else:
            others_observed = True
    covered = math.fsum(masses)
    if covered > _LARGEST_SUM:
        return ForecastFailure(
            FailureKind.INVALID,
            f"the labels' probabilities sum to {covered:.3g}: these are no log-probabilities",
        )
    if covered <= 0.0 or covered < min_label_mass:
        return ForecastFailure(
            FailureKind.INVALID,
            f"the eight bins have {covered:.3g} of the model's probability; min_label_mass is {min_label_mass:g}",
        )
    probabilities = tuple(mass / covered for mass in masses)
    # A server that held the token to the labels has given them the mass of all others: theirs is not known.
    held = covered > _ALL and not others_observed
    return Forecast(probabilities, covered, covered_mass=None if held else min(1.0, covered))
