"""Ctrl-C and SIGTERM end a command in good order: one line, and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

__all__ = ["Terminated", "interruptible"]


_LONGEST_END_S = 15.0


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is to end a command as Ctrl-C does."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Let what runs inside clean up when Ctrl-C or SIGTERM ends it, and say so.

    Args:
        advice: what the user can do next.

    Raises:
        typer.Exit: code 130 after Ctrl-C, 143 after SIGTERM.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        typer.echo(f"{'terminated' if terminated else 'interrupted'}; {advice}", err=True)
        code = 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        _end_soon(code)
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_soon(code: int) -> None:
    """Have the process end before long, whatever it waits for: all of ours has been cleaned up.

    A signal may strike where a library has started a thread and not yet noted that it has. Python waits for every
    thread when it ends, and nobody would tell that one to.
    """

    def end() -> None:
        time.sleep(_LONGEST_END_S)
        os._exit(code)

    threading.Thread(target=end, name="gpu-forecasters-end", daemon=True).start()
