"""Which GPU measures: for the ledger's identity and for forecasts. Needs no torch."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

__all__ = ["Device", "detect_device"]

UNKNOWN_DEVICE = "unknown"


@dataclass(frozen=True)
class Device:
    """Name and driver version of a GPU; the driver is empty when nobody knows it."""

    name: str
    driver: str = ""


def detect_device(setting: str = "auto") -> Device:
    """The device of a ``device:`` setting.

    Args:
        setting: a name, taken as it is, or ``auto``: the first GPU that ``nvidia-smi`` lists, else
            ``unknown`` (a remote or simulated evaluator).
    """
    if setting != "auto":
        return Device(setting)
    program = shutil.which("nvidia-smi")
    if program is None:
        return Device(UNKNOWN_DEVICE)
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return Device(UNKNOWN_DEVICE)
    fields = [part.strip() for part in answer.splitlines()[0].split(",")] if answer.strip() else []
    return Device(fields[0], fields[1]) if len(fields) == 2 else Device(UNKNOWN_DEVICE)
