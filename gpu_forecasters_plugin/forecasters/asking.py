"""Asking several forecasters the same questions: those that wait for others wait at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpu_forecasters_plugin.forecast import ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters.contained import ContainedForecaster

__all__ = ["ask_all"]


def ask_all(experts: Sequence[ContainedForecaster], queries: Sequence[Query]) -> list[list[ForecastOutcome]]:
    """The answers of every expert, in the order of the experts, whichever comes first.

    Of those that wait (see :class:`Forecaster`), all but one are asked in threads of their own: together they take as
    long as the slowest, not as long as all of them. When the caller is interrupted, they are closed.

    Args:
        experts: whom to ask; they keep what raises to themselves.
        queries: questions of one pool.
    """
    answers: dict[int, list[ForecastOutcome]] = {}

    def ask(number: int) -> None:
        answers[number] = experts[number].forecast(queries)

    waiting = [number for number, expert in enumerate(experts) if expert.waits]
    # Daemons: they keep no process alive that is to end.
    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in waiting[1:]]
    for thread in threads:
        thread.start()
    try:
        for number in range(len(experts)):
            if number not in waiting[1:]:
                ask(number)
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C, or a signal's own
        for number in waiting:
            experts[number].close()
        raise
    return [answers[number] for number in range(len(experts))]
