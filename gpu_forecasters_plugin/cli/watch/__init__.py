"""``gpu-forecasters watch``: a run while it goes on."""

from gpu_forecasters_plugin.cli.watch.command import watch_command

__all__ = ["watch_command"]
