"""The ledger of a search that is replayed in this process: kept, so that its story can be told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE

__all__ = ["search_ledger"]


@contextmanager
def search_ledger(folder: Path) -> Iterator[Ledger]:
    """A new ledger, in a folder that is held meanwhile so that whoever watches sees the search go on.

    Args:
        folder: the search's own; what an interrupted comparison has left there is deleted.

    Raises:
        OutputError: the folder cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    hold_folder(folder)
    try:
        # A replay that a power cut ends is begun again: waiting for the disk would be most of its time.
        with closing(Ledger(folder / LEDGER_FILE, durable=False)) as ledger:
            yield ledger
    finally:
        release_folder(folder)
