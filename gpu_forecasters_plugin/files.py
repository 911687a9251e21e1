"""Files that are whole or absent, folders for results, and folders that a socket fits into."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gpu_forecasters_plugin.errors import ConfigError, OutputError

__all__ = ["atomic_file", "prepare_folder", "socket_folder", "write_atomically", "write_json"]

_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket that Linux takes."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it takes its name when the block ends without error, and is gone otherwise.

    Its readers, and whoever comes after a crash, see the old one or the new one.

    Args:
        path: the file; its folder exists.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    if path.is_dir():  # now, and not when everything was written
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # In the same folder: a rename across file systems is no rename.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            # Before the rename, or a power cut may leave an empty file under the final name.
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file in one piece, as :func:`atomic_file` does.

    Args:
        path: the file; its folder exists.
        content: bytes, or text that is written as UTF-8.
    """
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON, in one piece.

    Args:
        path: the file; its folder exists.
        document: plain values; what has no number is ``None``, since JSON has neither NaN nor infinity.
    """
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def prepare_folder(folder: Path, names: Sequence[str] = ("summary.json",)) -> None:
    """Create a folder for results, and make sure that they can be written: before the work that they cost.

    Args:
        folder: created if missing, with all above it.
        names: files that will be written there.

    Raises:
        OutputError: the folder, or one of the files, cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="."):
            pass
    except (OSError, ValueError) as error:  # a path that holds a NUL is no path
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"folder {folder} cannot be written: {reason}") from None
    for name in names:
        if (folder / name).is_dir():
            raise OutputError(f"{folder / name} cannot be written: it is a folder")


def socket_folder(socket_name: str) -> Path:
    """A new private folder in which a Unix socket of that name can be bound.

    The folder for temporary files comes first; where its path is too long for a socket, ``/tmp`` and the like do.

    Raises:
        ConfigError: there is no such folder.
    """
    for parent in (None, os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"):
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpu-forecasters-", dir=parent))
        except OSError:
            continue
        if len(os.fsencode(folder / socket_name)) <= _SOCKET_PATH_BYTES:
            return folder
        folder.rmdir()
    raise ConfigError("no folder for a socket: the path of TMPDIR is too long, and /tmp cannot be written")
