"""Errors as a user sees them: a line for each thing that is wrong, and the exit code of a command."""

from __future__ import annotations

import sys

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.printable import printable

__all__ = ["complain"]


def complain(error: Exception) -> int:
    """Say what is wrong, on the error output.

    Args:
        error: one of this package's own, or the operating system's.

    Returns:
        The exit code: 2 for wrong use, 1 for all else.
    """
    problems = error.problems if isinstance(error, ConfigError) else (str(error),)
    for problem in problems:
        print(f"error: {printable(problem)}", file=sys.stderr, flush=True)
    return 2 if isinstance(error, ConfigError) else 1
