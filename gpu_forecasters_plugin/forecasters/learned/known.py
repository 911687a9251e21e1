"""Measured kernels of other operations, which a forecaster may know before its run has measured anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecast import Attempt, Ending
from gpu_forecasters_plugin.forecasters.learned.tables import SourceTable, table_of, table_of_attempts
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["KnownTask", "WarmStartTask"]

Array = NDArray[np.float64]


class KnownTask(Protocol):
    """Measured kernels of one operation. Equal to itself alone, so that what is learned from it can be kept."""

    @property
    def operation(self) -> str:
        """What they compute."""

    @property
    def reference_code(self) -> str:
        """Source that their speed-ups are relative to."""

    @property
    def reference(self) -> SourceTable:
        """Features of that source: one row."""

    @property
    def ran(self) -> SourceTable:
        """Those that run right."""

    @property
    def targets(self) -> Array:
        """log2 of the measured speed-up of each of :attr:`ran` over the reference."""

    @property
    def tried(self) -> SourceTable:
        """All measured kernels, failures among them; none where nobody kept them."""

    @property
    def endings(self) -> tuple[Ending, ...]:
        """How each of :attr:`tried` fared."""


@dataclass(frozen=True, eq=False)
class WarmStartTask:
    """A :class:`KnownTask` made from sources.

    Attributes:
        operation: what they compute.
        reference_code: source that their speed-ups are relative to.
        codes: sources with outcome ``ok``.
        log2_speedups: log2 of each one's measured speed-up over the reference.
        profiles: static profile of each, ``None`` where there is none; empty where nobody asked the compiler.
        reference_profile: likewise of the reference.
        attempts: all measured kernels, failures among them, with how they fared; empty where nobody kept them.
    """

    operation: str
    reference_code: str
    codes: tuple[str, ...]
    log2_speedups: tuple[float, ...]
    profiles: tuple[SourceProfile | None, ...] = ()
    reference_profile: SourceProfile | None = None
    attempts: tuple[Attempt, ...] = ()

    def __post_init__(self) -> None:
        if self.profiles and len(self.profiles) != len(self.codes):
            raise ValueError(
                f"warm-start task {self.operation!r} has {len(self.codes)} sources"
                f" but {len(self.profiles)} profiles"
            )
        if len(self.codes) != len(self.log2_speedups):
            raise ValueError(
                f"warm-start task {self.operation!r} has {len(self.codes)} sources"
                f" but {len(self.log2_speedups)} speed-ups"
            )

    @cached_property
    def reference(self) -> SourceTable:
        """Features of the reference: one row."""
        return table_of([self.reference_code], [self.reference_profile])

    @cached_property
    def ran(self) -> SourceTable:
        """Features of the sources that run right."""
        return table_of(self.codes, self.profiles)

    @cached_property
    def targets(self) -> Array:
        """Their log2 speed-ups."""
        return np.array(self.log2_speedups, dtype=np.float64)

    @cached_property
    def tried(self) -> SourceTable:
        """Features of all measured kernels."""
        return table_of_attempts(self.attempts)

    @cached_property
    def endings(self) -> tuple[Ending, ...]:
        """How each of them fared."""
        return tuple(attempt.ending for attempt in self.attempts)
