"""Files of features that ship beside this module, so that no run has to read and analyse thousands of sources first.

Features are worth nothing to a version that extracts others, so each file names those that it holds.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import STRUCTURE_NAMES
from gpu_forecasters_plugin.forecasters.learned.profile_features import PROFILE_NAMES

__all__ = ["pack", "read_shipped", "unpack"]

logger = logging.getLogger(__name__)

_FEATURES = {"structure": list(STRUCTURE_NAMES), "profiles": list(PROFILE_NAMES)}


def pack(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file.

    Args:
        head: what JSON can hold; the names of the features are added.
        arrays: by any names but ``head``.
    """
    packed = io.BytesIO()
    written = {"head": np.array(json.dumps({**head, **_FEATURES})), **arrays}
    np.savez_compressed(packed, **written)  # type: ignore[arg-type]
    return packed.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Inverse of :func:`pack`.

    Raises:
        ValueError: The features in it are not those that this version extracts.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    head: dict[str, Any] = json.loads(str(arrays.pop("head")))
    if any(head.get(kind) != names for kind, names in _FEATURES.items()):
        raise ValueError(
            "the file holds other features: write it anew (python -m benchmarks.recorded_kernels)"
        )
    return head, arrays


def read_shipped(name: str, lost: str) -> bytes | None:
    """The bytes of a file beside this module; ``None``, and a warning, where it is missing.

    Args:
        name: of the file.
        lost: what is not known without it, for the warning.
    """
    file = resources.files("gpu_forecasters_plugin.forecasters.learned").joinpath(name)
    if file.is_file():
        return file.read_bytes()
    logger.warning("%s is missing: nothing is known of %s; install the package anew", file, lost)
    return None
