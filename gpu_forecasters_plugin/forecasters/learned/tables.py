"""Features of many sources, a row each, as a warm start and a model of failure learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecast import Attempt
from gpu_forecasters_plugin.forecasters.learned.features import STRUCTURE_NAMES, extract_features
from gpu_forecasters_plugin.forecasters.learned.profile_features import PROFILE_NAMES, profile_features
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["SourceTable", "table_of", "table_of_attempts"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SourceTable:
    """What is known of n sources before any of them is measured.

    Attributes:
        structure: n rows of structure features (:data:`~.features.STRUCTURE_NAMES`).
        profiles: n rows of features of the static profile (:data:`~.profile_features.PROFILE_NAMES`), ``nan`` where
            there is none, or where a number is not known.
        compiled: which of them have a profile.
        screened: the compiler's verdict on each, ``None`` where nobody asked.
    """

    structure: Array
    profiles: Array
    compiled: NDArray[np.bool_]
    screened: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.structure)

    def only(self, rows: NDArray[np.bool_]) -> SourceTable:
        """The chosen rows."""
        screened = tuple(verdict for verdict, kept in zip(self.screened, rows, strict=True) if kept)
        return SourceTable(self.structure[rows], self.profiles[rows], self.compiled[rows], screened)

    @staticmethod
    def of(
        structures: Sequence[Array], profiles: Sequence[Array | None], screened: Sequence[str | None]
    ) -> SourceTable:
        """A table of the features of single sources, which may be none."""
        nothing = np.full(len(PROFILE_NAMES), np.nan)
        rows = [nothing if profile is None else profile for profile in profiles]
        return SourceTable(
            np.array(structures, dtype=np.float64).reshape(len(structures), len(STRUCTURE_NAMES)),
            np.array(rows, dtype=np.float64).reshape(len(rows), len(PROFILE_NAMES)),
            np.array([profile is not None for profile in profiles], dtype=np.bool_),
            tuple(screened),
        )


def table_of(
    codes: Sequence[str],
    profiles: Sequence[SourceProfile | None] = (),
    screened: Sequence[str | None] = (),
) -> SourceTable:
    """A table of sources.

    Args:
        codes: the sources.
        profiles: static profile of each; empty where nobody asked the compiler.
        screened: likewise its verdicts.
    """
    nothing = (None,) * len(codes)
    found = [profile_features(profile) for profile in profiles or nothing]
    return SourceTable.of([_structure_of(code) for code in codes], found, screened or nothing)


def table_of_attempts(attempts: Sequence[Attempt]) -> SourceTable:
    """A table of measured sources, failures among them."""
    return table_of(
        [attempt.candidate_code for attempt in attempts],
        [attempt.profile for attempt in attempts],
        [attempt.screened for attempt in attempts],
    )


@lru_cache(maxsize=8192)
def _structure_of(code: str) -> Array:
    """Structure features of a source, kept: the same sources are learned from by every forecaster of a process."""
    return extract_features(code).structure
