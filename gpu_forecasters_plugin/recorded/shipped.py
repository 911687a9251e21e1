"""Which recorded tasks ship with the package, and on which devices they were measured.

A task has a file ``TASK.jsonl.gz``, which its bare name stands for, and one ``TASK@DEVICE.jsonl.gz`` for each further
device that its sources were measured on. A device's name is short here: ``h200`` for an "NVIDIA H200". What the
compiler said of a file's sources lies under the same name in another folder (see :mod:`.profiles`).
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
from importlib import resources
from typing import Any

from gpu_forecasters_plugin.errors import PoolFileError

__all__ = [
    "device_of",
    "existing_name",
    "name_of_file",
    "name_on",
    "pool_file",
    "profiles_file",
    "recorded_names",
    "recorded_task_names",
    "short_device",
]

_SUFFIX = ".jsonl.gz"


def _folder(kind: str) -> Any:
    return resources.files("gpu_forecasters_plugin.recorded").joinpath(kind)


def pool_file(name: str) -> Any:
    """The pool file of that name, there or not."""
    return _folder("data").joinpath(name + _SUFFIX)


def profiles_file(name: str) -> Any:
    """The file of what the compiler said of the sources of the pool file of that name, there or not."""
    return _folder("profiles").joinpath(name + _SUFFIX)


def recorded_names() -> tuple[str, ...]:
    """Names of all pool files, sorted: a task's bare name comes before those with a device."""
    folder = _folder("data")
    if not folder.is_dir():
        return ()
    return tuple(
        sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))
    )


def recorded_task_names() -> tuple[str, ...]:
    """Names of the recorded tasks, sorted; each is listed once, on however many devices it was measured."""
    return tuple(name for name in recorded_names() if "@" not in name)


def device_of(name: str) -> str:
    """The device that the pool file of that name was measured on, as its driver calls it."""
    with pool_file(name).open("rb") as packed, gzip.open(packed) as lines:
        return str(json.loads(lines.readline())["pool"]["device"])


def short_device(device: str) -> str:
    """A device's name as those of files and tasks hold it: ``h100`` for "NVIDIA H100 80GB HBM3"."""
    # Late: what is known of devices belongs to the package of forecasters.
    from gpu_forecasters_plugin.forecasters.language_model.hardware import hardware_facts

    facts = hardware_facts(device)
    return re.sub(r"[^a-z0-9]+", "-", (facts.name if facts else device).lower()).strip("-")


def name_of_file(name: str) -> str:
    """The name of the file that ``task@device`` means: the bare one where the bare name stands for that device.

    Any other name is left as it is.
    """
    task, _, device = name.partition("@")
    if device and name not in recorded_names() and task in recorded_task_names():
        return task if short_device(device_of(task)) == device.lower() else name
    return name


def name_on(task: str, device: str) -> str:
    """The name of a task's file for a device; the bare one where it was not measured there.

    Args:
        task: bare name, of a shipped task or any other.
        device: as its driver calls it, or short.
    """
    name = f"{task}@{short_device(device)}"
    return name if name in recorded_names() else task


def existing_name(name: str) -> str:
    """The name of the file that a name means.

    Raises:
        PoolFileError: there is none; names the nearest right one.
    """
    known = recorded_names()
    found = name_of_file(name)
    if found in known:
        return found
    task, _, device = name.partition("@")
    if task in known:
        devices = [short_device(device_of(other)) for other in known if other.partition("@")[0] == task]
        raise PoolFileError(
            f"recorded task {task!r} was not measured on {device!r}; it was on: {', '.join(devices)}"
        )
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none installed'}"
    raise PoolFileError(f"no recorded task {name!r}; {hint}")
