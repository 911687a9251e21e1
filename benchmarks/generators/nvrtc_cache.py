"""Keeps what NVRTC builds for ``torch.cuda._compile_kernel`` in files, so that one process builds for another."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

from benchmarks.generators.compiling import architecture_of


def keep_nvrtc_binaries(folder: Path, device: str) -> None:
    """Makes this process look into `folder` before it builds, and leave there what it builds.

    Args:
        folder: For the files; it is made.
        device: Name of the GPU that is built for where the caller does not say; it may not be there.
    """
    import torch.cuda._utils as utils

    capability = architecture_of(device).name.removeprefix("sm_")
    folder.mkdir(parents=True, exist_ok=True)
    build = utils._nvrtc_compile

    def kept(
        source: str, name: str, compute_capability: str | None = None, *more: Any, **options: Any
    ) -> Any:
        wanted = compute_capability or capability
        digest = hashlib.sha256(
            repr((source, name, wanted, more, sorted(options.items()))).encode()
        ).hexdigest()
        path = folder / digest
        if path.exists():
            return pickle.loads(path.read_bytes())
        built = build(source, name, wanted, *more, **options)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(pickle.dumps(built))
        scratch.replace(path)
        return built

    utils._nvrtc_compile = kept
