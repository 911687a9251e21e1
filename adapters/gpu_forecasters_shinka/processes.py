"""Ends evaluations with all that they have started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["ProcessFamily", "end_orphans"]


class ProcessFamily:
    """A process and its descendants, those among them that have lost their parent since too."""

    def __init__(self, pid: int) -> None:
        self._members: set[psutil.Process] = set()
        with suppress(psutil.NoSuchProcess):
            self._members.add(psutil.Process(pid))

    def look(self) -> None:
        """Take note of who is there now."""
        for member in list(self._members):
            with suppress(psutil.NoSuchProcess):
                self._members.update(member.children(recursive=True))

    def end(self) -> None:
        """Kill everybody, and whoever they start meanwhile."""
        for member in self._members:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                member.suspend()
        known = 0
        while known != len(self._members):
            known = len(self._members)
            self.look()
            for member in self._members:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    member.kill()


def end_orphans(results_folder: Path) -> int:
    """End local evaluations that a killed run has left running.

    Nobody waits for them, and on a GPU they would slow down those that are measured. They are known by the folder in
    their ``--results_dir`` argument; the caller holds the folder, so that no run of its own is among them.

    Returns:
        How many were ended.
    """
    folder = results_folder.resolve()
    found = [process for process in psutil.process_iter(["cmdline"]) if _evaluates_below(process, folder)]
    for process in found:
        family = ProcessFamily(process.pid)
        family.look()
        family.end()
    return len(found)


def _evaluates_below(process: psutil.Process, folder: Path) -> bool:
    words = process.info["cmdline"] or []
    if process.pid == os.getpid() or "--results_dir" not in words[:-1] or "--program_path" not in words:
        return False
    target = Path(words[words.index("--results_dir") + 1])
    try:
        return (process.cwd() / target).resolve().is_relative_to(folder)
    except (psutil.Error, OSError):  # it is gone, or somebody else's
        return False
