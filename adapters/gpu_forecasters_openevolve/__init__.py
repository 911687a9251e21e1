"""The surrogate filter for OpenEvolve."""

from gpu_forecasters_plugin.errors import MissingExtraError

try:
    import openevolve  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("openevolve", "openevolve") from None

from gpu_forecasters_openevolve.filtered import filtered

__all__ = ["filtered"]
