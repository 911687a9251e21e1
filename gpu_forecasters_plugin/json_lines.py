"""JSON Lines files, gzip-compressed or not, whatever they are named."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import GpuForecastersError

__all__ = ["parse_json_lines", "read_json_lines"]

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
    rows: list[tuple[int, dict[str, Any]]] = []
    # split, not splitlines: JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise error(f"{name}, line {number}: not JSON: {problem}") from problem
        if not isinstance(row, dict):
            raise error(f"{name}, line {number}: expected a JSON object, got {type(row).__name__}")
        rows.append((number, row))
    return rows


def read_json_lines(
    path: Path, name: str, error: type[GpuForecastersError]
) -> list[tuple[int, dict[str, Any]]]:
    """:func:`parse_json_lines` of a file, which may not be readable either."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise error(f"{name}: cannot be read: {problem.strerror or problem}") from problem
    except ValueError as problem:  # no path at all: it holds a NUL
        raise error(f"{name}: cannot be read: {problem}") from problem
    return parse_json_lines(data, name, error)
