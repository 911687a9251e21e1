"""Verdicts that were reached before: what was asked is what they are filed under."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.screen.binaries import binary_tool
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["VerdictCache", "compiler_versions"]


@lru_cache(maxsize=1)
def compiler_versions() -> dict[str, str]:
    """What compiles here; a verdict of other versions says nothing."""
    found = {}
    for package in ("torch", "triton"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    nvcc = binary_tool("nvcc")
    if nvcc is not None:
        found["nvcc"] = f"{os.path.realpath(nvcc)}@{os.stat(nvcc).st_mtime_ns}"
    return found


class VerdictCache:
    """A folder of verdicts, one file each. Thread-safe, and safe to share between processes.

    What cannot be read counts as not there; what cannot be written is forgotten when the process ends.
    """

    def __init__(self, folder: Path | None) -> None:
        """Open a cache.

        Args:
            folder: where verdicts are kept; ``None`` keeps them in this process only.
        """
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Verdict] = {}
        self._callers: dict[str, str] = {}

    def key(self, job: ScreenJob) -> str:
        """Hash of everything that a verdict depends on: text, architecture, caller, compilers, this package."""
        caller = str(job.evaluator or job.task_file)
        if caller not in self._callers:
            with open(caller, "rb") as file:
                self._callers[caller] = hashlib.sha256(file.read()).hexdigest()
        fields = job.to_json() | {"caller": self._callers[caller], "package": __version__}
        fields |= {"compilers": compiler_versions()}
        for name in ("seconds", "memory_mib"):
            del fields[name]
        text = json.dumps(fields, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:40]

    def get(self, key: str) -> Verdict | None:
        """The verdict filed under a key."""
        with self._lock:
            if key in self._known:
                return self._known[key]
        if self._folder is None:
            return None
        try:
            verdict = Verdict.from_json(json.loads((self._folder / f"{key}.json").read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with self._lock:
            self._known[key] = verdict
        return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        """File a verdict."""
        with self._lock:
            self._known[key] = verdict
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self._folder / f"{key}.json", json.dumps(verdict.to_json()))
