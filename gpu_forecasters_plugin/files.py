"""Files that are whole or absent, and folders that a socket fits into."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["atomic_file", "socket_folder", "write_atomically"]

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
