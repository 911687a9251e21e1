"""Where figures go, and on which machine they were made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.files import write_atomically, write_json

__all__ = ["RESULTS", "machine", "provenance", "write_result"]

RESULTS = Path(__file__).with_name("results")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> str:
    """One sentence: cores, processor, Python, date."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"Made on {os.cpu_count()} cores ({_processor()}), Python {platform.python_version()}, {today}."


_VERSIONS_OF = ("gpu-forecasters-plugin", "numpy", "openevolve", "shinka-evolve")


def _commit() -> str:
    """The checkout's commit, with ``+changes`` where files differ from it."""
    git = ["git", "-C", str(RESULTS.parent)]
    try:
        told = subprocess.run(
            [*git, "describe", "--always", "--abbrev=12", "--dirty=+changes"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def provenance() -> dict[str, Any]:
    """Machine, date, versions and commit that figures are made with."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS_OF:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions,
        "commit": _commit(),
    }


def write_result(name: str, numbers: Any, text: str, folder: Path | None = None) -> None:
    """Write the numbers as JSON and what people read as Markdown; into :data:`RESULTS` unless a folder is given."""
    folder = RESULTS if folder is None else folder
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", numbers)
    write_atomically(folder / f"{name}.md", text)
    print(text)
