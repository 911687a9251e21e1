"""A decision in words, for the texts that a host keeps beside a program; never among its metrics."""

from __future__ import annotations

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.decision import Decision
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure

__all__ = ["decision_note"]


def decision_note(decision: Decision) -> str:
    """What was decided and why, with the forecast."""
    forecast = decision.forecast
    if isinstance(forecast, Forecast):
        factor = 2 ** forecast.expected_log2()
        label = BINS.labels[forecast.predicted_bin - 1]
        text = f"forecast {factor:.2f}x ({label}, confidence {forecast.confidence():.2f})"
    elif isinstance(forecast, ForecastFailure):
        text = f"no forecast ({forecast.kind})"
    else:
        text = decision.detail or "not forecast"
    return f"{decision.action}: {decision.reason}; {text}"
