"""JSON Lines files, gzip-compressed or not, whatever they are named."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import GpuForecastersError

__all__ = ["parse_json_lines", "read_json_lines", "stream_json_lines"]

_GZIP_MAGIC = b"\x1f\x8b"


def parse_json_lines(
    data: bytes, name: str, error: type[GpuForecastersError]
) -> list[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and objects of a file; blank lines are left out.

    Args:
        data: the file's bytes.
        name: what errors call it.
        error: what is raised, with the line, when it is not JSON Lines of objects.
    """
    try:
        # By content, not by name: both kinds get renamed.
        text = (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as problem:
        raise error(f"{name}: damaged gzip file: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{name}: not UTF-8 text (byte {problem.start})") from problem
    # split, not splitlines: JSON strings may hold U+2028 and its like unescaped.
    return list(_objects(text.split("\n"), name, error))


def read_json_lines(
    path: Path, name: str, error: type[GpuForecastersError]
) -> list[tuple[int, dict[str, Any]]]:
    """:func:`parse_json_lines` of a file, which may not be readable, or no file at all but a device or a pipe."""
    try:
        with _open_regular(path) as file:
            data = file.read()
    except OSError as problem:
        raise error(f"{name}: cannot be read: {problem.strerror or problem}") from problem
    except ValueError as problem:  # no path at all: it holds a NUL
        raise error(f"{name}: cannot be read: {problem}") from problem
    return parse_json_lines(data, name, error)


def stream_json_lines(
    path: Path, name: str, error: type[GpuForecastersError]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What :func:`read_json_lines` returns, one by one: for files of which not all is to be held at once."""
    try:
        with _open_regular(path) as file:
            packed = file.peek(2).startswith(_GZIP_MAGIC)
            plain = gzip.GzipFile(fileobj=file) if packed else file
            with io.TextIOWrapper(plain, "utf-8-sig", newline="\n") as lines:
                yield from _objects(lines, name, error)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise error(f"{name}: damaged gzip file: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{name}: not UTF-8 text") from problem
    except OSError as problem:
        raise error(f"{name}: cannot be read: {problem.strerror or problem}") from problem
    except ValueError as problem:  # no path at all: it holds a NUL
        raise error(f"{name}: cannot be read: {problem}") from problem


def _objects(
    lines: Iterable[str], name: str, error: type[GpuForecastersError]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise error(f"{name}, line {number}: not JSON: {problem}") from problem
        if not isinstance(row, dict):
            raise error(f"{name}, line {number}: expected a JSON object, got {type(row).__name__}")
        yield number, row


def _open_regular(path: Path) -> io.BufferedReader:
    """A regular file, open; others may never end, or never begin."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(
            errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is a device or a pipe, no file"
        )
    return open(descriptor, "rb")
