"""Rows of measurements: one file for all tasks, appended to as they come, and a file per task and run to keep.

A row names its ``task``, its ``run`` and the ``device``, in short; a row with ``meta`` says how those after it were
measured.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.recorded.shipped import device_of, recorded_task_names, short_device

ROWS = Path(__file__).with_name("rows")

Row = dict[str, Any]


class RowFile:
    """A file that rows are appended to; each is on the disk when `add` returns. Several threads may share it.

    Args:
        path: Its path; what is there stays.
        device: Short name of the device.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._device = device
        if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")

    def add(self, task: str, run: int, row: Row) -> None:
        """Appends a row."""
        line = json.dumps({"task": task, "run": run, "device": self._device} | row)
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, gzip-compressed or not, less lines that are damaged, as by a kill that cuts one short.

    Raises:
        OSError: The file cannot be read, or what is compressed in it is no longer what it was.
    """
    for line in (_unzipped(path) if path.suffix == ".gz" else path.read_bytes()).splitlines():
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _unzipped(path: Path) -> bytes:
    """What is compressed in a file; where that was cut short, what is left of it."""
    pieces = []
    with gzip.open(path) as file:
        try:
            while piece := file.read1():
                pieces.append(piece)
        except EOFError:
            pass
        except (gzip.BadGzipFile, zlib.error) as error:  # which of its rows are wrong cannot be told
            raise gzip.BadGzipFile(f"{path} is damaged: {error}") from None
    return b"".join(pieces)


def _has(row: Row, **kinds: type) -> bool:
    return all(isinstance(row.get(key), kind) for key, kind in kinds.items())


def outcomes(paths: Iterable[Path], device: str) -> dict[tuple[str, int], dict[str, Row]]:
    """What files hold of a device: by task and run, the row of each source; a later file's counts."""
    found: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for path in paths:
        for row in read_rows(path):
            if row.get("device") == device and _has(row, task=str, run=int, id=str, outcome=str):
                found[row["task"], row["run"]][row["id"]] = row
    return found


def name_to_keep(task: str, device: str) -> str:
    """What the files of a task on a device are called: by the bare name on the first device that it was measured on."""
    home = short_device(device_of(task)) if task in recorded_task_names() else device
    return task if device == home else f"{task}@{device}"


def collect(paths: Iterable[Path], folder: Path) -> list[str]:
    """Files the rows of several files under ``NAME.runN.jsonl.gz``, and returns the names.

    What such a file held before is replaced; a row that several files have is kept once.
    """
    kept: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for path in paths:
        for row in read_rows(path):
            if not _has(row, task=str, run=int, device=str):
                continue
            task, run, device = row.pop("task"), row.pop("run"), row.pop("device")
            kept[name_to_keep(task, device), run][json.dumps(row)] = None
    for (name, run), rows in kept.items():
        text = "".join(f"{row}\n" for row in rows)
        (folder / f"{name}.run{run}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return sorted({name for name, _ in kept})
