"""The surrogate filter for OpenEvolve."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.errors import MissingExtraError

if find_spec("openevolve") is None:
    raise MissingExtraError("openevolve", "openevolve")

if TYPE_CHECKING:
    from gpu_forecasters_openevolve.drop_in import filtered

__all__ = ["filtered"]


def __getattr__(name: str) -> Any:
    # Late: the processes that measure need nothing of the host, and importing it takes them a second.
    if name == "filtered":
        from gpu_forecasters_openevolve.drop_in import filtered

        return filtered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
