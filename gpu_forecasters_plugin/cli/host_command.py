"""The help of a command that also takes everything that a host's own command takes."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from typer.core import TyperCommand

from gpu_forecasters_plugin.errors import MissingExtraError

__all__ = ["HostCommand"]


class HostCommand(TyperCommand):
    """Lists the host's own flags below ours."""

    adapter: ClassVar[str]
    """Package whose ``command_line.flags_help()`` knows them."""

    program: ClassVar[str]
    """The host's own command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        try:
            flags = import_module(f"{self.adapter}.command_line").flags_help()
        except MissingExtraError as error:
            flags = f"  {error}"
        formatter.write(f"\nFlags of {self.program}:\n{flags}\n")
