"""Keeps programs that were not measured out of OpenEvolve's population.

OpenEvolve's documented hook for this, ``PopulationStrategy.admit``, is an argument of its constructor, which
``openevolve-run`` does not expose. The check therefore sits in front of the public ``ProgramDatabase.add``, whose
documented answer to a program that is not admitted, ``None``, is what the host's controller expects either way. A
strategy of the user's own keeps working behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Any

from openevolve.database import Program, ProgramDatabase

from gpu_forecasters_openevolve.replies import is_admissible
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.errors import HostError

__all__ = ["SUPPORTED_VERSIONS", "guard_population", "hooked_method"]

SUPPORTED_VERSIONS = "0.4.1 and newer 0.4 releases"
_PARAMETERS = ["self", "program", "iteration", "target_island"]


def hooked_method() -> Callable[..., Any]:
    """The method that the check sits in front of.

    Raises:
        HostError: this OpenEvolve has no such method.
    """
    method: Callable[..., Any] | None = getattr(ProgramDatabase, "add", None)
    if method is None or list(inspect.signature(method).parameters) != _PARAMETERS:
        raise HostError(
            f"OpenEvolve {version('openevolve')} manages its population differently; "
            f"install OpenEvolve {SUPPORTED_VERSIONS}"
        )
    return method


def guard_population(on_processed: Callable[[str, bool], None]) -> Callable[[], None]:
    """Refuse unmeasured programs in this process's population from now on.

    Args:
        on_processed: called for each program that the host has dealt with: its source key, and whether it came
            with the evaluator's answer.

    Returns:
        A function that takes the check away again.

    Raises:
        HostError: this OpenEvolve has no such method.
    """
    original = hooked_method()

    @wraps(original)
    def add(
        self: ProgramDatabase,
        program: Program,
        iteration: int | None = None,
        target_island: int | None = None,
    ) -> str | None:
        admitted: str | None = None
        admissible = is_admissible(program.metrics)
        if admissible:
            admitted = original(self, program, iteration, target_island)
        elif iteration is not None:
            # As the host's own admission does, so that checkpoints count this iteration.
            self.last_iteration = max(self.last_iteration, iteration)
        on_processed(source_key(program.code), admissible)
        return admitted

    ProgramDatabase.add = add  # type: ignore[method-assign]

    def restore() -> None:
        ProgramDatabase.add = original  # type: ignore[method-assign]

    return restore
