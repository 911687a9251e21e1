"""A command that lives no longer than whoever has started it, however that one ends.

Between the two stands a small process of its own (``python -m gpu_forecasters_plugin.guardian DESCRIPTOR COMMAND...``).
It becomes the parent of whatever the command leaves behind, so that it finds all of it, in sessions of their own too.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from gpu_forecasters_plugin.screen.sandbox import linux

__all__ = ["guarded_process"]

_MODULE = "gpu_forecasters_plugin.guardian"


@contextmanager
def guarded_process(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as long as this block, and no longer than this process.

    Args:
        command: what to run, in a session of its own.
        settings: for ``subprocess.Popen``.

    Yields:
        The process to wait for; its exit code is the command's (128 and the signal's number, if one has ended it).
        After the block all that the command has started has ended.
    """
    # Nothing is ever sent: the lifeline can be read when its other end is closed, by this block or by our end.
    theirs, ours = os.pipe()
    with open(ours, "wb") as our_end:
        with open(theirs, "rb") as their_end:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(their_end.fileno()), *command],
                pass_fds=[their_end.fileno()],
                start_new_session=True,
                **settings,
            )
        try:
            yield process
        finally:
            our_end.close()
            process.wait()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main(lifeline: int, command: Sequence[str]) -> int:
    """Run a command until it ends or the lifeline is cut; then end all that is left of it.

    Returns:
        The command's exit code.
    """
    linux.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        child = subprocess.Popen(command)
        ended = os.pidfd_open(child.pid)
        select.select([ended, lifeline], [], [])
        code = child.poll()
    finally:
        linux.end_descendants()
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
