"""What a check finds, and how one is kept from hanging.

A check is a function without arguments that matter to others: it looks at one thing and returns one
:class:`CheckResult`. It changes nothing that a run would see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["CheckResult", "Status", "bounded"]

_GRACE_S = 1.0
"""What a check may take longer: one that keeps the deadline by itself says more about what it waited for."""


class Status(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """One finding.

    Attributes:
        name: what was looked at.
        status: ``fail`` where something that the configuration needs is missing; ``warn`` where a run would go on
            without it.
        seen: what was found.
        advice: what to do about it; empty where there is nothing to do.
        subject: which of several was looked at (an endpoint's URL); empty where there is one.
        seconds: how long it took.
        hung: it did not end by its deadline.
    """

    name: str
    status: Status
    seen: str
    advice: str = ""
    subject: str = ""
    seconds: float = 0.0
    hung: bool = False


def bounded(name: str, check: Callable[[], CheckResult], deadline_s: float, subject: str = "") -> CheckResult:
    """The result of a check, or of its not ending in time, or of its raising.

    Args:
        name: what is looked at.
        check: the check; left behind in its thread when it does not end.
        deadline_s: how long to wait, in seconds.
        subject: which of several is looked at.
    """
    results: list[CheckResult] = []

    def run() -> None:
        try:
            results.append(check())
        except Exception as error:  # whatever a host's or a vendor's package raises is a finding
            text = " ".join(f"{type(error).__name__}: {error}".split())
            results.append(CheckResult(name, Status.FAIL, text))

    started = time.monotonic()
    thread = threading.Thread(target=run, name=f"gpu-forecasters-doctor-{name}", daemon=True)
    thread.start()
    thread.join(deadline_s + _GRACE_S)
    found = (
        results[0] if results else CheckResult(name, Status.FAIL, f"no answer in {deadline_s:g} s", hung=True)
    )
    return replace(found, subject=subject, seconds=time.monotonic() - started)
