"""What is screened, as it travels to the process that screens it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ScreenJob"]


@dataclass(frozen=True)
class ScreenJob:
    """One candidate and how it is to be called.

    Attributes:
        code: its text.
        arch: what to compile for, such as ``sm_90``.
        evaluator: path of the user's evaluator, which is run dry; or
        task_file: path of a file with ``ENTRY_POINT`` and ``make_inputs()``; exactly one of them.
        device: name of the GPU whose figures the candidate may ask for; empty for a usual one.
        disassemble: whether the profile holds instruction mixes (a third of a second per kernel).
        arguments: the host's ``evaluator_args``.
        seconds: wall time for it.
        memory_mib: memory for it.
    """

    code: str
    arch: str
    evaluator: str | None = None
    task_file: str | None = None
    device: str = ""
    disassemble: bool = False
    arguments: Mapping[str, Any] | None = None
    seconds: float = 20.0
    memory_mib: int = 6144

    def __post_init__(self) -> None:
        if (self.evaluator is None) == (self.task_file is None):
            raise ValueError("a job names an evaluator or a task file")
        for name in ("evaluator", "task_file"):
            path = getattr(self, name)
            if path is not None:  # it is called in another folder
                object.__setattr__(self, name, os.path.abspath(path))

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return asdict(self)
