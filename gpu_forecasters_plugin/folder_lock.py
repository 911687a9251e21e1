"""One run at a time in an output folder."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from gpu_forecasters_plugin.errors import FolderInUseError
from gpu_forecasters_plugin.files import prepare_folder

__all__ = ["hold_folder", "is_held", "release_folder"]

_LOCK_FILE = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_FLOCK = "hhqqi0q"
"""Linux's ``struct flock``: type, whence, start, length, process; padded to whole words."""

_held: dict[Path, int] = {}
"""Descriptors of the lock files that this process holds. A record lock belongs to the process, not to a descriptor:
closing any other descriptor of the file would release it, so each file is opened once."""


def hold_folder(folder: Path) -> None:
    """Keep other processes' runs out of a folder until :func:`release_folder`, or the end of this process.

    The system takes the lock back however the process ends, and forked children do not inherit it. Holding a folder
    twice is holding it once.

    Args:
        folder: created if missing.

    Raises:
        OutputError: it cannot be written.
        FolderInUseError: another process holds it.
    """
    prepare_folder(folder)
    folder = _real(folder)
    if folder in _held:
        return
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise FolderInUseError(
                f"folder {folder} is in use by another run (process {holder or 'unknown'}): "
                "wait for it to end, or choose another output folder"
            ) from None
    _held[folder] = descriptor


def release_folder(folder: Path) -> None:
    """Let other processes in again; nothing happens when the folder is not held."""
    descriptor = _held.pop(_real(folder), None)
    if descriptor is not None:
        os.close(descriptor)


def is_held(folder: Path) -> bool | None:
    """Whether a run works in a folder right now, in this process or another of this machine; takes nothing.

    Returns:
        ``None`` where nobody can tell: no run has ever held it, or its file system knows no locks.
    """
    folder = _real(folder)
    if folder in _held:
        return True
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with (folder / _LOCK_FILE).open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
    except OSError:
        return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _real(folder: Path) -> Path:
    """The folder without links; of links that go round in a circle, one of them."""
    return Path(os.path.realpath(folder))
