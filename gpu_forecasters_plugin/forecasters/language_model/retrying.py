"""Answers without a reply: what a status, an error or a header means for the next attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time

from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure

__all__ = ["LONGEST_WAIT_S", "Failed", "failed_by_status", "retry_after_s"]

LONGEST_WAIT_S = 86_400.0
"""A longer wait that is asked for is read as this one: no forecast has a deadline beyond it."""
_RETRIED_STATUS = frozenset({408, 409, 425, 429, *range(500, 600)})


@dataclass(frozen=True)
class Failed:
    """An attempt without a reply.

    Attributes:
        failure: what a forecast that gets no further attempt says.
        again: whether another attempt may do better.
        wait_s: what the endpoint asks to wait, in seconds.
        refused_parameters: whether the request might be taken with other parameters.
    """

    failure: ForecastFailure
    again: bool = True
    wait_s: float | None = None
    refused_parameters: bool = False


def failed_by_status(status: int, detail: str, headers: Mapping[str, str]) -> Failed:
    """What an HTTP status that is no success means.

    Args:
        status: the status.
        detail: what the endpoint said with it.
        headers: the answer's headers; names in any case.
    """
    wait = retry_after_s(headers, time()) if status in _RETRIED_STATUS else None
    if wait is not None:
        detail = f"{detail} (asks to wait {wait:.0f} s)"
    if status == 429:
        kind = FailureKind.RATE_LIMITED
    elif status in _RETRIED_STATUS or status < 400:
        kind = FailureKind.UNREACHABLE
    else:
        kind = FailureKind.REFUSED
    failure = ForecastFailure(kind, detail)
    return Failed(failure, status in _RETRIED_STATUS, wait, refused_parameters=status in (400, 422))


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that an answer's headers ask to wait, at most a day; ``None`` where they ask for nothing sensible.

    Args:
        headers: the answer's headers; names in any case.
        now: seconds since the epoch, for dates.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        seconds = float(text) / unit if _is_decimal(text) else _seconds_until(text, now)
        if seconds is not None:
            return min(seconds, LONGEST_WAIT_S)
    return None


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def _seconds_until(date: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
