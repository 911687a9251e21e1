"""Published adapters and data sets by their names on Hugging Face, where that can be reached or has been before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.printable import printable

__all__ = ["hub_folder", "hub_row_files", "is_hub_name"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ADAPTER_FILES = ["adapter_config.json", "adapter_model.safetensors", "forecaster.json"]
_ROW_FILES = ("*.parquet", "*.jsonl", "*.jsonl.gz")


def is_hub_name(name: str, folder: Path) -> bool:
    """Whether a name is one of a hub, such as ``owner/name``; a path below the folder that exists is not.

    Args:
        name: as a user wrote it.
        folder: that relative paths begin at.
    """
    return _NAME.fullmatch(name) is not None and not (folder / name).exists()


def hub_folder(name: str, kind: Literal["model", "dataset"]) -> Path:
    """A local copy of what is published under a name; of a model, its adapter alone.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        ConfigError: it cannot be had.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingExtraError("huggingface_hub", "train") from None
    wanted = _ADAPTER_FILES if kind == "model" else [f"**{pattern}" for pattern in _ROW_FILES]
    try:
        return Path(huggingface_hub.snapshot_download(name, repo_type=kind, allow_patterns=wanted))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = printable(" ".join(str(error).split())[:200])
        raise ConfigError(f"{name}: neither a file here nor a {kind} that can be fetched: {reason}") from None


def hub_row_files(name: str) -> list[Path]:
    """The files of rows of a published data set, all of its parts.

    Raises:
        MissingExtraError, ConfigError: as :func:`hub_folder`; or the set has no such file.
    """
    folder = hub_folder(name, "dataset")
    found = sorted(path for pattern in _ROW_FILES for path in folder.rglob(pattern))
    if not found:
        raise ConfigError(f"{name}: the data set has no file that ends in .parquet, .jsonl or .jsonl.gz")
    return found
