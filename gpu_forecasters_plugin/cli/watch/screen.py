"""Where the pictures go: the whole terminal while the run goes on; a line per change where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from gpu_forecasters_plugin.cli.watch.frame import frame, status_line
from gpu_forecasters_plugin.cli.watch.target import Sight
from gpu_forecasters_plugin.errors import LedgerError, LedgerMissingError
from gpu_forecasters_plugin.printable import printable

__all__ = ["follow", "print_frame"]

Look = Callable[[], Sight]
"""How a run stands right now."""

_PIPE_WIDTH = 100
_NARROWEST = 72
"""Columns below which numbers of a picture would be cut off: what fits is a line, folded."""


def print_frame(look: Look) -> None:
    """Print a single picture."""
    console = _console()
    console.print(_picture(look(), console))


def follow(look: Look, every_s: float) -> None:
    """Show the run until it is over; the last picture stays.

    Raises:
        LedgerError: the ledger cannot be read, and never could.
    """
    console = _console()
    latest: Sight | None = None
    try:
        with _shown(console) as show:
            for found in _sights(look, every_s):
                latest = found if isinstance(found, Sight) else latest
                show(found)
    finally:
        if latest is not None:
            console.print(_picture(latest, console))


def _console() -> Console:
    # A pipe has no width.
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def _picture(sight: Sight, console: Console, height: int | None = None) -> RenderableType:
    if console.width < _NARROWEST:
        return Text(status_line(sight))
    return frame(sight, height=height)


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Sight | str], None]]:
    """A function that shows a run, or says why there is nothing to show."""
    if not sys.stdout.isatty():
        yield _ChangedLines()
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(found: Sight | str) -> None:
            height = console.size.height
            picture = Text(found) if isinstance(found, str) else _picture(found, console, height)
            live.update(picture, refresh=True)

        yield show


class _ChangedLines:
    """Prints a line whenever it differs from the one before."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, found: Sight | str) -> None:
        line = found if isinstance(found, str) else status_line(found)
        if line != self._said:
            print(line, flush=True)
            self._said = line


def _sights(look: Look, every_s: float) -> Iterator[Sight | str]:
    """The run as it is seen, or why it is not, again and again until it is over."""
    was_seen = False
    while True:
        try:
            sight = look()
        except LedgerMissingError as error:
            yield f"waiting: {printable(str(error))}"
        except LedgerError as error:
            if not was_seen:
                raise
            yield f"{printable(str(error))}; trying again"  # a database that is restarted, say
        else:
            was_seen = True
            yield sight
            if sight.over:
                return
        time.sleep(every_s)
