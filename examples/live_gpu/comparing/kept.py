"""What an earlier start of the same command has left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["kept_document"]


def kept_document(path: Path, kind: type, *fields: str) -> Any:
    """A JSON document; ``None`` where there is no file.

    Args:
        path: the file.
        kind: of the document: ``dict``, or ``list`` of such.
        fields: what it, or each of its rows, must have.

    Raises:
        ConfigError: the file holds no such document.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it, and start again") from None
    rows = document if isinstance(document, list) else [document]
    whole = all(isinstance(row, dict) and row.keys() >= set(fields) for row in rows)
    if not isinstance(document, kind) or not whole:
        raise ConfigError(f"{path} is not what was written there: remove it, and start again")
    return document
