"""Tables on the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["table_console"]

_PIPE_WIDTH = 120
_NARROWEST = 80


def table_console(narrowest: int = _NARROWEST) -> Console:
    """A console for tables whose cells are not to be cut short: names are not taken for markup.

    A pipe has no width, and gets lines that are wide enough. A narrow terminal folds its lines: a number that is left
    out is worse.

    Args:
        narrowest: columns that the tables take.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width if sys.stdout.isatty() else _PIPE_WIDTH, narrowest)
    return console
