"""Plugins: what is installed, what it adds, and what is wrong with it."""

from gpu_forecasters_plugin.plugins.loading import (
    DISABLE_VARIABLE,
    Discovery,
    PluginProblem,
    discover,
    registry,
)
from gpu_forecasters_plugin.plugins.registry import Origin, Registered, Registry, made_by, options_of

__all__ = [
    "DISABLE_VARIABLE",
    "Discovery",
    "Origin",
    "PluginProblem",
    "Registered",
    "Registry",
    "discover",
    "made_by",
    "options_of",
    "registry",
]
