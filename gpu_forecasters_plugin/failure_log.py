"""Failures of somebody else's code that a run survives: the first is announced, the others are counted."""

from __future__ import annotations

import logging

from gpu_forecasters_plugin.printable import printable

__all__ = ["FailureLog"]

logger = logging.getLogger(__name__)

_LONGEST_DETAIL = 500


class FailureLog:
    """Says once, loudly, who fails and what that means.

    Args:
        who: whose code it is.

    Attributes:
        count: how many failures there were.
    """

    def __init__(self, who: str) -> None:
        self.count = 0
        self._who = who

    def add(self, error: BaseException, consequence: str) -> str:
        """Count a failure.

        Args:
            error: what was raised.
            consequence: what happens in its place.

        Returns:
            What went wrong, in one line.
        """
        self.count += 1
        problem = printable(" ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_DETAIL])
        level = logging.ERROR if self.count == 1 else logging.DEBUG
        logger.log(
            level,
            "%s raised %s: %s (error %d; later ones at level debug)",
            self._who,
            problem,
            consequence,
            self.count,
            exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
        )
        return problem
