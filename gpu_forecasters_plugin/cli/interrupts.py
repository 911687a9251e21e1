"""Ctrl-C and SIGTERM end a command in good order: one line, and the exit code that shells expect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

__all__ = ["Terminated", "interruptible"]


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
        raise typer.Exit(128 + (signal.SIGTERM if terminated else signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
