"""The ``gpu-forecasters`` command."""

from gpu_forecasters_plugin.cli.app import main

__all__ = ["main"]
