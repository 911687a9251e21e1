"""``gpu-forecasters doctor``: what works here, and what to mend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpu_forecasters_plugin.doctor import CheckResult

__all__ = ["doctor_command"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def doctor_command(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML with a surrogate: section; else its defaults.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for summary.json.")] = None,
    deadline: Annotated[
        float, typer.Option("--deadline", min=0.1, max=86_400, help="Seconds that one check may take.")
    ] = 60.0,
) -> None:
    """Test what a run would need: configuration, host, GPU, ledger, forecaster and its endpoints.

    A language model's endpoints are asked a few short questions: whether they serve the model, obey a schema, return
    log-probabilities, share prefixes, hold the longest prompt, and whether the model thinks first. Exit code 1 when
    something is missing that the configuration needs.
    """
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.doctor import Status, examine
    from gpu_forecasters_plugin.files import prepare_folder, write_json

    if out is not None:
        prepare_folder(out)
    with interruptible("nothing was written"):
        results = examine(config, deadline_s=deadline)
    failed = any(result.status is Status.FAIL for result in results)
    _print(results)
    if out is not None:
        summary = {
            "config": None if config is None else str(config),
            "healthy": not failed,
            "checks": [asdict(result) for result in results],
        }
        write_json(out / "summary.json", summary)
    raise typer.Exit(1 if failed else 0)


def _print(results: Sequence[CheckResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gpu_forecasters_plugin.printable import printable

    # A pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    table = Table(pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("seen, and what to do", overflow="fold")
    for result in results:
        says_itself = not result.subject or result.subject in result.seen
        seen = Text(printable(result.seen if says_itself else f"{result.subject}: {result.seen}"))
        if result.advice:
            seen.append(f"\n-> {printable(result.advice)}", style="bold")
        table.add_row(Text(result.name), Text(str(result.status), style=_STYLES[result.status]), seen)
    console.print(table)
