"""Files of JSON lines that outlive whoever was writing them: a line that was cut is skipped, and costs no other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["append_row", "rows_of"]


def rows_of(journal: Path, *fields: str) -> Iterator[dict[str, Any]]:
    """The rows that are whole, in order; none where there is no file.

    Args:
        journal: the file.
        fields: what a row must have.
    """
    if not journal.exists():
        return
    for line in journal.read_bytes().split(b"\n"):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):  # cut, or not UTF-8
            continue
        if isinstance(row, dict) and row.keys() >= set(fields):
            yield row


def append_row(journal: Path, row: dict[str, Any]) -> None:
    """Write a row, to disk, on a line of its own also behind one that was cut.

    Raises:
        OSError: it cannot be written.
    """
    with journal.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        cut = size > 0 and file.read(1) != b"\n"
        file.write((b"\n" if cut else b"") + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
