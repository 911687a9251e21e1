"""``gpu-forecasters plugins``: what is installed, of which kind, and from where."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    from gpu_forecasters_plugin.plugins import Discovery

__all__ = ["plugins_command"]


def plugins_command(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for summary.json.")] = None,
) -> None:
    """List everything that a configuration or a command can name, and the distribution that it comes from.

    Plugins are distributions with an entry point in the group gpu_forecasters. Exit code 1 when one of them is broken
    or clashes with another, which keeps every other command from starting; GPU_FORECASTERS_DISABLE_PLUGINS=NAME,...
    goes on without those.
    """
    from gpu_forecasters_plugin.files import prepare_folder, write_json
    from gpu_forecasters_plugin.plugins import discover

    if out is not None:
        prepare_folder(out)
    discovery = discover()
    _print(discovery)
    if out is not None:
        write_json(out / "summary.json", _summary(discovery))
    raise typer.Exit(1 if discovery.problems else 0)


def _summary(discovery: Discovery) -> dict[str, Any]:
    from dataclasses import asdict

    from gpu_forecasters_plugin.hookspecs import SPEC_VERSION

    return {
        "specification": SPEC_VERSION,
        "plugins": [asdict(origin) for origin in discovery.plugins],
        "registered": [
            {
                "kind": entry.factory.kind,
                "name": entry.factory.name,
                "summary": entry.factory.summary,
                "plugin": entry.origin.plugin,
                "distribution": entry.origin.distribution,
                "version": entry.origin.version,
            }
            for entry in discovery.registry.entries()
        ],
        "problems": [asdict(problem.origin) | {"reason": problem.reason} for problem in discovery.problems],
        "disabled": [asdict(origin) for origin in discovery.disabled],
    }


def _print(discovery: Discovery) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gpu_forecasters_plugin.plugins import DISABLE_VARIABLE

    # A pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    table = Table(pad_edge=False)
    for column in ("kind", "name", "from"):
        table.add_column(column, overflow="fold")
    table.add_column("what it is", overflow="fold")
    for entry in discovery.registry.entries():
        package = f"{entry.origin.distribution} {entry.origin.version}"
        cells = (entry.factory.kind, entry.factory.name, package, entry.factory.summary)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
    for origin in discovery.disabled:
        console.print(printable(f"disabled by {DISABLE_VARIABLE}: {origin}"), soft_wrap=True)
    for problem in discovery.problems:
        typer.echo(f"error: {printable(str(problem))}", err=True)
    if discovery.problems:
        names = ",".join(dict.fromkeys(problem.origin.plugin for problem in discovery.problems))
        typer.echo(printable(f"to go on without: {DISABLE_VARIABLE}={names}"), err=True)
