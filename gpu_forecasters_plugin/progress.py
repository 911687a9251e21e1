"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["WorkProgress"]

_LINE_EVERY_S = 5.0


class WorkProgress:
    """Counts measurements (or whatever ``unit`` says) towards a total. A context manager; writes to stderr."""

    def __init__(self, total: int | None, unit: str = "measurements") -> None:
        """Begin at nothing done.

        Args:
            total: units that there are to do; ``None`` where something else ends the work.
            unit: what is counted.
        """
        self._total = total
        self._unit = unit
        self._done = 0
        self._label = ""
        self._last_line = 0.0
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description:<22}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            # What is printed meanwhile goes above the bar, unless it goes to a file or a pipe.
            self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty())
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> WorkProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self._line(final=True)

    def update(self, done: int, label: str) -> None:
        """Say how far the work is.

        Args:
            done: units done so far.
            label: what is being done.
        """
        if (done, label) == (self._done, self._label):
            return
        changed = label != self._label
        self._done, self._label = done, label
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=label)
        elif changed or time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._line()

    def _line(self, *, final: bool = False) -> None:
        self._last_line = time.monotonic()
        total = "" if self._total is None else f"/{self._total}"
        finished = "done" if self._total is None or self._done >= self._total else "ended"
        print(
            f"{self._done}{total} {self._unit}: {finished if final else self._label}",
            file=sys.stderr,
            flush=True,
        )
