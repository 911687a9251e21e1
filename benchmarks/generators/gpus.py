"""The GPUs of this machine, as nvidia-smi sees them."""

from __future__ import annotations

import subprocess


def gpu_state(gpu: int) -> dict[str, str]:
    """What nvidia-smi says of a device: name, driver and clocks (nothing is changed); empty without it."""
    fields = (
        "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
    )
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {}
    return dict(zip(fields.split(","), (part.strip() for part in text.split(",")), strict=True))


def gpu_count() -> int:
    """How many GPUs nvidia-smi lists."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return len(listed.stdout.strip().splitlines())
