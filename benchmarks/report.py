"""Where figures go, and on which machine they were made."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.files import write_atomically, write_json

__all__ = ["RESULTS", "machine", "write_result"]

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


def write_result(name: str, numbers: Any, text: str) -> None:
    """Write the numbers as JSON and what people read as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", numbers)
    write_atomically(RESULTS / f"{name}.md", text)
    print(text)
