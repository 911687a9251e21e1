"""The surrogate filter for ShinkaEvolve."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.errors import MissingExtraError

if find_spec("shinka") is None:
    raise MissingExtraError("shinka-evolve", "shinka")

if TYPE_CHECKING:
    from gpu_forecasters_shinka.filtering import filtered

__all__ = ["filtered"]


def __getattr__(name: str) -> Any:
    # Late: importing the host takes seconds.
    if name == "filtered":
        from gpu_forecasters_shinka.filtering import filtered

        return filtered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
