"""Circuit breaker: a forecaster that is down is not asked for every pool."""

from __future__ import annotations

import logging

__all__ = ["OutageBreaker"]

logger = logging.getLogger(__name__)

_TOLERATED = 2
_LONGEST_PAUSE = 16


class OutageBreaker:
    """Counts pools without a single forecast.

    After the third in a row it pauses the forecaster for one pool, then two, four, up to sixteen, asking once in
    between; one forecast closes it again. An outage is announced once, and so is its end.
    """

    def __init__(self) -> None:
        self._failed = 0
        self._pause = 0

    @property
    def open(self) -> bool:
        """Whether the forecaster is not to be asked for the next pool."""
        return self._pause > 0

    def skipped(self) -> None:
        """A pool was decided without asking."""
        self._pause -= 1

    def record(self, *, answered: bool, detail: str = "") -> None:
        """A pool was forecast.

        Args:
            answered: whether at least one candidate got a forecast.
            detail: what the forecaster said instead.
        """
        if answered:
            if self._failed:
                logger.warning("forecaster answers again: the surrogate selects as before")
            self._failed = self._pause = 0
            return
        if not self._failed:
            logger.error(
                "forecaster is down (%s): candidates are measured at random within the quota", detail
            )
        self._failed += 1
        if self._failed > _TOLERATED:
            self._pause = min(_LONGEST_PAUSE, 2 ** (self._failed - _TOLERATED - 1))
