"""Events as JSON Lines: one file, a line per event, for whatever reads JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpu_forecasters_plugin.errors import OutputError
from gpu_forecasters_plugin.observers._base import Observer
from gpu_forecasters_plugin.observers.events import Event, RunStarted
from gpu_forecasters_plugin.observers.rows import as_row
from gpu_forecasters_plugin.section import Section

__all__ = ["JsonLinesObserver", "JsonLinesOptions"]


class JsonLinesOptions(Section):
    """Settings of the observer ``jsonl``.

    Attributes:
        path: the file, relative to the configuration's folder; several runs may share it.
    """

    path: Annotated[str, Field(min_length=1)]


class JsonLinesObserver(Observer):
    """Appends a line per event, each in one write, so that runs that share a file do not mix their lines.

    Every line has ``event`` (``run_started``, ``forecast``, ``decision``, ``measurement``, ``run_ended``), ``time`` and
    ``run``, the run's key; it is ASCII, whatever a kernel is called.

    Args:
        path: the file; it and its folder are made if missing.

    Raises:
        OutputError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        file = Path(path).expanduser()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (OSError, ValueError) as error:  # a path that holds a NUL is no path
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{file} cannot be written: {reason}") from None
        self._run = ""
        self._torn = False

    def notify(self, event: Event) -> None:
        """Append the event."""
        if isinstance(event, RunStarted):
            self._run = event.run_key
        row = as_row(event) | {"run": self._run}
        row.pop("run_key", None)
        line = (json.dumps(row, allow_nan=False) + "\n").encode("ascii")
        # After a line that a full disk has cut, the next one begins where a reader looks for it.
        data = b"\n" + line if self._torn else line
        written = os.write(self._descriptor, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(f"only {written} of {len(data)} bytes were written")

    def close(self) -> None:
        os.close(self._descriptor)
