"""Rows of a ledger in files: JSON Lines, gzip-compressed or not, and Parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError, RowFileError
from gpu_forecasters_plugin.files import atomic_file
from gpu_forecasters_plugin.json_lines import stream_json_lines
from gpu_forecasters_plugin.ledger.exchange import PairRow, check_row

__all__ = ["read_rows", "write_rows"]

Row = dict[str, Any]

_PARQUET_BATCH = 500
_FLOATS = ("speedup", "time_us", "sampling_probability")


def _is_parquet(path: Path) -> bool:
    """Whether a file's name says Parquet.

    Raises:
        ConfigError: it says nothing that is known here.
    """
    if not path.name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        raise ConfigError(f"{path}: the name of a file of rows ends in .jsonl, .jsonl.gz or .parquet")
    return path.name.endswith(".parquet")


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a file, whole or not at all.

    Returns:
        How many.

    Raises:
        ConfigError: the file's name says no known format.
        MissingExtraError: Parquet without pyarrow.
        RowFileError: the file cannot be written.
    """
    write = _parquet_writer() if _is_parquet(path) else _write_lines
    try:
        with atomic_file(path) as file:
            return write(file, path, iter(rows))
    except OSError as error:
        raise RowFileError(f"{path}: cannot be written: {error.strerror or error}") from None
    except UnicodeEncodeError:
        raise RowFileError(f"{path}: Parquet takes no lone surrogates: write .jsonl instead") from None


def read_rows(path: Path, convert: Callable[[Row, str], Row] | None = None) -> Iterator[PairRow]:
    """The rows of a file, checked.

    Args:
        path: the file.
        convert: makes the columns of :class:`PairRow` out of a row as it was read, and of where it stands.

    Raises:
        ConfigError: the file's name says no known format.
        MissingExtraError: Parquet without pyarrow.
        RowFileError: it cannot be read, or a row is wrong; names the row and the column.
    """
    read = _parquet_reader() if _is_parquet(path) else _read_lines
    for where, row in read(path):
        place = f"{path}, {where}"
        yield check_row(row if convert is None else convert(row, place), place)


def _write_lines(file: BinaryIO, path: Path, rows: Iterator[Row]) -> int:
    count = 0
    # No time and no name inside: the same rows are the same bytes.
    packed = (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.name.endswith(".gz") else nullcontext(file)
    )
    with packed as target:
        for row in rows:
            target.write(json.dumps(row).encode() + b"\n")
            count += 1
    return count


def _read_lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, row in stream_json_lines(path, str(path), RowFileError):
        yield f"line {number}", row


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", "parquet") from None
    return pyarrow


def _parquet_writer() -> Callable[[BinaryIO, Path, Iterator[Row]], int]:
    arrow = _pyarrow()
    schema = arrow.schema(
        [(name, arrow.float64() if name in _FLOATS else arrow.string()) for name in PairRow.model_fields]
    )

    def write(file: BinaryIO, path: Path, rows: Iterator[Row]) -> int:
        count = 0
        with arrow.parquet.ParquetWriter(file, schema) as writer:
            while batch := list(islice(rows, _PARQUET_BATCH)):
                writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
                count += len(batch)
        return count

    return write


def _parquet_reader() -> Callable[[Path], Iterator[tuple[str, Row]]]:
    arrow = _pyarrow()

    def read(path: Path) -> Iterator[tuple[str, Row]]:
        try:
            batches = arrow.parquet.ParquetFile(path).iter_batches(_PARQUET_BATCH)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield f"row {number}", row
        except (OSError, ValueError, arrow.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise RowFileError(f"{path}: cannot be read: {reason}") from None

    return read
